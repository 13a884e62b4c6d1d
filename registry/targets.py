"""Where a store or a callback may point: the operator's allow-list, and never the service's own data.

Guarantees: nothing is allowed by default; paths are compared resolved, so links and `..` change nothing; our own
folders, database and buckets are refused even where a pattern would allow them. An address is judged as its driver
reads it: what a driver would read otherwise, and parameters that lead elsewhere, are refused. Pure but for resolving
paths.
Does not pin addresses or follow redirects; that is the connector's business at connect time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import sqlalchemy as sa

from registry.errors import TargetNotAllowed

_REFERENCES = ("env:", "file:")
_DEFAULT_PORTS = {"postgresql": 5432, "redis": 6379, "rediss": 6379, "http": 80, "https": 443}
_TLS = frozenset({"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_PARAMETERS = {
    "postgresql": frozenset(
        {
            "application_name",
            "channel_binding",
            "connect_timeout",
            "gssencmode",
            "sslcert",
            "sslcrl",
            "sslkey",
            "sslmode",
            "sslrootcert",
            "target_session_attrs",
        }
    ),
    "redis": frozenset({"db", "protocol"}),
    "rediss": frozenset({"db", "protocol"}) | _TLS,
}
"""What an address may say after `?`: nothing that names a host, port, database, user or file of secrets."""
_NO_TARGET = frozenset({"agent"})
"""Kinds that run inside the agent's own process: the service connects to nothing."""


class Targets:
    """The allow-list of one deployment. `allowed` are `file:GLOB`, `sqlite:GLOB`, and `host` or `host:port` globs.

    `own` are places of the service itself: folders, database and object-store addresses.
    """

    def __init__(self, *, allowed: Iterable[str], own: Iterable[str] = ()) -> None:
        patterns = [pattern.strip() for pattern in allowed if pattern.strip()]
        self._files = tuple(item.removeprefix("file:") for item in patterns if item.startswith("file:"))
        self._sqlite = tuple(item.removeprefix("sqlite:") for item in patterns if item.startswith("sqlite:"))
        self._hosts = tuple(item.lower() for item in patterns if not item.startswith(("file:", "sqlite:")))
        self._own_paths: list[Path] = []
        self._own_urls: list[str] = []
        for place in own:
            self._add_own(place)

    def check(self, kind: str, config: Mapping[str, Any]) -> None:
        """Return when the configuration points only at allowed targets. Raises: TargetNotAllowed.

        A reference to a secret is checked once it is resolved, when the connector is opened.
        """
        if kind in _NO_TARGET:
            return
        if kind == "s3":
            self._check_bucket(config)
        for name in ("root", "path", "folder", "keys"):
            if isinstance(config.get(name), str) and not _is_reference(config[name]):
                self._check_path(kind, config[name], self._files, "file:")
        for name in ("url", "endpoint_url"):
            if isinstance(config.get(name), str) and not _is_reference(config[name]):
                self.check_url(kind, config[name])

    def check_url(self, kind: str, url: str) -> None:
        """Return when an address is allowed. Raises: TargetNotAllowed."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise TargetNotAllowed(kind, "the address cannot be read") from None
        scheme = parts.scheme.partition("+")[0].lower()
        if scheme == "sqlite":
            self._check_path(kind, sqlite_path(url), self._sqlite, "sqlite:")
            return
        if scheme == "file":
            self._check_path(kind, unquote(parts.path), self._files, "file:")
            return
        if not parts.hostname:
            raise TargetNotAllowed(kind, "the address names no host")
        _check_reading(kind, scheme, url, (parts.hostname, port, parts.path.removeprefix("/")))
        host = parts.hostname.lower().rstrip(".")
        place = f"{host}:{port or _DEFAULT_PORTS.get(scheme, 0)}"
        if any(_same_database(own, url) for own in self._own_urls):
            raise TargetNotAllowed(kind, "this is the service's own data")
        if not any(fnmatchcase(host, pattern) or fnmatchcase(place, pattern) for pattern in self._hosts):
            raise TargetNotAllowed(kind, "its host is not on the operator's list", allow=place.removesuffix(":0"))

    def _check_bucket(self, config: Mapping[str, Any]) -> None:
        bucket = config.get("bucket")
        if any(urlsplit(own).scheme == "s3" and urlsplit(own).netloc == bucket for own in self._own_urls):
            raise TargetNotAllowed("s3", "this is the service's own bucket")
        if config.get("endpoint_url") is None and not self._matches_host("s3.amazonaws.com", 443):
            raise TargetNotAllowed("s3", "its host is not on the operator's list", allow="s3.amazonaws.com")

    def _matches_host(self, host: str, port: int) -> bool:
        return any(fnmatchcase(host, pattern) or fnmatchcase(f"{host}:{port}", pattern) for pattern in self._hosts)

    def _check_path(self, kind: str, path: str, patterns: tuple[str, ...], prefix: str) -> None:
        if not path.startswith("/") or "\0" in path:
            raise TargetNotAllowed(kind, "the path is not absolute")
        resolved = Path(path).resolve()
        for own in self._own_paths:
            if resolved == own or resolved.is_relative_to(own) or own.is_relative_to(resolved):
                raise TargetNotAllowed(kind, "the path holds the service's own data, or lies in it")
        if not any(_path_matches(resolved, pattern) for pattern in patterns):
            detail = f"its path matches no {prefix} pattern of the operator's list"
            raise TargetNotAllowed(kind, detail, allow=f"{prefix}{resolved}")

    def _add_own(self, place: str) -> None:
        if place.startswith("sqlite"):
            if not (path := sqlite_path(place)):
                return
            database = Path(path).resolve()
            self._own_paths += [database.with_name(database.name + end) for end in ("", "-wal", "-shm", "-journal")]
        elif place.startswith("file://"):
            self._own_paths.append(Path(unquote(urlsplit(place).path)).resolve())
        elif "://" in place:
            self._own_urls.append(place)
        elif place:
            self._own_paths.append(Path(place).resolve())


def _check_reading(kind: str, scheme: str, url: str, place: tuple[str, int | None, str]) -> None:
    """Return when the driver reads the same host, port and database out of an address. Raises: TargetNotAllowed."""
    known = _PARAMETERS.get(scheme, frozenset())
    given = {name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)}
    if given - known:
        raise TargetNotAllowed(
            kind, f"after ? an address may have {', '.join(sorted(known)) or 'nothing'}; host and database stand before"
        )
    if scheme != "postgresql":
        return
    try:
        read = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise TargetNotAllowed(kind, "the address cannot be read") from None
    if ((read.host or "").lower(), read.port, read.database or "") != (place[0].lower(), *place[1:]):
        raise TargetNotAllowed(
            kind, "its driver reads another host out of the address; write # ? / @ as %23 %3F %2F %40"
        )


def sqlite_path(url: str) -> str:
    """The file of a `sqlite:///…` address; empty for a database in memory."""
    path = unquote(url.partition("://")[2].partition("?")[0]).removeprefix("/")
    return "" if path == ":memory:" else path


def _path_matches(path: Path, pattern: str) -> bool:
    """Whether a glob names the path or a folder above it; `*` stays within one name, `**` does not."""
    expression = "".join(
        ".*" if part == "**" else "[^/]*" if part == "*" else "[^/]" if part == "?" else re.escape(part)
        for part in re.split(r"(\*\*|\*|\?)", _resolved_glob(pattern))
    )
    return re.fullmatch(f"{expression}(/.*)?", str(path)) is not None


def _resolved_glob(pattern: str) -> str:
    """The pattern with the folders before its first wildcard resolved, as the paths compared with it are."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    folder = fixed if fixed == pattern else fixed.rpartition("/")[0]
    return str(Path(folder).resolve()) + pattern[len(folder) :] if folder.startswith("/") else pattern


def _is_reference(value: str) -> bool:
    return value.startswith(_REFERENCES) and not value.startswith("file:/")


def _same_database(own: str, url: str) -> bool:
    mine, theirs = urlsplit(own), urlsplit(url)
    ports = [part.port or _DEFAULT_PORTS.get(part.scheme.partition("+")[0], 0) for part in (mine, theirs)]
    return (
        mine.scheme.partition("+")[0] == theirs.scheme.partition("+")[0]
        and (mine.hostname or "").lower() == (theirs.hostname or "").lower()
        and ports[0] == ports[1]
        and mine.path.rstrip("/") == theirs.path.rstrip("/")
    )
