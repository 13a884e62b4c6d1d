"""What the content of a copy shows that its declaration does not: the gaps that only real data has.

Guarantees: pure and bounded; reads bytes of any kind (JSON, MessagePack, text) without trusting them: nothing is
unpickled, nesting and size are limited, what cannot be parsed is searched as text. Says which gaps, never what stands
there. A hash of an identifier is found by hashing the identifiers of the copy's own people in the usual ways; a keyed
or salted hash is not found, because it is not bare. Source: DESIGN §5.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

BODY_IN_CHECKPOINT = "body_in_checkpoint"
DELIBERATION = "keeps_deliberation"
LARGE_PROMPT = "large_prompt_snapshot"
BARE_HASH = "bare_hash_of_identifier"
CONTENT_GAPS = (BARE_HASH, BODY_IN_CHECKPOINT, DELIBERATION, LARGE_PROMPT)

MAX_BYTES = 4 * 1024 * 1024
"""So much of a copy is looked at; a gap beyond it is not found."""
MAX_DEPTH = 64
PROMPT_BYTES = 8 * 1024
"""A prompt of that size is a snapshot of instructions and documents, to be kept by version and not by copy."""
BODY_CHARACTERS = 40
_MESSAGE_KEYS = frozenset({"messages", "history", "chat_history", "turns", "conversation"})
_TEXT_KEYS = frozenset({"content", "text", "body", "value"})
_DELIBERATION_KEYS = frozenset(
    {"reasoning", "reasoning_content", "thinking", "thoughts", "chain_of_thought", "scratchpad", "deliberation"}
)
_DELIBERATION_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking"})
_DELIBERATION_TEXT = re.compile(r"<(?:think|thinking|scratchpad|reasoning)>", re.IGNORECASE)
_PROMPT_KEYS = frozenset({"system", "system_prompt", "instructions", "system_instructions", "prompt", "developer"})
_PROMPT_ROLES = frozenset({"system", "developer"})
_HEX = re.compile(r"(?<![0-9a-fA-F])(?:[0-9a-fA-F]{64}|[0-9a-fA-F]{56}|[0-9a-fA-F]{40}|[0-9a-fA-F]{32})(?![0-9a-fA-F])")
_PRINTED_BODY = re.compile(
    rb'(?:content|text)[^\x20-\x7e]{0,8}["\']?\s*:?\s*["\']?([\x20-\x7e\xc2-\xf4\x80-\xbf]{40,})'
)
_HASHES = ("md5", "sha1", "sha224", "sha256")


def hashes_of(identifiers: Iterable[str]) -> frozenset[str]:
    """The bare hashes, in hexadecimal, that somebody might have stored instead of `type:value` or its value."""
    found: set[str] = set()
    for text in identifiers:
        _, _, value = text.partition(":")
        for form in {text, value, value.lower(), value.upper(), value.strip().casefold()}:
            data = form.encode("utf-8", "surrogatepass")
            found |= {hashlib.new(name, data, usedforsecurity=False).hexdigest() for name in _HASHES}
    return frozenset(found)


def gaps_in(content: bytes, *, state: str, hashes: frozenset[str]) -> frozenset[str]:
    """The gaps that a copy of a class of this state shows."""
    data = content[:MAX_BYTES]
    found: set[str] = set()
    text = data.decode("utf-8", "replace")
    if not hashes.isdisjoint(hit.lower() for hit in _HEX.findall(text)):
        found.add(BARE_HASH)
    tree = _parsed(data)
    if tree is None:
        if state == "checkpoint" and _PRINTED_BODY.search(data):
            found.add(BODY_IN_CHECKPOINT)
        if _DELIBERATION_TEXT.search(text):
            found.add(DELIBERATION)
        return frozenset(found)
    for key, value, parent in _walk(tree):
        found |= _gaps_of(key, value, parent, state)
    return frozenset(found)


def _gaps_of(key: str, value: Any, parent: Mapping[str, Any], state: str) -> set[str]:
    found: set[str] = set()
    if key in _DELIBERATION_KEYS and value not in (None, "", [], {}, False, 0):
        found.add(DELIBERATION)
    if key == "type" and value in _DELIBERATION_TYPES:
        found.add(DELIBERATION)
    if isinstance(value, str):
        if _DELIBERATION_TEXT.search(value):
            found.add(DELIBERATION)
        is_prompt = key in _PROMPT_KEYS or (key in _TEXT_KEYS and parent.get("role") in _PROMPT_ROLES)
        if is_prompt and len(value.encode("utf-8", "replace")) > PROMPT_BYTES:
            found.add(LARGE_PROMPT)
    if state == "checkpoint" and (
        (key in _MESSAGE_KEYS and _holds_text(value)) or (key in _TEXT_KEYS and _is_message(parent, value))
    ):
        found.add(BODY_IN_CHECKPOINT)
    return found


def _is_message(parent: Mapping[str, Any], value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) >= BODY_CHARACTERS
        and bool({"role", "type", "sender", "name", "id"} & parent.keys())
    )


def _holds_text(value: Any) -> bool:
    return any(
        isinstance(inner, str) and len(inner) >= BODY_CHARACTERS for _, inner, _ in _walk({"": value}) if inner != value
    )


def _walk(tree: Any) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Every member of every object: its key, its value, the object."""
    waiting: list[tuple[Any, int]] = [(tree, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            continue
        if isinstance(value, Mapping):
            named = {str(key): inner for key, inner in value.items()}
            for key, inner in named.items():
                yield key, inner, named
                waiting.append((inner, depth + 1))
        elif isinstance(value, list | tuple):
            for inner in value:
                if isinstance(inner, str):
                    yield "", inner, {}
                else:
                    waiting.append((inner, depth + 1))
        elif isinstance(value, msgspec.msgpack.Ext):
            inner = _parsed(bytes(value.data))
            if inner is not None:
                waiting.append((inner, depth + 1))
        elif isinstance(value, bytes) and value[:1] in (
            b"{",
            b"[",
            b"\x80",
            b"\x81",
            b"\x82",
            b"\x83",
            b"\x84",
            b"\x85",
        ):
            inner = _parsed(value)
            if inner is not None:
                waiting.append((inner, depth + 1))


def _parsed(data: bytes) -> Any:
    """A tree of objects and lists, or None where there is none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        try:
            found = msgspec.msgpack.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None
    return found if isinstance(found, Mapping | list | tuple | msgspec.msgpack.Ext) else None
