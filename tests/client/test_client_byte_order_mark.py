"""A byte order mark, which some editors write before UTF-8, is no part of what is imported."""

from __future__ import annotations

from codecs import BOM_UTF8
from datetime import UTC, datetime
from pathlib import Path

import pytest

from muniment.errors import MunimentError
from muniment.importers import encode_entry, read_entries

LINE = b'{"user":"a","conversation_id":"c","messages":[{"role":"user","content":"hi"}]}\n'
FILES = {
    "lines.jsonl": LINE * 2,
    "one.json": LINE,
    "list.json": b"[" + LINE + b"," + LINE + b"]",
    "profiles.json": b'{"u1":{"name":"x"},\n"u2":{"name":"y"}}',
    "steps.traj": b'{"user":"a","history":[{"role":"user","content":"go"}]}',
}


def entries(path: Path) -> list[bytes]:
    read = read_entries(
        path, data_class="transcript", subject_field="user", id_key=b"k" * 32, epoch=datetime(2026, 1, 1, tzinfo=UTC)
    )
    return [encode_entry(one) for one in read]


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_a_mark_is_imported_as_the_same_file_without(name: str, tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain" / name, tmp_path / "marked" / name
    for path, start in ((plain, b""), (marked, BOM_UTF8)):
        path.parent.mkdir()
        path.write_bytes(start + FILES[name])
    assert entries(plain)
    assert entries(marked) == entries(plain)


def test_a_mark_anywhere_else_is_a_fault(tmp_path: Path) -> None:
    for content in (LINE + BOM_UTF8 + LINE, BOM_UTF8 * 2 + LINE):
        (tmp_path / "bad.jsonl").write_bytes(content)
        with pytest.raises(MunimentError, match=r"not .*JSON"):
            entries(tmp_path / "bad.jsonl")
