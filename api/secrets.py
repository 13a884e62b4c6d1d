"""The secrets of stores: `env:NAME` and `file:PATH`, each confined to the tenant that names it.

Guarantees: a tenant reads only variables with its own prefix and files below its own folder, whatever a path or a link
says; nothing is cached, so a rotated secret counts at once. A secret is never part of an error.
"""

from __future__ import annotations

import re
from pathlib import Path

from api.settings import EnvironmentSecret
from connectors.errors import ConnectorError
from registry.stores import secret_prefix

MAX_SECRET_BYTES = 64 * 1024
_ENV_NAME = re.compile(r"[A-Z0-9][A-Z0-9_]*")


class SecretRefused(ConnectorError):
    """A reference points outside the tenant's own secrets, or to nothing; `reference` is what the store says.

    A store whose secret is gone cannot be opened, like one that does not answer: nobody else's work waits for it.
    """

    problem = "secret-not-allowed"

    def __init__(self, reference: str, detail: str) -> None:
        super().__init__(f"secret {reference}: {detail}")
        self.reference = reference
        self.detail = detail


class Secrets:
    """Resolves references for tenants; `of(tenant)` is what a connector gets."""

    def __init__(self, folder: Path, environment: EnvironmentSecret) -> None:
        self._folder = folder
        self._environment = environment

    def resolve(self, tenant: str, reference: str) -> str:
        """Returns the secret. Raises SecretRefused."""
        scheme, _, name = reference.partition(":")
        if scheme == "env":
            return self._from_environment(tenant, reference, name)
        if scheme == "file":
            return self._from_file(tenant, reference, name)
        # Not shown: somebody wrote the secret itself where its name belongs.
        raise SecretRefused("reference", "write env:NAME or file:PATH")

    def _from_environment(self, tenant: str, reference: str, name: str) -> str:
        prefix = secret_prefix(tenant)
        if not name.startswith(prefix) or not _ENV_NAME.fullmatch(name.removeprefix(prefix)):
            raise SecretRefused(reference, f"this tenant's variables are named {prefix}…")
        value = self._environment(name)
        if not value:
            raise SecretRefused(reference, "the variable is not set for the service")
        return value

    def _from_file(self, tenant: str, reference: str, name: str) -> str:
        folder = (self._folder / tenant).resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or path == folder:
            raise SecretRefused(reference, "the path leaves the tenant's secrets folder")
        try:
            with path.open("rb") as file:
                data = file.read(MAX_SECRET_BYTES + 1)
        except OSError:
            raise SecretRefused(reference, "the file is missing or not readable by the service") from None
        if len(data) > MAX_SECRET_BYTES:
            raise SecretRefused(reference, f"the file is larger than {MAX_SECRET_BYTES} bytes")
        try:
            return data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise SecretRefused(reference, "the file is not UTF-8 text") from None
