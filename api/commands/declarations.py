"""`muniment classes apply` and `muniment stores apply`: files of declarations, a diff first, then an upsert.

Guarantees: every declaration of every file is read here and judged by the server (`?dry_run=true`) before the first one
is put into force, so that a bad one changes nothing. What fails later all the same ends with the list of what was
applied and what was not. Exit codes: 0 applied, or nothing to change; 1 refused; 2 could not run.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from api.commands.failures import explain
from api.commands.options import CannotRun, Listed, client_of, remote, show
from api.commands.terminal import say
from muniment.errors import ApiProblem, MunimentError
from muniment.registry import Client

_NOT_FOUND = 404


@dataclass(slots=True, kw_only=True)
class Change:
    """One declaration: what it changes, and what became of it."""

    name: str
    state: str
    version: int | None
    changes: list[str]
    applied: bool = False


@dataclass(slots=True, kw_only=True)
class Refusal:
    """One declaration that the server refuses, in its words."""

    name: str
    status: int | None
    detail: str
    errors: list[dict[str, Any]] = field(default_factory=list)


class _Once(yaml.SafeLoader):
    """Reads YAML in which no name is given twice; the format's own readers take the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - theirs
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise yaml.constructor.ConstructorError(
                    None, None, "a name is given twice", node.value[number][0].start_mark
                )
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


def read_declarations(path: Path, section: str) -> dict[str, Any]:
    """Returns name → declaration of a YAML or TOML file: at the top, or below `classes` or `stores`.

    Raises:
        CannotRun: the file cannot be read or is not a mapping of names.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = tomllib.loads(text) if path.suffix == ".toml" else yaml.load(text, Loader=_Once)  # noqa: S506 - a safe one
    except OSError as error:
        message = f"{path}: {(error.strerror or 'not readable').lower()}"
        raise CannotRun(message) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        what = f": {error.problem}" if isinstance(error, yaml.constructor.ConstructorError) else ""
        message = f"{path}: not readable as {'TOML' if path.suffix == '.toml' else 'YAML'}{where}{what}"
        raise CannotRun(message) from None
    except RecursionError:
        message = f"{path}: nested too deep, or an alias stands within itself"
        raise CannotRun(message) from None
    if isinstance(found, dict) and isinstance(found.get(section), dict):
        found = found[section]
    elif isinstance(found, dict) and found.get(section) is None and {"classes", "stores"} & found.keys():
        found = {}
    if not isinstance(found, dict) or not all(isinstance(value, dict) for value in found.values()):
        message = f"{path}: expected names with their declarations, at the top or below `{section}:`"
        raise CannotRun(message)
    if found and all(_is_of_the_other(spec, section) for spec in found.values()):
        other, what = ("classes", "data classes") if section == "stores" else ("stores", "stores")
        message = f"{path}: these are {what}: muniment {other} apply {path}"
        raise CannotRun(message)
    try:
        return {str(name): plain(spec) for name, spec in found.items()}
    except RecursionError:
        message = f"{path}: nested too deep, or an alias stands within itself"
        raise CannotRun(message) from None


def _is_of_the_other(spec: Mapping[str, Any], section: str) -> bool:
    """Whether a declaration has what every class needs and no store knows, or the other way about."""
    is_class, is_store = "retention" in spec and "kind" not in spec, {"kind", "config"} <= spec.keys()
    return is_class if section == "stores" else is_store and "retention" not in spec


def plain(value: Any) -> Any:
    """The value as JSON can say it: dates become RFC 3339 text."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.isoformat() if hasattr(value, "isoformat") else value


def leaves(value: Any, prefix: str = "") -> dict[str, str]:
    """A declaration as path → text, for comparison; null means absent. Unequal values are never written alike."""
    if isinstance(value, Mapping) and (value or not prefix):
        found: dict[str, str] = {}
        for name, item in value.items():
            found |= leaves(item, f"{prefix}.{name}" if prefix else str(name))
        return found
    if value is None:
        # In a JSON Schema it is a value like any other.
        return {prefix: "null"} if prefix.startswith("schema.") else {}
    return {prefix: value if isinstance(value, str) and not _is_json(value) else json.dumps(value, sort_keys=True)}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


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


def read_all(files: Sequence[Path], section: str) -> dict[str, Any]:
    """Returns the declarations of all files. Raises CannotRun: a file is bad, or two declare the same name."""
    found: dict[str, Any] = {}
    origin: dict[str, Path] = {}
    for file in files:
        for name, spec in read_declarations(file, section).items():
            if name in found:
                message = f"{file}: {name} is declared in {origin[name]} already"
                raise CannotRun(message)
            found[name], origin[name] = spec, file
    return found


def judge(client: Client, path: str, specs: Mapping[str, Any]) -> tuple[list[Change], list[Refusal]]:
    """What each declaration would change, and those that the server refuses; changes nothing."""
    changes: list[Change] = []
    refused: list[Refusal] = []
    for name, spec in specs.items():
        try:
            old = _present(client, f"{path}/{name}")
            judged = client.request("PUT", f"{path}/{name}?dry_run=true", spec)
        except ApiProblem as problem:
            detail = f"{problem.title}: {problem.detail}".rstrip(": ")
            refused.append(Refusal(name=name, status=problem.status, detail=detail, errors=list(problem.errors or [])))
            continue
        lines = differences(old, spec)
        state = "new" if old is None else "changed" if judged["version"] != old["version"] else "same"
        changes.append(Change(name=name, state=state, version=judged["version"], changes=lines))
    return changes, refused


def apply(client: Client, path: str, specs: Mapping[str, Any], changes: Sequence[Change]) -> None:
    """Puts each declaration into force and marks it so. Raises the first error; what is marked stays in force."""
    for change in changes:
        change.version = client.request("PUT", f"{path}/{change.name}", specs[change.name])["version"]
        change.applied = True


def _present(client: Client, path: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = client.request("GET", path)
    except ApiProblem as problem:
        if problem.status == _NOT_FOUND:
            return None
        raise
    return found


def _lines(changes: Sequence[Change], refused: Sequence[Refusal]) -> list[str]:
    lines = []
    for change in changes:
        lines += [f"{change.name}: {change.state} (version {change.version})", *change.changes]
    for one in refused:
        # The detail tells all errors in one line; a list of them is read more easily.
        lines.append(f"{one.name}: refused ({one.status})" + ("" if one.errors else f": {one.detail}"))
        lines += [f"  {item.get('pointer', '')}: {item.get('detail', '')}" for item in one.errors]
    return lines


def _done(changes: Sequence[Change]) -> str:
    """What the command did: a declaration that is in force as it stands is no change."""
    done = [change.name for change in changes if change.state != "same"]
    same = len(changes) - len(done)
    if not done:
        return "nothing changed"
    return f"applied: {', '.join(done)}" + (f"; {same} unchanged" if same else "")


def _stopped(changes: Sequence[Change], error: str) -> list[str]:
    """What a reader needs to know when the work ended in the middle."""
    done = [change.name for change in changes if change.applied]
    rest = [change.name for change in changes if not change.applied]
    return [
        f"stopped at {rest[0]}: {error}",
        f"applied: {', '.join(done) or 'nothing'}",
        f"not applied: {', '.join(rest)}; run the same command again",
    ]


def _run(client: Client, section: str, path: str, specs: Mapping[str, Any], *, dry_run: bool, as_json: bool) -> int:
    changes, refused = judge(client, path, specs)
    told: dict[str, Any] = {"dry_run": dry_run, "refused": [asdict(one) for one in refused]}
    if not as_json:
        for line in _lines(changes, refused):
            say(line)
    code, end = 0, []
    if refused:
        code, end = 1, [f"nothing was applied: {len(refused)} of {len(specs)} declarations are refused"]
    elif dry_run:
        end = ["dry run: nothing was changed"]
    else:
        try:
            apply(client, path, specs, changes)
            end = [_done(changes)]
        except MunimentError as error:
            said, code = explain(error)
            end = _stopped(changes, said)
            told["stopped"] = end
    show({**told, section: [asdict(change) for change in changes]}, as_json=as_json, lines=end)
    return code


def _command(section: str, path: str, what: str) -> click.Group:
    @click.group(section, cls=Listed, help=f"{what} from files.")
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
        specs = read_all(files, section)
        with client_of(data=data, url=url, token=token, tenant=tenant) as client:
            return _run(client, section, path, specs, dry_run=dry_run, as_json=as_json)

    return group


COMMANDS = {
    "classes": _command("classes", "/v1/data-classes", "Data classes"),
    "stores": _command("stores", "/v1/stores", "Stores"),
}
