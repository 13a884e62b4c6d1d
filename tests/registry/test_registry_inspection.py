"""Gaps that only content shows: bodies in checkpoints, deliberation, prompts kept whole, bare hashes."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.inspection import (
    BARE_HASH,
    BODY_IN_CHECKPOINT,
    DELIBERATION,
    LARGE_PROMPT,
    MAX_DEPTH,
    gaps_in,
    hashes_of,
)

LONG = "Please refund order 4711, it arrived broken and I want my money back."
NOBODY: frozenset[str] = frozenset()


def gaps(content: Any, state: str = "checkpoint", hashes: frozenset[str] = NOBODY) -> set[str]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return set(gaps_in(data, state=state, hashes=hashes))


@pytest.mark.parametrize(
    "content",
    [
        {"channel_values": {"messages": [{"role": "user", "content": LONG}]}},
        {"history": [LONG]},
        {"state": {"last": {"type": "human", "content": LONG}}},
        msgspec.msgpack.encode({"v": 1, "channel_values": {"messages": [{"role": "user", "content": LONG}]}}),
        msgspec.msgpack.encode({"v": {"inner": msgspec.msgpack.encode({"messages": [{"content": LONG}]})}}),
        msgspec.msgpack.encode([msgspec.msgpack.Ext(5, msgspec.msgpack.encode({"messages": [LONG]}))]),
        b"\xff\xfe not a format: content: '" + LONG.encode() + b"'",
    ],
)
def test_a_checkpoint_that_holds_a_body_is_found_in_any_format(content: Any) -> None:
    assert BODY_IN_CHECKPOINT in gaps(content)
    assert BODY_IN_CHECKPOINT not in gaps(content, state="conversation")


@pytest.mark.parametrize(
    "content",
    [
        {"channel_values": {"messages": [{"role": "user", "ref": "entry:019e"}]}, "step": 4},
        {"phase": "confirm", "text": "short"},
        {"messages": []},
        b"",
        b"null",
        b"\x00\x01\x02",
    ],
)
def test_a_checkpoint_that_only_refers_is_in_order(content: Any) -> None:
    assert gaps(content) == set()


@pytest.mark.parametrize(
    "content",
    [
        {"reasoning": "first I will look at the order"},
        {"parts": [{"type": "thinking", "thinking": "hm"}]},
        {"content": "<think>they may be lying</think> Sure!"},
        b"plain text <thinking>they may be lying</thinking>",
    ],
)
def test_kept_deliberation_is_found(content: Any) -> None:
    assert DELIBERATION in gaps(content, state="conversation")


def test_the_word_alone_is_no_deliberation() -> None:
    assert gaps({"content": "I was thinking of Graz", "reasoning": None, "thinking": ""}, state="conversation") == set()


def test_a_prompt_kept_whole_is_found_by_its_size_and_role() -> None:
    whole = "You are helpful. " * 600
    assert gaps({"system": whole}, state="record") == {LARGE_PROMPT}
    assert gaps({"messages": [{"role": "system", "content": whole}]}, state="record") == {LARGE_PROMPT}
    assert gaps({"messages": [{"role": "user", "content": whole}]}, state="record") == set()
    assert gaps({"system": "prompt:p7"}, state="record") == set()


@pytest.mark.parametrize("name", ["md5", "sha1", "sha224", "sha256"])
@pytest.mark.parametrize("form", ["email:Ada@example.org", "Ada@example.org", "ada@example.org"])
def test_a_bare_hash_of_an_identifier_is_found_in_text_keys_and_upper_case(name: str, form: str) -> None:
    hashes = hashes_of(["email:Ada@example.org"])
    hit = hashlib.new(name, form.encode()).hexdigest()
    assert gaps({"user": hit}, hashes=hashes) == {BARE_HASH}
    assert gaps(f"thread/{hit.upper()}/state".encode(), hashes=hashes) == {BARE_HASH}
    assert gaps({"user": f"0{hit}"}, hashes=hashes) == set()


def test_another_persons_hash_and_a_salted_one_are_not() -> None:
    hashes = hashes_of(["email:ada@example.org"])
    assert gaps({"user": hashlib.sha256(b"bob@example.org").hexdigest()}, hashes=hashes) == set()
    assert gaps({"user": hashlib.sha256(b"salt:ada@example.org").hexdigest()}, hashes=hashes) == set()


def test_depth_is_bounded() -> None:
    content: Any = {"reasoning": "deep"}
    for _ in range(MAX_DEPTH + 2):
        content = {"a": content}
    assert gaps(content) == set()
    assert gaps(b"[" * 100_000) == set()


@given(content=st.binary(max_size=300), state=st.sampled_from(["checkpoint", "conversation"]))
def test_no_bytes_make_it_fail(content: bytes, state: str) -> None:
    gaps(content, state=state)
    gaps(msgspec.msgpack.encode({"x": content}), state=state)
