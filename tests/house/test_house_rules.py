"""House rules that no off-the-shelf linter knows, each where breaking it does harm, and each proven to bite.

Who may destroy: deciding and destroying are one path (DESIGN §6, §7), so nothing else may call a destroying method.
What the auditor stands on: the ledger's format modules import no writer, database or vendor (DESIGN §2).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "audit", "connectors", "erasure", "ledger", "registry", "retention", "vault")
VAULT_DESTRUCTION = frozenset({"delete_wrapped", "destroy", "destroy_due_keks", "drop_parts", "rotate_groups"})
VAULT_DESTROYER = "vault.destruction"  # its functions without the vault in front of them
# Execution decides each copy again and dispatches it in one transaction; nothing else may ask a store to erase.
DISPATCHERS = frozenset({"erasure/execute.py", "erasure/dispatch.py"})
# Repeats what the record says was destroyed, after the database was lost, and destroys nothing else.
DESTROYERS = frozenset({"erasure/execute.py", "registry/decided.py", "registry/rebuild.py"})
FORMAT_MODULES = (
    "entry", "merkle", "checkpoint", "tiles", "batches", "batches_v1", "objects", "errors", "tokens", "issuers", "der",
)  # fmt: skip
# The format needs hashes, canonical JSON and typed decoding, so that a stranger could write the checker again.
FORMAT_MAY_IMPORT = frozenset({"cryptography", "msgspec", "rfc8785", "zstandard"})
STANDARD_LIBRARY = frozenset(__import__("sys").stdlib_module_names)


def violations(path: str, source: str) -> list[str]:
    """Returns what the file at `path` (relative, with slashes) destroys without being allowed to.

    A method that is only named counts too, since whoever holds it can call it: `partial(c.erase, items)`,
    `getattr(c, "erase")`.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            name, line = node.attr, node.lineno
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "attrgetter", "methodcaller"):
            name, line = next((str(one.value) for one in node.args if isinstance(one, ast.Constant)), ""), node.lineno
        else:
            continue
        if name == "erase" and path not in DISPATCHERS and not path.startswith("connectors/"):
            found.append(f"{path}:{line} reaches .erase")
        if name in VAULT_DESTRUCTION and path not in DESTROYERS and not path.startswith("vault/"):
            found.append(f"{path}:{line} reaches .{name}")
    if path not in DESTROYERS and not path.startswith("vault/"):
        found += [f"{path}: imports {name}" for name in imported(source) if name.startswith(VAULT_DESTROYER)]
    return found


def imported(source: str) -> Iterator[str]:
    """Yields the full name of every module that the source imports, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def beyond_format(source: str) -> list[str]:
    """Returns the imports of a format module that reach beyond the format."""
    allowed = tuple(f"ledger.{name}" for name in FORMAT_MODULES)
    return [
        name
        for name in imported(source)
        if name.partition(".")[0] not in STANDARD_LIBRARY | FORMAT_MAY_IMPORT
        and not any(name == module or name.startswith(f"{module}.") for module in allowed)
        and name not in allowed
    ]


def sources() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for file in sorted((REPOSITORY / package).rglob("*.py")):
            yield file.relative_to(REPOSITORY).as_posix(), file.read_text(encoding="utf-8")


def test_only_the_executor_destroys() -> None:
    assert [line for path, source in sources() for line in violations(path, source)] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("api/jobs.py", "def sweep(connector, items):\n    return connector.erase(items)\n"),
        ("retention/sweep.py", "store.connector.erase([])\n"),
        ("erasure/plan.py", "async def f(v):\n    v.delete_wrapped('k')\n"),
        ("erasure/keeping.py", "v.drop_parts(s, 1, [])"),
        ("erasure/confirm.py", "self.vault.destroy_due_keks(now)\n"),
        ("registry/artifacts.py", "[vault.rotate_groups(g) for g in groups]\n"),
        ("erasure/execute_more.py", "connector.erase(items)\n"),
        ("erasure/desk.py", "act = connector.erase\nact(items)\n"),
        ("retention/sweep.py", "pool.submit(partial(connector.erase, items))\n"),
        ("api/jobs.py", "getattr(connector, 'erase')(items)\n"),
        ("retention/due.py", "methodcaller('drop_parts', session)(vault)\n"),
        ("retention/due.py", "vault.keks.destroy(tenant, 1, 2, now)\n"),
        ("erasure/footprint.py", "from vault.destruction import delete_rows\ndelete_rows(session)\n"),
    ],
)
def test_a_file_that_destroys_by_itself_is_named(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1
    assert violations(path, source)[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("erasure/execute.py", "connector.erase(items)\nvault.rotate_groups(g)\n"),
        ("connectors/sql.py", "self.inner.erase(items)\n"),
        ("vault/vault.py", "self.delete_wrapped(k)\nself.destroy_due_keks(n)\n"),
        ("api/routes/requests.py", "request.erased_at\nplan_erase(items)\n"),
    ],
)
def test_the_allowed_places_pass(path: str, source: str) -> None:
    assert violations(path, source) == []


ERASERS = ("erasure.dispatch", "erasure.execute", "erasure.keeping")
CHECKERS = ("erasure.confirm",)


def shared_path(path: str, source: str) -> list[str]:
    """Returns what who erases and who looks afterwards import of each other."""
    module = path.removesuffix(".py").replace("/", ".")
    others = CHECKERS if module in ERASERS else ERASERS if module in CHECKERS else ()
    return [name for name in imported(source) if any(name == one or name.startswith(f"{one}.") for one in others)]


def test_who_looks_whether_something_is_gone_imports_nothing_of_who_erased_it() -> None:
    # A certificate says so: «another module than the eraser».
    read = {path: source for path, source in sources() if path.startswith("erasure/")}
    assert {f"{name.replace('.', '/')}.py" for name in (*ERASERS, *CHECKERS)} <= read.keys()
    assert [line for path, source in read.items() for line in shared_path(path, source)] == []
    assert shared_path("erasure/confirm.py", "from erasure.dispatch import Dispatch\n") == ["erasure.dispatch.Dispatch"]
    assert shared_path("erasure/execute.py", "from erasure import confirm\n") == ["erasure.confirm"]


def test_the_format_the_auditor_reads_stands_alone() -> None:
    found = {
        f"ledger/{name}.py": beyond_format(file.read_text(encoding="utf-8"))
        for name in FORMAT_MODULES
        if (file := REPOSITORY / "ledger" / f"{name}.py").exists()
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    ["import boto3\n", "from ledger.log import Log\n", "from ledger import log\n", "def f():\n    import sqlalchemy\n"],
)
def test_a_format_module_that_reaches_beyond_the_format_is_seen(source: str) -> None:
    assert len(beyond_format(source)) == 1


def test_a_format_module_may_use_the_format_hashes_and_the_standard_library() -> None:
    source = "import hashlib\nimport rfc8785\nfrom ledger.errors import BadEntry\nfrom ledger import merkle\n"
    assert beyond_format(source) == []


def test_every_module_opens_with_what_it_guarantees() -> None:
    bare = [path for path, source in sources() if source.strip() and ast.get_docstring(ast.parse(source)) is None]
    assert bare == []


def test_test_files_have_unique_names() -> None:
    names: dict[str, list[str]] = {}
    for file in (REPOSITORY / "tests").rglob("test_*.py"):
        names.setdefault(file.name, []).append(file.relative_to(REPOSITORY).as_posix())
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}


def test_nothing_is_named_for_nothing() -> None:
    vague = re.compile(r"^(utils?|common|helpers?|manager|misc)$")
    named = [path for path, _ in sources() if any(vague.match(part.removesuffix(".py")) for part in path.split("/"))]
    bases = [path for path, _ in sources() if path.endswith("/base.py") and path != "connectors/base.py"]
    assert named + bases == []
