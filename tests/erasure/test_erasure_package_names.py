"""When a package has its name on the disk: whole, registered, and while its artifact has not ended."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import sqlalchemy as sa
from sqlmodel import col

from erasure.exporting import _Making  # a pass of a worker that is killed in its middle
from erasure.footprint import end_footprints
from erasure.package_file import give_name, nameless_file
from erasure.packages import STORE
from registry import artifacts
from registry.models import Artifact
from tests.erasure.conftest import World


def waiting_for_its_package(world: World) -> None:
    request = world.ask(right="access")
    world.plan(request)
    world.approve(request)


def end_package(world: World) -> None:
    with world.parts.transactions(world.tenant.tenant_id) as session:
        [number] = session.scalars(sa.select(col(Artifact.id)).where(col(Artifact.store) == STORE))
        artifacts.bury(session, world.tenant.tenant_id, [number], "req_other", world.now)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_package_whose_artifact_ended_before_it_had_its_name_gets_none(
    world: World, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    world.note("n1", "what Ada asked to see")
    waiting_for_its_package(world)
    kept, named = _Making._keep, []

    def ends(self: _Making, *given: Any) -> str | None:
        artifact = kept(self, *given)
        if when == "before":
            end_package(world)
        return artifact

    def names(file: Any, path: Any) -> None:
        named.append(path)
        if when == "meanwhile":
            end_package(world)
        give_name(file, path)

    monkeypatch.setattr(_Making, "_keep", ends)
    monkeypatch.setattr("erasure.package_names.give_name", names)
    world.work(2)
    assert list((world.services.exports_folder / str(world.tenant.tenant_id)).iterdir()) == []
    assert len(named) == (when == "meanwhile"), "who dies here leaves nothing of what ended before"


def test_a_name_that_was_given_by_a_pass_that_died_goes_if_its_artifact_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No row led to the file, so that nothing ever erased it.
    world.note("n1", "what Ada asked to see")
    waiting_for_its_package(world)
    folder = world.services.exports_folder / str(world.tenant.tenant_id)

    def dies(file: Any, path: Any) -> None:
        give_name(file, path)
        raise SystemExit(9)

    with monkeypatch.context() as patched:
        patched.setattr("erasure.package_names.give_name", dies)
        with pytest.raises(SystemExit):
            world.work(1)
    unknown = folder / f"req_{'0' * 32}-1.zip"
    unknown.write_text("of a database that is not here any more")
    end_footprints(world.parts, world.tenant.tenant_id, world.now)
    assert len(list(folder.iterdir())) == 2, "its artifact is there"
    end_package(world)
    end_footprints(world.parts, world.tenant.tenant_id, world.now)
    assert list(folder.iterdir()) == [unknown]


def without_names(folder: Path) -> IO[bytes]:
    """A file as systems have it where none can be given a name."""
    return tempfile.TemporaryFile(dir=folder)


@pytest.mark.parametrize("made", [nameless_file, without_names])
def test_a_package_has_its_name_whole_and_on_the_disk_or_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Callable[[Path], IO[bytes]]
) -> None:
    path, synced, sync = tmp_path / "req_0-1.zip", [], os.fsync

    def watched(descriptor: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), path.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    for content in (b"of a pass before", b"whole"):
        synced.clear()
        with made(tmp_path) as file:
            file.write(content)
            give_name(file, path)
        assert set(synced[:-1]) == {(False, False)}, "the bytes, before anything leads to them"
        assert synced[-1] == (True, True), "then the name"
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(path.name, b"whole")]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_an_earlier_version_left_unfinished_goes_with_the_next_look_at_footprints(world: World) -> None:
    folder = world.services.exports_folder / str(world.tenant.tenant_id)
    folder.mkdir(parents=True)
    (folder / ".req_0123.part").write_text("half a package")
    end_footprints(world.parts, world.tenant.tenant_id, world.now)
    assert list(folder.iterdir()) == []
