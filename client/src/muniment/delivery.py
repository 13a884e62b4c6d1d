"""What the server's answer means for each entry of a batch. Pure.

Only `stored`, `duplicate` and `suppressed` let go of an entry. Silence about an entry, an unknown word, or an answer
that is not the server's own means: send it again.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence

import msgspec


class Verdict(enum.Enum):
    """What to do with one entry."""

    STORED = "stored"
    DUPLICATE = "duplicate"
    SUPPRESSED = "suppressed"
    PARK = "park"
    REFUSE = "refuse"
    AGAIN = "again"


DONE = frozenset({Verdict.STORED, Verdict.DUPLICATE, Verdict.SUPPRESSED})


_NULL = msgspec.Raw(b"null")


class ItemResult(msgspec.Struct):
    """One element of `results`."""

    id: str
    status: str
    problem: msgspec.Raw = _NULL
    suppressed_parts: msgspec.Raw = _NULL
    index: msgspec.Raw = _NULL


class BatchAnswer(msgspec.Struct):
    """The body of a 200."""

    results: list[ItemResult]
    receipt: msgspec.Raw = _NULL


class Judged(msgspec.Struct, frozen=True):
    """A verdict, the problem behind a refusal, and whether only a part of the entry was taken."""

    verdict: Verdict
    problem: object = None
    partly: bool = False


_SIMPLE = {"stored": Verdict.STORED, "duplicate": Verdict.DUPLICATE, "suppressed": Verdict.SUPPRESSED}
AGAIN = Judged(Verdict.AGAIN)


def judge(ids: Sequence[str], answer: BatchAnswer) -> list[Judged]:
    """Return a verdict for each id, in order; the answer is matched by id, not by place."""
    by_id = {result.id: result for result in answer.results}
    return [_judge_one(by_id.get(each)) for each in ids]


def _judge_one(result: ItemResult | None) -> Judged:
    if result is None:
        return AGAIN
    if result.status in _SIMPLE:
        return Judged(_SIMPLE[result.status], partly=bool(msgspec.json.decode(result.suppressed_parts)))
    if result.status != "rejected":
        return AGAIN
    problem = msgspec.json.decode(result.problem)
    return Judged(Verdict.PARK if can_still_come(problem) else Verdict.REFUSE, problem)


def problem_type(problem: object) -> str:
    """Return the last part of a problem's type, such as `unknown-class`; `unnamed` if there is none."""
    text = problem.get("type") if isinstance(problem, dict) else problem
    if not isinstance(text, str) or not text:
        return "unnamed"
    return text.rstrip("/").rpartition("/")[2].replace("_", "-").lower()


def can_still_come(problem: object) -> bool:
    """Whether the refusal is for a data class or kind that nobody registered yet, or for damage that can be mended."""
    if problem_type(problem) == "record-damaged":
        return True
    words = problem_type(problem).split("-")
    missing = {"unknown", "unregistered", "missing"} & set(words) or words[:2] == ["not", "registered"]
    return bool(missing) and bool({"class", "kind"} & set(words))


def backoff_seconds(failures: int, retry_after: float | None) -> float:
    """Return how long to wait after so many failures in a row: doubling to 30 s, jittered, never under Retry-After."""
    ceiling = min(30.0, 0.2 * float(1 << min(failures, 10)))
    jittered = ceiling * random.uniform(0.5, 1.0)  # noqa: S311 (jitter, not a secret)
    return max(jittered, min(retry_after or 0.0, 600.0))
