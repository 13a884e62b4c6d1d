"""The folder of a file store, read without touching it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.reader import FolderReader
from ledger.errors import ObjectMissing, StoreDenied
from ledger.files import FileStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
segments = st.text("abz019-_", min_size=1, max_size=4)


@given(keys=st.sets(st.lists(segments, min_size=1, max_size=3).map("/".join), max_size=12), after=st.data())
@settings(max_examples=60, deadline=None)
def test_it_lists_what_the_store_lists_in_the_same_order(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], after: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("objects")
    store = FileStore(folder, clock=lambda: NOW, fsync=lambda _: None)
    kept = {key for key in keys if not any(other != key and other.startswith(f"{key}/") for other in keys)}
    for key in kept:
        store.put(key, key.encode(), lock_until=None)
    reader = FolderReader(folder)
    start = after.draw(st.sampled_from([None, *sorted(kept)]))
    assert list(reader.list("", start)) == list(store.list("", start))
    for key in kept:
        assert (reader.get(key), reader.head(key).size) == (key.encode(), len(key))
        assert reader.get(key, offset=1, length=1) == key.encode()[1:2]


def test_reading_makes_nothing(tmp_path: Path) -> None:
    reader = FolderReader(tmp_path / "nowhere")
    assert list(reader.list("a/")) == []
    with pytest.raises(ObjectMissing):
        reader.get("a/b")
    with pytest.raises(ObjectMissing):
        reader.head("a")
    assert not (tmp_path / "nowhere").exists()


def test_it_follows_no_link_out_of_the_folder_and_takes_no_key_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "a").symlink_to(tmp_path / "secret")
    reader = FolderReader(tmp_path / "objects")
    with pytest.raises(ObjectMissing):
        reader.get("a")
    for key in ("../secret", "/etc/passwd", ""):
        with pytest.raises(StoreDenied):
            reader.get(key)
