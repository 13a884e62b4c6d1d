"""The import contracts are really checked: a tree that breaks one fails, ours does not."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "audit", "connectors", "erasure", "ledger", "muniment", "registry", "retention", "vault")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs import-linter with our contracts over the packages in `folder` alone."""
    program = (
        "import sys; sys.path[:0] = [sys.argv.pop(1)]; from importlinter.cli import lint_imports_command as c; c()"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(folder), "--config", str(REPOSITORY / "pyproject.toml"), "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    for module in ("entry", "log", "merkle"):
        (tmp_path / "ledger" / f"{module}.py").touch()
    return tmp_path


def test_an_orderly_tree_passes(tree: Path) -> None:
    (tree / "audit" / "verify.py").write_text("from ledger import entry\nfrom ledger.merkle import *\n")
    (tree / "erasure" / "plan.py").write_text("import retention\nimport vault\n")
    (tree / "api" / "app.py").write_text("import audit\nimport erasure\nimport fastapi\n")
    done = lint_imports(tree)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("audit/verify.py", "import ledger.log\n"),
        ("audit/verify.py", "import erasure\n"),
        ("erasure/execute.py", "import audit\n"),
        ("ledger/log.py", "import vault\n"),
        ("connectors/sql.py", "import registry\n"),
        ("registry/stores.py", "def f():\n    import retention\n"),
        ("retention/sweep.py", "from fastapi import Depends\n"),
        ("erasure/execute.py", "import apscheduler.triggers.cron\n"),
        ("muniment/spool.py", "from ledger import entry\n"),
        ("vault/vault.py", "import muniment\n"),
    ],
)
def test_an_import_against_the_architecture_fails(tree: Path, module: str, source: str) -> None:
    (tree / module).write_text(source)
    done = lint_imports(tree)
    assert done.returncode == 1, done.stdout
    assert "BROKEN" in done.stdout
