"""The file that lineage events go to: whole lines only, whatever was interrupted."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from api.lineage_feed import FileSink

EVENTS = [{"run": number, "job": "x" * number} for number in range(40)]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_that_only_the_owner_reads(tmp_path: Path) -> None:
    out = tmp_path / "lineage.jsonl"
    for event in EVENTS:
        FileSink(out).send([event])
    assert lines(out) == EVENTS
    assert out.stat().st_mode & 0o777 == 0o600


def test_half_a_line_of_a_crash_is_cut_off_before_its_event_comes_again(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    FileSink(whole).send(EVENTS[:3])
    data, out = whole.read_bytes(), tmp_path / "lineage.jsonl"
    for cut in range(len(data) + 1):
        out.write_bytes(data[:cut])
        FileSink(out).send(EVENTS[:3])
        assert lines(out) == EVENTS[: data[:cut].count(b"\n")] + EVENTS[:3]


def test_half_a_line_longer_than_what_is_read_at_once_is_found_whole(tmp_path: Path) -> None:
    out = tmp_path / "lineage.jsonl"
    first = json.dumps(EVENTS[1], sort_keys=True).encode() + b"\n"
    for before in (b"", first):
        out.write_bytes(before + b"{" + b"x" * 200_000)
        FileSink(out).send([EVENTS[2]])
        assert out.read_bytes() == before + json.dumps(EVENTS[2], sort_keys=True).encode() + b"\n"


def test_a_write_that_takes_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    FileSink(tmp_path / "lineage.jsonl").send(EVENTS)
    assert lines(tmp_path / "lineage.jsonl") == EVENTS
