"""The power goes: a key that something was sealed under is in the key folder still."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.ledger.test_ledger_files_power import Disk
from vault.durable import create_once, private_folder
from vault.keks import KekStore
from vault.providers import FileRoot

MAY = datetime(2026, 5, 4, tzinfo=UTC)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk(tmp_path)
    monkeypatch.setattr(os, "fsync", made)
    return made


@pytest.mark.scenario("L9")
def test_the_keys_of_a_group_and_every_folder_above_them_are_left(disk: Disk) -> None:
    # All rows wrapped under it would have been lost for ever with the name of a folder.
    keks = KekStore(disk.root / "away" / "keys", FileRoot(disk.root / "away" / "keys", clock=lambda: MAY))
    keks.create("7", 1, 1)
    keks.lookup_key("7")
    keks.signing_seed("log")
    files = [path for path in (disk.root / "away").rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) >= 4
    for path in files:
        assert disk.left(path.relative_to(disk.root).as_posix()) == path.read_bytes(), path.name


def test_a_destroyed_key_does_not_come_back_without_its_tombstone(disk: Disk) -> None:
    keks = KekStore(disk.root / "keys", FileRoot(disk.root / "keys", clock=lambda: MAY))
    keks.create("7", 1, 1)
    [path] = disk.root.glob("keys/kek/7/group-*.kek")
    key, tombstone = (path.with_suffix(end).relative_to(disk.root).as_posix() for end in (".kek", ".gone"))

    def look() -> None:
        assert disk.left(key) or disk.left(tombstone)

    assert disk.left(key)
    disk.at_each = look
    keks.destroy("7", 1, 1, MAY)
    assert (disk.left(key), disk.left(tombstone) is not None) == (None, True)


def test_a_key_that_another_process_made_a_moment_ago_is_left_too(disk: Disk) -> None:
    path = private_folder(disk.root / "keys") / "a.key"
    path.write_bytes(b"theirs")
    assert not create_once(path, b"ours")
    assert disk.left("keys/a.key") is not None
    assert path.read_bytes() == b"theirs"
