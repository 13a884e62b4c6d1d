"""The fold to a transcript: exact bodies, a verdict per entry, and no hole without its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from audit.corruptions import Copy
from audit.findings import Integrity
from audit.forge import StandInKey, note_of
from audit.proof import verify_entry
from audit.render import html_page, text_lines
from audit.replay import Content, Gap, Replayed, StoredEntry, Transcript, Unsealed, fold, transcript_json
from ledger.checkpoint import format_checkpoint, sign_note
from ledger.entry import Header, Kind, encode_header, header_hash
from ledger.errors import BadProof, BadSignature, MalformedHeader, MalformedNote
from ledger.merkle import inclusion_proof, root


def stored(log: Copy, stream: int, *, size: int | None = None) -> list[StoredEntry]:
    """Return a stream's entries as a store has them, proven against the head of a size."""
    leaves = [header_hash(encode_header(header)) for header in log.history.headers[:size]]
    found = []
    for index, header in enumerate(log.history.headers):
        if header.stream != f"{stream:032x}":
            continue
        payload = [log.bucket.objects.get(log.history.prefix + part.object) for part in header.parts]
        found.append(
            StoredEntry(
                index=index,
                header=encode_header(header),
                ciphertexts=[
                    None if data is None else data[part.offset : part.offset + part.length]
                    for data, part in zip(payload, header.parts, strict=True)
                ],
                inclusion=inclusion_proof(index, len(leaves), leaves) if index < len(leaves) else None,
            )
        )
    return found


def body_of(header: Header) -> bytes:
    return b'{"content":  "turn %d"}' % header.position


def unseal(entry: StoredEntry, header: Header) -> Unsealed:
    return Unsealed(parts=[Content(name="body", role="part.0", data=body_of(header))], facts={"agent": "bot"})


def folded(log: Copy, entries: Sequence[StoredEntry], *, size: int | None = None, **options: Any) -> Transcript:
    options.setdefault("next_position", len(entries))
    opener = options.pop("unseal", unseal)
    note = note_of(log.history, size or len(log.history.headers), log.key)
    return fold("conv_1", entries, opener, note=note, vkey=log.key.vkey, stream_id=f"{1:032x}", **options)


def states(transcript: Transcript) -> list[str]:
    return [one.integrity.value for one in transcript.entries]


def test_a_whole_stream_is_complete_and_every_body_is_the_bytes_that_arrived(small_log: Copy) -> None:
    found = folded(small_log, stored(small_log, 1))
    assert found.complete
    assert states(found) == ["verified"] * 7
    document = msgspec.json.encode(transcript_json(found))
    for one in found.entries:
        assert isinstance(one.header, Header)
        assert body_of(one.header) in document
    read = msgspec.json.decode(document)
    assert read["entries"][2] == {
        "index": 7,
        "integrity": "verified",
        "id": small_log.history.headers[7].id,
        "position": 2,
        "kind": "turn.user",
        "at": "2026-03-01T12:00:07.000000Z",
        "received": "2026-03-01T12:00:07.000000Z",
        "data_class": "transcript",
        "agent": "bot",
        "body": {"content": "turn 2"},
    }
    assert read["gaps"] == []
    assert read["checkpoint"].startswith("muniment/")


@given(st.sets(st.integers(0, 6), min_size=1, max_size=6))
def test_every_left_out_position_is_a_gap_and_nothing_else_is(small_log: Copy, left_out: set[int]) -> None:
    entries = [entry for number, entry in enumerate(stored(small_log, 1)) if number not in left_out]
    found = folded(small_log, entries, next_position=7)
    assert not found.complete
    assert {at for gap in found.gaps for at in range(gap.first, gap.last + 1)} == left_out
    assert {gap.kind for gap in found.gaps} == {"position"}


def test_a_position_that_stands_there_twice_is_told_and_the_stream_is_not_complete(small_log: Copy) -> None:
    entries = stored(small_log, 1)
    found = folded(small_log, [*entries[:3], entries[2], *entries[3:]], next_position=7)
    assert [(gap.kind, gap.first, gap.last) for gap in found.gaps] == [("repeated", 2, 2)]
    assert not found.complete
    assert any("position 2 stands there twice" in line for line in text_lines(rendered(found)))


def test_a_page_is_never_complete_and_claims_no_gap_outside_itself(small_log: Copy) -> None:
    found = folded(small_log, stored(small_log, 1)[2:5], after=1, whole=False, next_position=None)
    assert found.gaps == ()
    assert not found.complete


def test_an_entry_that_no_head_covers_yet_is_unanchored_and_still_shown(small_log: Copy) -> None:
    found = folded(small_log, stored(small_log, 1, size=10), size=10)
    assert states(found) == ["verified"] * 3 + ["unanchored"] * 4
    assert found.complete
    found = fold("conv_1", stored(small_log, 1), unseal, next_position=7)
    assert set(states(found)) == {"unanchored"}


def test_an_altered_header_shows_nothing_of_its_entry(small_log: Copy) -> None:
    entries = stored(small_log, 1)
    header = small_log.history.headers[entries[1].index]
    entries[1] = replace(entries[1], header=encode_header(structs.replace(header, kind=Kind.NOTE)))
    entries[2] = replace(entries[2], header=b"{}")
    found = folded(small_log, entries)
    assert states(found)[1:3] == ["altered", "altered"]
    assert found.entries[1].parts == ()
    assert not found.complete
    assert found.gaps == ()


def test_an_entry_of_another_stream_is_not_taken_for_one_of_this(small_log: Copy) -> None:
    entries = stored(small_log, 1)
    entries[3] = stored(small_log, 2)[3]
    assert states(folded(small_log, entries))[3] == "altered"


def test_a_part_is_compared_before_anything_of_it_is_shown(small_log: Copy) -> None:
    entries = stored(small_log, 1)
    sealed = entries[0].ciphertexts
    assert sealed is not None
    entries[0] = replace(entries[0], ciphertexts=[bytes(len(sealed[0] or b"")), sealed[1]])
    entries[1] = replace(entries[1], ciphertexts=[None, sealed[1]])
    found = folded(small_log, entries)
    assert states(found)[:2] == ["altered", "missing"]
    assert found.entries[0].parts[0].data is None
    assert not found.complete


@pytest.mark.scenario("L18")
@pytest.mark.parametrize("state", [Integrity.ERASED, Integrity.EXPIRED, Integrity.WITHHELD])
def test_a_hole_that_is_explained_leaves_a_transcript_complete(small_log: Copy, state: Integrity) -> None:
    def gone(entry: StoredEntry, header: Header) -> Unsealed:
        if header.position != 3:
            return unseal(entry, header)
        content = Content(name="body", role="part.0", state=state, because="request req_1")
        return Unsealed(parts=[content], facts={"model": "m-1"})

    entries = stored(small_log, 1)
    entries[3] = replace(entries[3], ciphertexts=None if state is Integrity.WITHHELD else [None, None])
    found = folded(small_log, entries, unseal=gone)
    assert states(found)[3] == state.value
    assert found.entries[3].because == "request req_1"
    assert found.complete
    shown = transcript_json(found)["entries"][3]
    assert "body" not in shown
    assert shown["model"] == "m-1"


def test_parts_are_shown_one_by_one_with_their_own_state(small_log: Copy) -> None:
    def two(entry: StoredEntry, header: Header) -> Unsealed:
        del entry, header
        said = Content(name="user", role="part.0", data=b'"hi"', data_class="transcript")
        blob = Content(name="voice", role="skeleton", form="blob", data=b"\x00\x01", data_class="voice")
        gone = Content(name="agent", state=Integrity.ERASED, because="request req_1", data_class="transcript")
        return Unsealed(parts=[said, blob, gone])

    found = folded(small_log, stored(small_log, 1), unseal=two)
    shown = msgspec.json.decode(msgspec.json.encode(transcript_json(found)))["entries"][0]["parts"]
    assert shown == [
        {"name": "user", "data_class": "transcript", "integrity": "verified", "body": "hi"},
        {"name": "voice", "data_class": "voice", "integrity": "verified", "blob": "AAE="},
        {"name": "agent", "data_class": "transcript", "integrity": "erased", "because": "request req_1"},
    ]


def test_a_noncanonical_body_is_shown_as_its_exact_bytes(small_log: Copy) -> None:
    entries = [replace(one, noncanonical=True) for one in stored(small_log, 1)]
    shown = transcript_json(folded(small_log, entries))["entries"][0]
    assert "body" not in shown
    assert shown["body_raw"] == "eyJjb250ZW50IjogICJ0dXJuIDAifQ=="


def test_a_closed_stream_that_counts_more_than_there_is_has_a_gap(make_log: Any) -> None:
    log = make_log()
    headers = list(log.history.headers)
    last = max(index for index, header in enumerate(headers) if header.stream == f"{1:032x}")
    headers[last] = structs.replace(headers[last], kind=Kind.STREAM_CLOSED)
    closed = Copy(
        history=replace(log.history, headers=tuple(headers)),
        bucket=log.bucket,
        hot=log.hot,
        key=log.key,
        forger=log.forger,
    )
    entries = stored(closed, 1)

    def count(number: object) -> Transcript:
        def opened(entry: StoredEntry, header: Header) -> Unsealed:
            is_last = header.kind == Kind.STREAM_CLOSED
            data = msgspec.json.encode({"count": number}) if is_last else body_of(header)
            return Unsealed(parts=[Content(name="body", role="part.0", data=data)])

        return folded(closed, entries, unseal=opened)

    assert count(6).complete
    assert count(7).complete
    assert count("many").complete
    assert count(9).gaps == (Gap(kind="closed", first=6, last=8),)
    assert not count(9).complete


def test_a_recorders_hole_is_a_gap_only_when_no_other_stream_explains_it(small_log: Copy) -> None:
    entries = stored(small_log, 1)  # the one recorder of the log counts over all three streams
    found = folded(small_log, entries)
    assert found.complete
    assert [(hole.first, hole.last) for hole in found.seq_holes][:2] == [(2, 3), (5, 6)]
    assert folded(small_log, entries, elsewhere=lambda _recorder, first, last: last - first + 1).complete
    found = folded(small_log, entries, elsewhere=lambda _recorder, first, _last: 2 if first != 5 else 1)
    assert found.gaps == (Gap(kind="recorder", first=5, last=6, recorder="ab" * 8),)
    assert not found.complete


def test_a_repeated_number_is_reported_and_refused_by_nobody(make_log: Any) -> None:
    log = make_log()
    headers = [structs.replace(header, seq=header.position // 2) for header in log.history.headers]
    twice = replace(log, history=replace(log.history, headers=tuple(headers)))
    found = folded(twice, stored(twice, 1))
    assert found.complete
    assert [(one.seq, len(one.entries)) for one in found.repeats] == [(0, 2), (1, 2), (2, 2)]


# ── one entry against one head ──


@pytest.mark.scenario("L5", "L6")
def test_an_entry_is_proven_by_the_head_of_its_own_tree_and_by_no_other(small_log: Copy) -> None:
    leaves = [header_hash(encode_header(header)) for header in small_log.history.headers]
    raw = encode_header(small_log.history.headers[4])
    path = inclusion_proof(4, 15, leaves)
    good = {"index": 4, "inclusion": path, "note": note_of(small_log.history, 15, small_log.key)}
    assert verify_entry(raw, vkey=small_log.key.vkey, **good) == small_log.history.headers[4]  # type: ignore[arg-type]

    def refused(error: type[Exception], header: bytes = raw, key: str = small_log.key.vkey, **changes: Any) -> None:
        with pytest.raises(error):
            verify_entry(header, vkey=key, **{**good, **changes})

    refused(BadProof, note=note_of(small_log.history, 20, small_log.key))
    refused(BadProof, index=5)
    refused(BadProof, inclusion=path[:-1])
    refused(BadProof, header=encode_header(small_log.history.headers[5]))
    refused(MalformedHeader, header=b"x")
    refused(MalformedNote, note=b"")
    refused(BadSignature, note=note_of(small_log.history, 15, small_log.forger))
    foreign = StandInKey("muniment/other")
    refused(BadSignature, note=sign_note(format_checkpoint(small_log.key.name, 15, root(leaves[:15])), [foreign]))
    refused(BadSignature, note=sign_note(format_checkpoint("muniment/other", 15, root(leaves[:15])), [small_log.key]))


def test_a_replay_under_a_head_that_nobody_signed_is_refused(small_log: Copy) -> None:
    note = note_of(small_log.history, 20, small_log.forger)
    with pytest.raises(BadSignature):
        fold("conv_1", stored(small_log, 1), unseal, note=note, vkey=small_log.key.vkey)


# ── for a reader ──


def rendered(transcript: Transcript) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(transcript_json(transcript)))
    return found


def test_the_text_carries_a_mark_per_entry_and_the_holes_in_their_place(small_log: Copy) -> None:
    entries = stored(small_log, 1)
    lines = list(text_lines(rendered(folded(small_log, [*entries[:2], *entries[4:]], next_position=7))))
    assert lines[0].startswith("✓    0")
    assert lines[1].strip() == "turn 0"
    assert lines[4] == "∅ positions 2 to 3 are missing and nothing explains it"
    assert lines[-1] == "not complete: 5 entries (5 verified)"


def test_no_body_can_move_a_terminal_or_become_markup(small_log: Copy) -> None:
    def hostile(entry: StoredEntry, header: Header) -> Unsealed:
        del entry, header
        data = msgspec.json.encode({"content": "\x1b[2J<script>alert(1)</script>\r\n\u202ex", "n": 1})
        return Unsealed(parts=[Content(name="body", role="part.0", data=data)], facts={"agent": "\x1b[31m<b>"})

    found = rendered(folded(small_log, stored(small_log, 1), unseal=hostile))
    text = "\n".join(text_lines(found))
    assert not {char for char in text if not char.isprintable()} - {"\n"}
    page = html_page(found)
    assert "<script" not in page
    assert "http" not in page.replace("utf-8", "")
    assert sha256(page.encode()).digest() == sha256(html_page(found).encode()).digest()


def test_what_cannot_be_shown_says_why_in_the_text(small_log: Copy) -> None:
    def gone(entry: StoredEntry, header: Header) -> Unsealed:
        del entry, header
        return Unsealed(parts=[Content(name="body", state=Integrity.ERASED, because="request req_1")])

    lines = list(text_lines(rendered(folded(small_log, stored(small_log, 1), unseal=gone))))
    assert "[erased]" in lines[0]
    assert lines[1].strip() == "(request req_1)"
    assert isinstance(folded(small_log, stored(small_log, 1)).entries[0], Replayed)
