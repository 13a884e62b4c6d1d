"""Importing chat logs: exact bytes, file order, the same ids each time, nothing half sent, no values in errors."""

import hmac
import json
import os
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muniment import read_entries
from muniment.errors import ImportFault, UnsupportedShape
from muniment.importers import batches, encode_entry

KEY = b"0123456789abcdef"


def read(path: Path, subject_field: str | None = "user", **options: Any) -> list[dict[str, Any]]:
    settings = {"data_class": "transcript", "id_key": KEY, **options}
    return list(read_entries(path, subject_field=subject_field, **settings))


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def conversation(**members: Any) -> str:
    return json.dumps(
        {"user": "u1", "conversation_id": "c1", "messages": [{"role": "user", "content": "hi"}], **members}
    )


@pytest.fixture(scope="session")
def transcripts(shared_folder: Path) -> Path:
    return shared_folder / "transcripts"


def test_the_airline_conversations_come_whole_exact_and_in_order(transcripts: Path) -> None:
    path = transcripts / "airline_50.jsonl"
    entries = read(path, "subject_id")
    lines = path.read_bytes().splitlines()
    parsed = [json.loads(line) for line in lines]
    assert len(entries) == sum(1 + len(each["messages"]) for each in parsed)
    assert len({entry["id"] for entry in entries}) == len(entries)
    assert {entry["subjects"][0] for entry in entries} == {f"user:{each['subject_id']}" for each in parsed}
    position = iter(entries)
    for line, each in zip(lines, parsed, strict=True):
        note = next(position)
        assert (note["kind"], note["stream"]) == ("note", each["conversation_id"])
        assert msgspec.json.decode(note["body"]) == {name: value for name, value in each.items() if name != "messages"}
        for message in each["messages"]:
            entry = next(position)
            assert bytes(entry["body"]) in line
            assert msgspec.json.decode(entry["body"]) == message
            assert (entry["kind"] == "tool.call") == bool(message.get("tool_calls"))
    assert Counter(entry["kind"] for entry in entries)["turn.system"] == 50


def test_the_dialogues_of_an_array_come_with_their_scenario_first(transcripts: Path) -> None:
    entries = read(transcripts / "abcd_sample.json", "scenario.personal.customer_name")
    assert Counter(entry["kind"] for entry in entries) == {
        "turn.assistant": 32, "turn.user": 31, "tool.result": 9, "note": 3
    }  # fmt: skip
    assert msgspec.json.decode(entries[1]["body"]) == ["agent", "Hi!"]
    assert msgspec.json.decode(entries[0]["body"])["scenario"]["personal"]["customer_name"] == "crystal minh"


def test_a_field_missing_in_a_real_file_is_named_with_its_element(transcripts: Path) -> None:
    with pytest.raises(ImportFault) as caught:
        read(transcripts / "abcd_sample.json", "scenario.personal.email")
    assert (caught.value.line, caught.value.path) == (3, "scenario.personal.email")
    faults: list[ImportFault] = []
    kept = read(transcripts / "abcd_sample.json", "scenario.personal.email", skip_bad=True, on_bad=faults.append)
    assert len({entry["subjects"][0] for entry in kept}) == 2
    assert len(faults) == 1


def test_a_coding_agents_run_needs_no_subject(transcripts: Path) -> None:
    entries = read(transcripts / "sweagent_function_calling_simple.traj", None)
    assert [entry["kind"] for entry in entries][:4] == ["turn.system", "turn.user", "tool.call", "tool.result"]
    assert all("subjects" not in entry for entry in entries)


def test_profiles_are_notes_about_their_key_under_a_stream_that_does_not_name_it(transcripts: Path) -> None:
    path = transcripts / "taubench_airline_users.json"
    entries = read(path)
    whole = path.read_bytes()
    assert len(entries) == 34
    assert all(bytes(entry["body"]) in whole for entry in entries)
    assert "user:mia_li_3668" in {entry["subjects"][0] for entry in entries}
    assert not any("mia" in entry["stream"] for entry in entries)


def test_reading_twice_gives_the_same_bytes_and_another_key_gives_other_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", conversation(), conversation(conversation_id="c2"))
    first = [encode_entry(entry) for entry in read(path)]
    assert first == [encode_entry(entry) for entry in read(path)]
    others = read(path, id_key=b"another key, as long")
    assert not {entry["id"] for entry in others} & {json.loads(data)["id"] for data in first}


def test_an_id_cannot_be_computed_without_the_key(tmp_path: Path) -> None:
    made = read(write(tmp_path, "a.jsonl", conversation()))[0]
    tail = uuid.UUID(made["id"]).int & ((1 << 62) - 1)
    for guess in (b"", b"c1", b"0\0c1", b"muniment-import/v1\0entry\x000\0c1"):
        digest = hmac.digest(b"", guess, "sha256")
        assert int.from_bytes(digest[:8], "big") & ((1 << 62) - 1) != tail
    with pytest.raises(ValueError, match="16 bytes"):
        read(tmp_path / "a.jsonl", id_key=b"short")


def test_files_of_one_name_make_no_conversation_of_two(tmp_path: Path) -> None:
    # A log that is rotated under its name: what stood in line 1 last week was taken for the same conversation.
    streams = set()
    for week, said in (("1", "Ada's order"), ("2", "Bob's illness")):
        (tmp_path / week).mkdir()
        path = tmp_path / week / "chats.jsonl"
        path.write_text(json.dumps({"user": week, "messages": [{"role": "user", "content": said}]}))
        streams |= {entry["stream"] for entry in read(path)}
    assert len(streams) == 2


def test_times_are_the_messages_then_the_conversations_then_the_epoch_then_the_files(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "a", "timestamp": 1772366400}, {"role": "assistant", "content": "b"}]
    path = write(
        tmp_path, "a.jsonl",
        conversation(messages=messages, created_at="2026-02-01T00:00:00+01:00"),
        conversation(conversation_id="c2"),
    )  # fmt: skip
    os.utime(path, (1700000000, 1700000000))
    assert [entry["at"] for entry in read(path)] == [
        "2026-01-31T23:00:00.000000Z",
        "2026-03-01T12:00:00.000000Z",
        "2026-01-31T23:00:00.000000Z",
        "2023-11-14T22:13:20.000000Z",
        "2023-11-14T22:13:20.000000Z",
    ]
    assert read(path, epoch=datetime(2020, 1, 1, tzinfo=UTC))[-1]["at"] == "2020-01-01T00:00:00.000000Z"
    made = uuid.UUID(read(path)[1]["id"])
    assert made.version == 7
    assert made.int >> 80 == 1772366400_000


def test_lines_that_are_single_messages_share_the_stream_they_name(tmp_path: Path) -> None:
    lines = [json.dumps({"role": role, "content": "x", "user": "email:a@example.org", "chat": {"id": 7}})
             for role in ("user", "assistant", "user")]  # fmt: skip
    path = write(tmp_path, "m.jsonl", *lines)
    entries = read(path, stream_field="chat.id")
    assert [(entry["kind"], entry["stream"], entry["subjects"]) for entry in entries] == [
        ("turn.user", "7", ["email:a@example.org"]),
        ("turn.assistant", "7", ["email:a@example.org"]),
        ("turn.user", "7", ["email:a@example.org"]),
    ]
    assert len({entry["id"] for entry in entries}) == 3
    assert [bytes(entry["body"]).decode() for entry in entries] == lines
    with pytest.raises(ImportFault, match="name the field"):
        read(path)


@pytest.mark.parametrize(
    ("bad", "path"),
    [
        ('{"user": "secret-person", "messages": [', None),
        ('{"messages": [], "conversation_id": "secret-person"}', "user"),
        (conversation(user={"name": "secret-person"}), "user"),
        (conversation(user="secret-person*"), "user"),
        (conversation(messages={"secret-person": 1}), "messages"),
        (conversation(messages=[{"content": "secret-person"}]), "messages.0"),
        (conversation(created_at="2026-01-01T00:00:00"), "created_at"),
        (conversation(created_at="0001-01-01T00:00:00+14:00"), "created_at"),
        (conversation(created_at="secret-person").replace('"secret-person"', "1e400"), "created_at"),
        (conversation(user="secret-person").replace('"secret-person"', "9" * 5000), "user"),
        (conversation(messages=[{"role": 0}]).replace('"role": 0', '"role": 1e400'), "messages.0"),
        (conversation(more="secret-person").replace('"secret-person"', "[" * 5000 + "]" * 5000), None),
        ('["secret-person"]', None),
    ],
)
def test_a_bad_line_stops_the_file_before_its_first_entry_and_is_named_without_its_value(
    tmp_path: Path, bad: str, path: str | None
) -> None:
    file = write(tmp_path, "a.jsonl", conversation(), bad, conversation(conversation_id="c3"))
    with pytest.raises(ImportFault) as caught:
        next(read_entries(file, data_class="t", subject_field="user", id_key=KEY))
    assert (caught.value.line, caught.value.path) == (2, path)
    assert "secret-person" not in str(caught.value)
    faults: list[ImportFault] = []
    kept = read(file, skip_bad=True, on_bad=faults.append)
    assert [fault.line for fault in faults] == [2]
    assert {entry["stream"] for entry in kept} == {"c1", "c3"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"resourceSpans": []}'),
        ("a.jsonl", '{"resourceLogs": []}'),
        ("a.json", '{"unknown": 1}'),
        ("a.txt", "hello"),
        ("a.jsonl", ""),
    ],
)
def test_a_shape_that_is_not_read_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UnsupportedShape):
        read(write(tmp_path, name, text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"resourceSpans": []}'),
        ("a.jsonl", '{"resourceLogs": []}'),
        ("a.json", '{"resourceMetrics": []}'),
        ("a.json", '{"traces": {"resourceSpans": []}, "logs": {"resourceLogs": []}}'),
        ("a.json", '{"_comment": "a sample", "traces": {"resourceSpans": []}}'),
    ],
)
def test_telemetry_is_refused_as_not_built_yet_and_never_taken_for_people(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UnsupportedShape, match="cannot import OTLP/JSON: importing it is not built yet"):
        read(write(tmp_path, name, text))


def test_batches_hold_every_entry_once_within_their_bounds(transcripts: Path) -> None:
    entries = read(transcripts / "airline_50.jsonl", "subject_id")
    made = list(batches(iter(entries), max_entries=100, max_bytes=50_000))
    assert [each for ids, _ in made for each in ids] == [entry["id"] for entry in entries]
    for ids, body in made:
        assert [entry["id"] for entry in json.loads(body)["entries"]] == ids
        assert len(ids) <= 100
        assert len(body) <= 51_000 or len(ids) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool", "else"]), json_values), max_size=5))
def test_any_message_is_kept_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str, Any]]
) -> None:
    texts = [json.dumps({"role": role, "content": content}, indent=None) for role, content in messages]
    line = '{"user":"u","messages":[' + " ,".join(texts) + "]}"
    path = write(tmp_path_factory.mktemp("import"), "x.jsonl", line)
    entries = read(path)
    assert [bytes(entry["body"]).decode() for entry in entries[1:]] == texts
    assert msgspec.json.decode(entries[0]["body"]) == {"user": "u"}
