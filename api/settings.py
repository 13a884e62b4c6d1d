"""Every setting of the service, read once: environment `MUNIMENT_*`, then `<DATA>/muniment.toml`, then defaults.

Guarantees: this is the only module that reads the environment; everything else takes plain arguments. A name in the
file that is no setting, and a setting whose feature is not built, are refused with what to do. Does not decide what
a setting means (see `api.wiring`). Secrets are never settings: stores name them by `env:` or `file:`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

PREFIX = "MUNIMENT_"
SECRET_PREFIX = "MUNIMENT_SECRET_"  # noqa: S105 - the name of a variable, not a secret
_TEST_PREFIX = "MUNIMENT_TEST_"
_OF_KUBERNETES = re.compile(r"MUNIMENT_(SERVICE_(HOST|PORT\w*)|PORT_\d+_\w+)")
"""What it sets in every container beside a Service of the name `muniment`."""
_OF_COMMANDS = frozenset({"MUNIMENT_TOKEN", "MUNIMENT_URL", "MUNIMENT_WRITER_TOKEN"})
"""What commands that talk to a server read, beside the settings."""
DEFAULT_DATA = Path(".muniment")
_LONG_DURATION = re.compile(r"P(?:(\d{1,3})Y)?(?:(\d{1,4})M)?(?:(\d{1,5})D)?")


class SettingRefused(Exception):
    """A setting is unknown, malformed or not built; `name` says which, the message what to do."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"setting {name}: {detail}")
        self.name = name
        self.detail = detail


class Settings(BaseSettings):
    """What the operator decided. Frozen; paths are absolute."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True)

    data: Path = Field(DEFAULT_DATA, description="Data folder: database, objects, run files. Keys never lie in it.")
    database_url: str | None = Field(
        None, description="`sqlite:///ABSOLUTE/PATH` or `postgresql+psycopg://…`. Default: `<DATA>/muniment.db`."
    )
    object_store: str | None = Field(
        None,
        description="Locked store of the record: `file://FOLDER` or `s3://BUCKET/PREFIX`. Default: `<DATA>/objects`.",
    )
    hot_store: str | None = Field(
        None,
        description="Unlocked store for wrapped keys: `file://FOLDER` or `s3://BUCKET/PREFIX`. Default: `<DATA>/hot`.",
    )
    s3_endpoint_url: str | None = Field(None, description="Address of an S3 other than AWS.")
    kms: str | None = Field(
        None,
        description="Root of all keys: `file://FOLDER`, or `aws-kms://KEY?region=REGION` with `&window=` (7 to 30 days "
        "until AWS deletes an old key) and `&folder=` for the wrapped keys. Default: `file://<DATA>.keys`.",
    )
    secrets: Path | None = Field(
        None, description="Folder of the tenants' `file:` secrets, one folder a tenant. Default: `<DATA>.secrets`."
    )
    allow_targets: str = Field(
        "",
        description="Comma list of what stores may point at: `file:GLOB`, `sqlite:GLOB` on absolute resolved paths, "
        "`host` or `host:port` globs. Default: nothing.",
    )
    approval: Literal["dual", "single"] = Field(
        "dual", description="`single` lets one principal create and approve; printed on every certificate."
    )
    anchors: str = Field("", description="Comma list of anchors each checkpoint is offered to.")
    quiet_period: timedelta = Field(
        timedelta(days=1), ge=timedelta(0), description="Wait between the interim and the final certificate, ISO 8601."
    )
    kek_grace: timedelta = Field(
        timedelta(days=7),
        ge=timedelta(0),
        description="How long an old key-encryption key is kept after a rotation, ISO 8601.",
    )
    unverified_term: timedelta = Field(
        timedelta(days=90),
        ge=timedelta(days=7),
        description="How long after the date of its answer a request that nobody verified is refused, ISO 8601, at "
        "least `P7D`: it is named a week before; what it said is destroyed 30 days later.",
    )
    log_term: str = Field("P7Y", description="How long the record's skeleton is locked, ISO 8601 years, months, days.")
    oidc_issuer: str | None = Field(None, description="Not built yet; refused when set.")
    oidc_audience: str | None = Field(None, description="Not built yet; refused when set.")
    host: str = Field("127.0.0.1", description="Address `muniment serve` binds to.")
    port: int = Field(8811, ge=0, le=65535, description="Port `muniment serve` binds to; 0 picks a free one.")
    preparing: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Processes that read and seal large calls for `muniment serve`; 0 for none. Default: one for each "
        "processor it may use, at most four.",
    )
    openlineage: str | None = Field(
        None,
        description="Where lineage events go: `file:///ABSOLUTE/PATH` or `http(s)://HOST/PATH`. Default: nowhere.",
    )
    otlp_endpoint: str | None = Field(
        None, description="Base address of an OTLP/HTTP collector for traces and metrics."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line on stderr.")
    clock_offset: timedelta = Field(
        timedelta(0), description="Tests only: moves the service's clock, ISO 8601. Refused with a locked S3."
    )
    lock_unit: Literal["day", "second"] = Field(
        "day", description="Tests only: `second` makes object locks last seconds instead of days."
    )

    @field_validator("data", "secrets")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("log_term")
    @classmethod
    def _long_duration(cls, value: str) -> str:
        if value == "P" or not _LONG_DURATION.fullmatch(value):
            message = "expected an ISO 8601 duration in years, months and days, such as P7Y"
            raise ValueError(message)
        return value

    @property
    def database(self) -> str:
        """The database's address, the default filled in."""
        return self.database_url or f"sqlite:///{self.data / 'muniment.db'}"

    @property
    def objects(self) -> str:
        """The locked store's address, the default filled in."""
        return self.object_store or f"file://{self.data / 'objects'}"

    @property
    def hot(self) -> str:
        """The unlocked store's address, the default filled in."""
        return self.hot_store or f"file://{self.data / 'hot'}"

    @property
    def key_root(self) -> str:
        """The key root's address, the default filled in: beside the data folder, never in it."""
        return self.kms or f"file://{self.data}.keys"

    @property
    def key_folder(self) -> Path:
        """Where the wrapped key-encryption keys lie. Raises SettingRefused for a root that is not built."""
        from vault.errors import RootUnavailable  # noqa: PLC0415 - only who uses keys loads their code
        from vault.providers import key_folder  # noqa: PLC0415 - as above

        try:
            return key_folder(self.key_root, Path(f"{self.data}.keys"))
        except RootUnavailable as error:
            raise SettingRefused("KMS", str(error)) from None

    @property
    def secrets_folder(self) -> Path:
        """The folder of all tenants' `file:` secrets."""
        return self.secrets or self.data.with_name(f"{self.data.name}.secrets")

    @property
    def targets(self) -> tuple[str, ...]:
        """The allow-list as its items."""
        return tuple(item.strip() for item in self.allow_targets.split(",") if item.strip())

    @property
    def anchor_list(self) -> tuple[str, ...]:
        """The anchors as their addresses."""
        return tuple(item.strip() for item in self.anchors.split(",") if item.strip())

    @property
    def preparing_processes(self) -> int:
        """How many processes prepare calls, the default filled in."""
        return min(4, _processors()) if self.preparing is None else self.preparing

    @property
    def on_postgres(self) -> bool:
        """Whether the tables are on PostgreSQL."""
        return self.database.startswith("postgresql")


def _processors() -> int:
    """How many processors this process may use; a limit of its share in them is not asked for."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load(data: Path | None = None, **overrides: object) -> Settings:
    """Returns the settings for `data` (else `MUNIMENT_DATA`, else `.muniment`); None in `overrides` means not given.

    Raises:
        SettingRefused: an unknown name in the file, a malformed value, or a feature that is not built.
    """
    _refuse_unknown(os.environ)
    folder = (data or Path(os.environ.get(f"{PREFIX}DATA", DEFAULT_DATA))).expanduser().absolute()
    values = _file_values(folder / "muniment.toml")
    values = {name: value for name, value in values.items() if f"{PREFIX}{name.upper()}" not in os.environ}
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        settings = Settings(**{**values, "data": folder})  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"]).upper()
        raise SettingRefused(name, first["msg"]) from None
    _refuse_not_built(settings)
    return settings


class _Given(Settings):
    """Settings of which the environment knows nothing."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, and nothing else."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def given(data: Path, **values: object) -> Settings:
    """Returns the defaults for `data` with these values, whatever the environment and the folder's file say.

    For what must never reach the operator's own database, stores and keys.
    """
    return _Given(**{**values, "data": data})  # type: ignore[arg-type]  # pydantic checks the values


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """A setting that is misspelt is not in force, so nothing runs as if it were. Raises SettingRefused."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | _OF_COMMANDS
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in known or name.startswith((SECRET_PREFIX, _TEST_PREFIX)):
            continue
        if _OF_KUBERNETES.fullmatch(name):
            continue
        close = get_close_matches(name, sorted(known), n=1)
        advice = f"did you mean {close[0]}?" if close else "docs/settings.md lists them"
        raise SettingRefused(name, f"there is no such setting: {advice}")


def _file_values(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingRefused("muniment.toml", f"not readable as TOML: {error}") from None
    values = {name.lower(): value for name, value in raw.items()}
    unknown = sorted(set(values) - set(Settings.model_fields))
    if unknown:
        raise SettingRefused(unknown[0].upper(), "no such setting; docs/settings.md lists them")
    if "data" in values:
        raise SettingRefused("DATA", "the file lies in the data folder and cannot move it; use --data or MUNIMENT_DATA")
    return values


def _refuse_not_built(settings: Settings) -> None:
    if settings.oidc_issuer or settings.oidc_audience:
        raise SettingRefused("OIDC_ISSUER", "OpenID Connect is not built yet; use tokens (muniment token create)")
    if settings.clock_offset and settings.objects.startswith("s3://"):
        raise SettingRefused("CLOCK_OFFSET", "a moved clock would set wrong lock dates in S3; unset it")


def environment_secret(name: str) -> str | None:
    """Returns the secret in the environment variable `name`, which must start with `MUNIMENT_SECRET_`.

    Raises:
        SettingRefused: another variable was named; a tenant must not read the service's own environment.
    """
    if not name.startswith(SECRET_PREFIX):
        raise SettingRefused("secret", f"only variables named {SECRET_PREFIX}… are secrets")
    return os.environ.get(name)


EnvironmentSecret = Callable[[str], str | None]
