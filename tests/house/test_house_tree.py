"""What is in the tree: dependencies pinned by hash, packages that are typed, no place or secret of a machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECTS = ("pyproject.toml", "client/pyproject.toml")
OURS = frozenset({"muniment", "muniment-server"})
PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.-]*)(?:\[[a-z0-9,-]+\])?==(?P<version>[^ ;\\]+)(?P<rest>.*)", re.DOTALL)
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
FOREIGN = re.compile(
    r"(?:https?|file|git)\+?://|--(?:extra-)?index-url|--find-links|--trusted-host|(?:^|\s)-[ef] | @ ", re.MULTILINE
)
# Put together here, so that this file is looked at like any other.
HINTS = (
    *(f"/{name}/" for name in ("work", "root", "home")), "PRIVATE KEY-----", "AKIA", "mun_", "ghp_", "ghs_", "xoxb-",
    "xoxp-", "/simple",
)  # fmt: skip
PRIVATE = re.compile(
    r"(?<![A-Za-z0-9])/(?:work|root)/[A-Za-z.]|/home/(?!muniment\b)[a-z]|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\bAKIA[0-9A-Z]{16}\b|\bmun_[A-Za-z0-9_-]{24,}|\bgh[ps]_[A-Za-z0-9]{30,}|\bxox[bp]-[0-9A-Za-z-]{20,}"
    r"|/simple/?\s*$",
    re.MULTILINE,
)


def pins(lock: str) -> dict[str, tuple[str, int]]:
    """Version and number of hashes of each package. Raises: ValueError for a line that pins nothing."""
    found = {}
    for block in re.split(r"\n(?=[^ #\n])", lock.strip()):
        pin = PIN.fullmatch(block)
        if pin is None:
            raise ValueError(block[:80])
        found[pin["name"]] = (pin["version"].strip(), len(HASH.findall(pin["rest"])))
    return found


def wanted(project: dict[str, Any]) -> list[Requirement]:
    """Everything that a project asks for: to be built, to run, with any extra, to be worked on."""
    named = [*project["build-system"]["requires"], *project["project"].get("dependencies", [])]
    for extra in project["project"].get("optional-dependencies", {}).values():
        named += extra
    for group in project.get("dependency-groups", {}).values():
        named += group
    return [Requirement(one) for one in named]


def private(text: str) -> list[str]:
    """What in a text is a place of a machine or a secret; looks closely only where a word hints at one."""
    return PRIVATE.findall(text) if any(word in text for word in HINTS) else []


def test_every_dependency_is_pinned_by_hash_in_a_lock_without_addresses() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    assert FOREIGN.findall(lock) == []
    locked = pins(lock)
    assert {name for name, (_, hashes) in locked.items() if hashes == 0} == set()
    asked = [one for place in PROJECTS for one in wanted(tomllib.loads((REPOSITORY / place).read_text("utf-8")))]
    assert len(asked) > 30
    for one in asked:
        name = canonicalize_name(one.name)
        assert name in OURS or (name in locked and Version(locked[name][0]) in one.specifier), str(one)


@pytest.mark.parametrize(
    "line",
    ["--index-url https://x.example/simple", "-f ./wheels", "a @ file:///x.whl", "a==1\n    # from http://x.example"],
)
def test_an_address_in_a_lock_is_seen(line: str) -> None:
    assert FOREIGN.search(line)


def test_a_line_that_pins_nothing_is_seen() -> None:
    with pytest.raises(ValueError, match="b>=2"):
        pins("a==1 \\\n    --hash=sha256:" + "0" * 64 + "\nb>=2\n")


def test_every_package_says_that_it_is_typed() -> None:
    built = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    packages = set(built["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) - {"examples", "infra"}
    untyped = [one for one in (*packages, "client/src/muniment") if not (REPOSITORY / one / "py.typed").is_file()]
    assert untyped == []


def test_no_file_holds_a_place_of_a_machine_or_a_secret() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout of git")
    files = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    assert len(files) > 500
    found = [
        f"{file.relative_to(REPOSITORY)}: {match}"
        for file in files
        if file.is_file()
        for match in private(file.read_bytes().decode("utf-8", "replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [f"see /{'work'}/notes", f"open('/{'root'}/.ssh/id')", f"/{'home'}/ada/x", f"-----BEGIN EC {'PRIVATE'} KEY-----",
     "mun_" + "a" * 43, "index = https://mirror.example" + "/simple"],
)  # fmt: skip
def test_a_place_or_a_secret_is_seen(line: str) -> None:
    assert private(line)
