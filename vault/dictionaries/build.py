"""Builds the compression dictionary of version 1 from made-up events.

A dictionary trained on real events holds pieces of them, outside every key. So each sample here is put together
from the word lists below by a counter's hash: the same bytes on every machine, and nobody's data.

    python -m vault.dictionaries.build OUTPUT

The result is committed. A better one gets a new version byte and a new file; this one is never rebuilt in place.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import zstandard

SIZE = 16 * 1024
SAMPLES = 6_000

_WORDS = (  # noqa: SIM905 - a text is easier to read than a list of 96 strings
    "the order account invoice customer meeting please could you confirm that I have updated your request for a "
    "refund of and will send an email when it is complete thank let me know if there anything else can help with "
    "based on policy we are not able to change this without approval from manager summary user asked about status "
    "shipping address payment method card number ending in flight booking hotel reservation ticket support agent "
    "tool returned result error timeout retry next step plan decision reason because following steps first then "
    "finally schedule interview candidate role contract document file report search query found records matching"
).split()
_TOOLS = ("search_documents", "get_order_details", "update_record", "send_email", "create_ticket", "book_flight")
_MODELS = ("model-large-1", "model-small-1", "model-embed-1")
_FIELDS = ("order_id", "user_id", "customer_id", "status", "amount", "currency", "reason", "query", "limit", "date")


class _Dice:
    """Choices by a counter's SHA-256: reproducible, and no randomness is claimed."""

    def __init__(self) -> None:
        self._count = 0

    def below(self, limit: int) -> int:
        self._count += 1
        return int.from_bytes(hashlib.sha256(b"muniment dictionary v1 %d" % self._count).digest()[:8], "big") % limit

    def pick(self, options: Sequence[str]) -> str:
        return options[self.below(len(options))]

    def text(self, words: int) -> str:
        return " ".join(self.pick(_WORDS) for _ in range(words)).capitalize() + "."

    def code(self, digits: int) -> str:
        return "".join(str(self.below(10)) for _ in range(digits))

    def instant(self) -> str:
        day, hour, minute = 1 + self.below(28), self.below(24), self.below(60)
        return f"2025-{1 + self.below(12):02}-{day:02}T{hour:02}:{minute:02}:{self.below(60):02}.{self.code(6)}Z"


def samples() -> Iterator[bytes]:
    """Yield the made-up bodies: messages, tool calls and results, decisions, summaries, memories, model requests."""
    dice = _Dice()
    makers = (_message, _tool_call, _tool_result, _decision, _summary, _memory, _model_request, _flat_message)
    for number in range(SAMPLES):
        body = makers[number % len(makers)](dice)
        compact = number % 3 != 0
        separators = (",", ":") if compact else (", ", ": ")
        yield json.dumps(body, separators=separators).encode()


def _message(dice: _Dice) -> dict[str, object]:
    role = dice.pick(("system", "user", "assistant"))
    return {"role": role, "content": dice.text(6 + dice.below(40))}


def _flat_message(dice: _Dice) -> dict[str, object]:
    return {"role": "assistant", "content": [{"type": "text", "text": dice.text(5 + dice.below(30))}]}


def _arguments(dice: _Dice) -> dict[str, object]:
    return {dice.pick(_FIELDS): dice.code(6) if dice.below(2) else dice.text(2) for _ in range(1 + dice.below(4))}


def _tool_call(dice: _Dice) -> dict[str, object]:
    function = {"name": dice.pick(_TOOLS), "arguments": json.dumps(_arguments(dice))}
    call = {"id": f"call_{dice.code(8)}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _tool_result(dice: _Dice) -> dict[str, object]:
    result = {**_arguments(dice), "success": True, "error": None, "created_at": dice.instant()}
    return {
        "role": "tool",
        "tool_call_id": f"call_{dice.code(8)}",
        "name": dice.pick(_TOOLS),
        "content": json.dumps(result),
    }


def _decision(dice: _Dice) -> dict[str, object]:
    return {
        "decision": dice.pick(("approved", "denied", "escalated")),
        "reason": dice.text(12),
        "policy": f"policy-{dice.code(2)}",
        "policy_version": f"{dice.code(1)}.{dice.code(1)}",
        "proposal": {"action": dice.pick(_TOOLS), "arguments": _arguments(dice), "currency": "EUR"},
        "decided_at": dice.instant(),
    }


def _summary(dice: _Dice) -> dict[str, object]:
    return {
        "goal": dice.text(8),
        "facts": [dice.text(7) for _ in range(1 + dice.below(4))],
        "decisions": [dice.text(6)],
        "open": [dice.text(5)],
        "covers": {"from": dice.code(3), "to": dice.code(3)},
        "dropped": [],
        "pinned": [],
    }


def _memory(dice: _Dice) -> dict[str, object]:
    return {
        "memory": dice.text(9),
        "confidence": dice.below(100) / 100,
        "source_type": dice.pick(("explicit", "inferred")),
        "observed_at": dice.instant(),
        "expires_at": None,
        "scope": {"conversation": f"conv_{dice.code(4)}"},
        "verification": "unverified",
    }


def _model_request(dice: _Dice) -> dict[str, object]:
    tool = {"type": "function", "function": {"name": dice.pick(_TOOLS), "description": dice.text(8)}}
    return {
        "model": dice.pick(_MODELS),
        "temperature": 0.2,
        "max_tokens": 1024,
        "messages": [_message(dice) for _ in range(2 + dice.below(3))],
        "tools": [{**tool, "parameters": {"type": "object", "properties": {}, "required": []}}],
        "usage": {"prompt_tokens": dice.below(9000), "completion_tokens": dice.below(900)},
        "finish_reason": dice.pick(("stop", "tool_calls", "length")),
    }


def build() -> bytes:
    """Return the dictionary's bytes; equal bytes for equal versions of zstd."""
    return zstandard.train_dictionary(SIZE, list(samples()), dict_id=1).as_bytes()


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
