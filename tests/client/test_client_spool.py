"""The spool: bounded, exact over restarts, honest about drops and damage."""

import errno
import mmap
import os
import stat
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muniment.errors import SpoolClosed, SpoolFull, SpoolLocked
from muniment.spool import Spool

SMALL = 16 << 10


def read_all(spool: Spool) -> list[bytes]:
    return [record.payload for record in spool.read(1 << 20, 1 << 30)]


def reason_dropped(spool: Spool, body: bytes) -> str | None:
    """Returns why the record was dropped, None if it was kept."""
    try:
        spool.append(body)
    except SpoolFull as full:
        return full.reason
    return None


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("seg-*"))


def test_records_come_back_in_order_with_growing_numbers(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    numbers = [spool.append(b"record %d" % index) for index in range(50)]
    assert numbers == list(range(1, 51))
    assert [(each.seq, each.payload) for each in spool.read(100, 1 << 20)] == [
        (index + 1, b"record %d" % index) for index in range(50)
    ]
    spool.close()


def test_numbers_go_on_after_a_restart_even_when_everything_was_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for _ in range(3):
        spool.append(b"x")
    spool.read(10, 1000)
    spool.acknowledge(3)
    spool.trim()
    spool.close()
    again = Spool(tmp_path / "s")
    assert read_all(again) == []
    assert again.append(b"y") == 4
    again.close()


def test_what_was_not_acknowledged_comes_again_after_a_restart_and_nothing_else(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=1 << 20, segment_bytes=SMALL)
    for index in range(40):
        spool.append(b"%04d" % index * 500)
    read = spool.read(25, 1 << 20)
    spool.acknowledge(read[-1].seq)
    spool.close()
    again = Spool(tmp_path / "s", max_bytes=1 << 20, segment_bytes=SMALL)
    assert again.pending == 15
    assert read_all(again) == [b"%04d" % index * 500 for index in range(25, 40)]
    again.close()


def test_segments_go_as_soon_as_all_their_records_are_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=1 << 20, segment_bytes=SMALL)
    for _ in range(30):
        spool.append(b"x" * 2000)
    before = len(segments(tmp_path / "s"))
    read = spool.read(1000, 1 << 20)
    spool.acknowledge(read[14].seq)
    assert 1 < len(segments(tmp_path / "s")) < before
    spool.acknowledge(read[-1].seq)
    assert len(segments(tmp_path / "s")) == 1
    spool.trim()
    assert segments(tmp_path / "s") == []
    spool.close()


def test_after_a_trim_no_acknowledged_byte_is_left_in_the_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(b"the canary sings")
    spool.prepare()
    spool.acknowledge(spool.read(10, 1000)[-1].seq)
    spool.trim()
    assert not [path for path in (tmp_path / "s").rglob("*") if path.is_file() and b"canary" in path.read_bytes()]
    spool.append(b"next")
    assert read_all(spool) == [b"next"]
    spool.close()


def test_trim_keeps_what_was_not_read_yet(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(b"one")
    spool.read(1, 1000)
    spool.append(b"two")
    spool.trim()
    assert read_all(spool) == [b"two"]
    spool.close()


def test_a_full_spool_drops_counts_and_keeps_within_its_bound(tmp_path: Path) -> None:
    bound = 4 * SMALL
    spool = Spool(tmp_path / "s", max_bytes=bound, segment_bytes=SMALL)
    kept = dropped = 0
    for _ in range(100):
        spool.prepare()
        reason = reason_dropped(spool, b"x" * 2000)
        assert reason in {None, "bound"}
        kept += reason is None
        dropped += reason is not None
        assert sum(path.stat().st_size for path in segments(tmp_path / "s")) <= bound
    assert kept > 20
    assert dropped == 100 - kept == spool.dropped == spool.unreported_drops
    spool.close()
    again = Spool(tmp_path / "s", max_bytes=bound, segment_bytes=SMALL)
    assert again.dropped == dropped
    assert again.last_seq == 100  # a drop uses up its number, so that the gap shows
    assert len(read_all(again)) == kept
    again.close()


def test_room_comes_back_when_records_are_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=2 * SMALL, segment_bytes=SMALL)
    assert "bound" in [reason_dropped(spool, b"x" * 2000) for _ in range(100)]
    assert not spool.has_room(4096)
    spool.acknowledge(spool.read(1000, 1 << 20)[-1].seq)
    spool.trim()
    assert spool.has_room(4096)
    assert spool.append(b"again") == spool.last_seq
    spool.close()


def test_a_record_larger_than_a_segment_gets_one_of_its_own_size(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=1 << 20, segment_bytes=SMALL)
    big = os.urandom(3 * SMALL)
    spool.append(b"before")
    spool.append(big)
    spool.append(b"after")
    assert [record.payload for record in spool.read(2, 100)] == [b"before"]
    assert read_all(spool) == [big, b"after"]
    spool.close()


def test_a_record_over_the_limit_is_dropped_by_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    with pytest.raises(SpoolFull) as caught:
        spool.append(bytes(16 << 20))
    assert caught.value.reason == "too_large"
    assert spool.append(b"fine") == 2
    spool.close()


def test_a_full_disk_is_a_counted_drop_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "s")

    def no_space(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    spool.prepare()
    with pytest.raises(SpoolFull) as caught:
        spool.append(b"x")
    assert caught.value.reason == "disk"
    monkeypatch.undo()
    assert segments(tmp_path / "s") == []
    assert spool.append(b"y") == 2
    assert spool.dropped == 1
    spool.close()


def test_where_mapping_fails_records_are_written_by_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.ENODEV, "this file system cannot map")

    monkeypatch.setattr(mmap, "mmap", refuse)
    spool = Spool(tmp_path / "s", segment_bytes=SMALL)
    spool.append(b"by call")
    assert spool._active is not None
    assert not spool._active.is_mapped
    assert read_all(spool) == [b"by call"]
    spool.close()


def test_damage_in_the_middle_is_reported_and_the_rest_still_comes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for index in range(5):
        spool.append(b"record %d" % index)
    spool.close()
    path = segments(tmp_path / "s")[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"record 2")] ^= 1
    path.write_bytes(data)
    again = Spool(tmp_path / "s")
    assert len(again.damages) == 1
    assert again.damages[0].segment == path.name
    assert read_all(again) == [b"record 0", b"record 1", b"record 3", b"record 4"]
    assert again.append(b"new") > 5
    again.close()


def test_damage_that_happens_while_running_is_reported_and_the_rest_still_comes(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for index in range(5):
        spool.append(b"record %d" % index)
    path = segments(tmp_path / "s")[0]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"record 1"))
        file.write(b"X")
    assert read_all(spool) == [b"record 0", b"record 2", b"record 3", b"record 4"]
    assert len(spool.damages) == 1
    spool.close()


@pytest.mark.scenario("L37")
def test_a_torn_tail_is_ignored_and_its_number_not_confused(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(b"whole")
    active = spool._active
    assert active is not None
    active.write(active.end + 20, b"a payload whose header never came")
    spool.close()
    again = Spool(tmp_path / "s")
    assert again.torn_tails == 1
    assert again.damages == []
    assert read_all(again) == [b"whole"]
    assert again.append(b"next") == 2
    again.close()


def test_a_state_file_that_is_lost_sends_again_instead_of_losing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for index in range(4):
        spool.append(b"%d" % index)
    spool.acknowledge(2)
    spool.close()
    (tmp_path / "s" / "state").write_bytes(b"garbage" * 30)
    again = Spool(tmp_path / "s")
    assert read_all(again) == [b"0", b"1", b"2", b"3"]
    assert again.append(b"4") == 5
    again.close()


@pytest.mark.scenario("L10")
def test_a_second_opening_of_the_folder_is_refused_also_in_one_process(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    with pytest.raises(SpoolLocked):
        Spool(tmp_path / "s")
    spool.close()
    Spool(tmp_path / "s").close()


def test_folder_and_files_are_for_their_owner_only(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.append(b"x")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()}
    assert modes == {0o600}
    spool.close()


def test_a_closed_spool_refuses_by_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.close()
    spool.close()
    with pytest.raises(SpoolClosed):
        spool.append(b"x")


@pytest.mark.scenario("L34")
def test_many_threads_lose_nothing_and_share_no_number(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", max_bytes=64 << 20, segment_bytes=1 << 16)
    numbers: list[list[int]] = [[] for _ in range(8)]

    def work(index: int) -> None:
        numbers[index] += [spool.append(b"%d:%d" % (index, count), b"%d|") for count in range(500)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    read: list[bytes] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        read += [record.payload for record in spool.read(100, 1 << 16)]
    read += read_all(spool)
    for thread in threads:
        thread.join()
    assert sorted(number for each in numbers for number in each) == list(range(1, 4001))
    assert [int(payload.split(b"|")[0]) for payload in read] == list(range(1, 4001))
    assert len(set(read)) == 4000
    spool.close()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9000)),
        st.tuples(st.just("read"), st.integers(1, 20)),
        st.tuples(st.sampled_from(["ack", "trim", "reopen", "prepare"]), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(operations)
def test_any_use_keeps_the_queue_exact(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """A list is the model: what was appended and not acknowledged comes, in order, once an opening."""
    folder = tmp_path_factory.mktemp("spool") / "s"
    spool = Spool(folder, max_bytes=6 * SMALL, segment_bytes=SMALL)
    waiting: list[tuple[int, bytes]] = []
    in_flight: list[tuple[int, bytes]] = []
    attempts = 0
    for step, size in steps:
        if step == "append":
            attempts += 1
            body = attempts.to_bytes(4, "big") + b"x" * size
            reason = reason_dropped(spool, body)
            assert reason in {None, "bound"}
            if reason is None:
                waiting.append((spool.last_seq, body))
        elif step == "read":
            got = [tuple(record) for record in spool.read(size, 1 << 15)]
            assert got == waiting[: len(got)]
            assert got or not waiting
            in_flight += waiting[: len(got)]
            del waiting[: len(got)]
        elif step == "ack" and in_flight:
            spool.acknowledge(in_flight[-1][0])
            spool.settle(len(in_flight))
            in_flight.clear()
        elif step == "trim" and not in_flight:
            spool.trim()
        elif step == "prepare":
            spool.prepare()
        elif step == "reopen":
            spool.close()
            spool = Spool(folder, max_bytes=6 * SMALL, segment_bytes=SMALL)
            waiting = in_flight + waiting
            in_flight = []
            assert spool.pending == len(waiting)
        assert spool.last_seq == attempts
        assert spool.bytes_used() <= 6 * SMALL
    spool.close()
