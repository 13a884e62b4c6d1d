"""`muniment classes apply` and `muniment stores apply`: files of declarations, a diff first, then an upsert."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from api.commands.options import CannotRun, client_of, remote, show
from muniment.errors import ApiProblem
from muniment.registry import Client

_NOT_FOUND = (404, 422)


def read_declarations(path: Path, section: str) -> dict[str, Any]:
    """Returns name → declaration of a YAML or TOML file: at the top, or below `classes` or `stores`.

    Raises:
        CannotRun: the file cannot be read or is not a mapping of names.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        message = f"{path}: {(error.strerror or 'not readable').lower()}"
        raise CannotRun(message) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        message = f"{path}: not readable as {'TOML' if path.suffix == '.toml' else 'YAML'}{where}"
        raise CannotRun(message) from None
    if isinstance(found, dict) and isinstance(found.get(section), dict):
        found = found[section]
    elif isinstance(found, dict) and {"classes", "stores"} & found.keys():
        found = {}
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        message = f"{path}: expected names with their declarations, at the top or below `{section}:`"
        raise CannotRun(message)
    return {str(name): plain(spec) for name, spec in found.items()}


def plain(value: Any) -> Any:
    """The value as JSON can say it: dates become RFC 3339 text."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def leaves(value: Any, prefix: str = "") -> dict[str, str]:
    """A declaration as path → text, for comparison; null means absent."""
    if isinstance(value, Mapping):
        found: dict[str, str] = {}
        for name, item in value.items():
            found |= leaves(item, f"{prefix}.{name}" if prefix else str(name))
        return found
    return {} if value is None else {prefix: str(value)}


def differences(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[str]:
    """The changed fields, one a line."""
    before = leaves({k: v for k, v in (old or {}).items() if k not in ("name", "version")})
    after = leaves(new)
    lines = []
    for path in sorted(before.keys() | after.keys()):
        was, wanted = before.get(path), after.get(path)
        if was in (wanted, "(secret)"):
            continue
        lines += [f"  - {path}: {was}"] if was is not None else []
        lines += [f"  + {path}: {wanted}"] if wanted is not None else []
    return lines


def _present(client: Client, path: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = client.request("GET", path)
    except ApiProblem as problem:
        if problem.status in _NOT_FOUND:
            return None
        raise
    return found


def apply(client: Client, path: str, specs: Iterable[tuple[str, Any]], *, dry_run: bool) -> list[dict[str, Any]]:
    """Upserts each declaration and returns what was done to it."""
    done = []
    for name, spec in specs:
        old = _present(client, f"{path}/{name}")
        changes = differences(old, spec)
        state = "new" if old is None else "changed" if changes else "same"
        version = None if old is None else old["version"]
        if not dry_run:
            version = client.request("PUT", f"{path}/{name}", spec)["version"]
        done.append({"name": name, "state": state, "version": version, "changes": changes})
    return done


def _command(section: str, path: str, what: str) -> click.Group:
    @click.group(section, help=f"{what} from files.")
    def group() -> None:
        pass

    @group.command("apply", help=f"Shows what changes and puts each of the {what.lower()} into force.")
    @click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
    @click.option("--dry-run", is_flag=True, help="Show the changes only.")
    @remote
    def apply_files(
        files: tuple[Path, ...],
        data: Path,
        tenant: str | None,
        token: str | None,
        url: str | None,
        *,
        dry_run: bool,
        as_json: bool,
    ) -> int:
        # Every file is read before anything is sent, so that a bad one changes nothing.
        specs = [item for file in files for item in read_declarations(file, section).items()]
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            done = apply(client, path, specs, dry_run=dry_run)
        lines = []
        for item in done:
            lines += [f"{item['name']}: {item['state']} (version {item['version']})", *item["changes"]]
        if dry_run:
            lines.append("dry run: nothing was changed")
        show({"dry_run": dry_run, section: done}, as_json=as_json, lines=lines)
        return 0

    return group


COMMANDS = {
    "classes": _command("classes", "/v1/data-classes", "Data classes"),
    "stores": _command("stores", "/v1/stores", "Stores"),
}
