"""Drivers are optional: nothing but their own stores needs them. Each case is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connectors.base import why_not_built

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = (
    "lance",
    "lancedb",
    "pyarrow",
    "chromadb",
    "chromadb_rust_bindings",
    "qdrant_client",
    "numpy",
    "redis",
    "mem0",
)
WITHOUT = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {DRIVERS!r}:
            raise ModuleNotFoundError('No module named ' + name, name=name)
sys.meta_path.insert(0, Missing())
"""


def run(program: str, *, without: bool = True) -> str:
    source = (WITHOUT if without else "") + program
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_command_line_and_server_start_without_any_driver() -> None:
    said = run(
        "from api.cli import main\nimport api.app\nfrom api.wiring import Services\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
    )
    assert "muniment" in said


def test_no_driver_is_loaded_by_the_service_itself() -> None:
    loaded = f"print(sorted(name for name in {DRIVERS!r} if name in sys.modules))"
    assert run(f"import sys, api.app, api.cli, connectors.base\n{loaded}", without=False).strip() == "[]"


def test_a_store_whose_driver_is_missing_says_what_to_install() -> None:
    said = run(
        "from connectors.base import open_connector, require_driver\n"
        "from connectors.errors import DriverMissing\n"
        "for kind in ('chroma', 'lancedb', 'redis'):\n"
        "    for call in (require_driver, lambda kind: open_connector(kind, {'path': '/srv/a'}, secrets=str)):\n"
        "        try:\n            call(kind)\n"
        "        except DriverMissing as missing:\n            print(missing)\n"
        "open_connector('qdrant', {'path': '/srv/a'}, secrets=str)\n"
    )
    lines = said.splitlines()
    assert len(lines) == 6
    for kind, line in zip(("chroma", "lancedb", "redis"), lines[::2], strict=True):
        assert line == f"store kind '{kind}' needs a driver that is not installed: install muniment-server[{kind}]"


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        ("qdrant", {"url": "http://h"}, "stores of kind qdrant with url are not built in this version"),
        ("lancedb", {"url": "http://h"}, "stores of kind lancedb with url are not built in this version"),
        ("qdrant", {"path": "/a"}, None),
        ("chroma", {"url": "http://h"}, None),
    ],
)
def test_a_store_that_cannot_be_driven_is_known_before_it_is_opened(
    kind: str, config: dict[str, str], why: str | None
) -> None:
    assert why_not_built(kind, config) == why
