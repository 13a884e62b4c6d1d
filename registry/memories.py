"""Whether a remembered fact may be used: for this person, this purpose, this scope, now.

Guarantees: a function of values and `now`. Every verdict but `usable` and `reconfirm` means «do not use»; the most
protective reason wins. Explicit statements and inferences are judged apart: an inference that nobody confirmed is a
question for the person, never a fact. A memory with a source whose type nobody named passes for a statement when it is
used, and for an inference when it would take another's place. Not decided here: who may ask, and whether the memory is
to be erased (`retention.decide`).

The order, first match wins:

1. `erased`: it is gone or going.                      6. `wrong_purpose`: it, or its class, was kept for others.
2. `revoked`: somebody took it out of use.              7. `expired`: by its own end, its class, or lost confidence.
3. `quarantined`: it, or what it was made from, is.     8. `ask_user`: an inference that nobody confirmed.
4. `restricted`: stored and nothing else (Art. 18).     9. `reconfirm`: too old to rely on, or without a source.
5. `out_of_scope`: another person's, thread's, state's. 10. `usable`.

    >>> confidence_at(0.8, timedelta(days=180), timedelta(days=180))
    0.4
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from registry.declaration import DataClass

CONFIRMED = frozenset({"verified", "user_confirmed"})
"""Verifications that turn an inference into something the person or a check stands behind."""
CONFIRMED_CONFIDENCE = 1.0
"""What a confirmation by the person sets: nobody knows better, now."""
ROUNDING = 1e-6
"""Verdicts round confidence to six decimals; an end by `faded_at` counts as much below, so that both say the same."""
_INFERRED = (
    "infer", "assum", "specul", "guess", "deriv", "predict", "implicit", "implied", "conclu", "estimat", "hypothes",
    "suppos", "model", "llm", "summar",
)  # fmt: skip
"""Stems of what callers call a conclusion, somebody's or a model's; whatever else they say is a statement."""
_GONE = frozenset({"erased", "erasing"})


class Verdict(StrEnum):
    """What an agent may do with a memory. Source: DESIGN §5."""

    USABLE = "usable"
    RECONFIRM = "reconfirm"
    ASK_USER = "ask_user"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"
    REVOKED = "revoked"
    RESTRICTED = "restricted"
    OUT_OF_SCOPE = "out_of_scope"
    WRONG_PURPOSE = "wrong_purpose"
    ERASED = "erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A memory as it stands. `rules` is its class in force, None where there is none any more.

    `tainted` is the status of the worst thing it was made from; `scope` and `purposes` are what was said when it was
    kept; `about` is whether it concerns the person who is asked about.
    """

    status: str
    rules: DataClass | None
    about: bool = True
    fenced: bool = False
    restricted: bool = False
    tainted: str | None = None
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)
    purposes: tuple[str, ...] = ()
    source_type: str | None = None
    has_source: bool = False
    verification: str | None = None
    confidence: float | None = None
    observed_at: datetime | None = None
    confirmed_at: datetime | None = None
    created_at: datetime
    expires_at: datetime | None = None
    ends_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """For what a memory is wanted."""

    purpose: str
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict, its reason in words that name nobody, and the confidence of now."""

    verdict: Verdict
    because: str
    confidence_now: float | None


def judge(memory: Memory, asked: Asked, now: datetime) -> Judged:
    """May it be used? See the module for the order. Source: DESIGN §5."""
    confidence = confidence_now(memory, now)
    verdict, because = (
        _standing(memory)
        or _scope(memory, asked)
        or _age(memory, confidence, now)
        or _trust(memory, confidence)
        or (Verdict.USABLE, "nothing speaks against it")
    )
    return Judged(verdict=verdict, because=because, confidence_now=confidence)


def is_inferred(source_type: str | None) -> bool:
    """Whether the caller said that this was concluded or written by a model, not stated."""
    return source_type is not None and any(stem in source_type for stem in _INFERRED)


def may_overwrite(old_source_type: str | None, old_verification: str | None, new_source_type: str | None) -> bool:
    """Whether a newer value may take a memory's place unasked: an inference never replaces a statement.

    A source that is not named counts as an inference, because it may be one.
    """
    stands = old_verification in CONFIRMED or (old_source_type is not None and not is_inferred(old_source_type))
    return not stands or (new_source_type is not None and not is_inferred(new_source_type))


def confidence_now(memory: Memory, now: datetime) -> float | None:
    """Confidence after the class's decay since it was observed or last confirmed; None where none was given."""
    if memory.confidence is None or memory.rules is None or memory.rules.decay is None:
        return memory.confidence
    since = max(at for at in (memory.observed_at or memory.created_at, memory.confirmed_at) if at is not None)
    return confidence_at(memory.confidence, now - since, memory.rules.decay.half_life.upper_bound())


def confidence_at(confidence: float, age: timedelta, half_life: timedelta) -> float:
    """Confidence halved with every half-life; a fact from the future has not aged. Six decimals."""
    return round(float(confidence * 0.5 ** max(age / half_life, 0.0)), 6)


def faded_at(confidence: float, since: datetime, half_life: timedelta, below: float) -> datetime | None:
    """When confidence, halved with every half-life, falls below a value; None for never, `since` where it is below."""
    counted = below - ROUNDING
    if counted <= 0:
        return None
    if confidence <= counted or confidence_at(confidence, timedelta(0), half_life) < below:
        return since
    try:
        return since + half_life * math.log2(confidence / counted)
    except OverflowError:
        return None


def _standing(memory: Memory) -> tuple[Verdict, str] | None:
    """Steps 1 to 4: what somebody decided about it."""
    if memory.status in _GONE or memory.fenced:
        return Verdict.ERASED, "it is erased, or its erasure has begun"
    if memory.status == "revoked":
        return Verdict.REVOKED, "it was taken out of use"
    if memory.status == "quarantined":
        return Verdict.QUARANTINED, "it is quarantined until somebody decides"
    if memory.tainted is not None:
        return Verdict.QUARANTINED, f"what it was made from is {memory.tainted}"
    if memory.restricted:
        return Verdict.RESTRICTED, "processing is restricted for this person (GDPR Art. 18)"
    if memory.status == "retained":
        return Verdict.RESTRICTED, "it is kept for a legal ground only"
    return None


def _scope(memory: Memory, asked: Asked) -> tuple[Verdict, str] | None:
    """Steps 5 and 6: whose, where, what for."""
    if not memory.about:
        return Verdict.OUT_OF_SCOPE, "it is not about this person"
    if memory.rules is None:
        return Verdict.OUT_OF_SCOPE, "its data class is not in force any more"
    if memory.rules.state != "memory":
        return Verdict.OUT_OF_SCOPE, f"its class holds {memory.rules.state} state, not memories"
    if missing := sorted(name for name, value in memory.scope.items() if asked.scope.get(name) != value):
        return Verdict.OUT_OF_SCOPE, f"it belongs to another {' and '.join(missing)}"
    for purposes, whose in ((memory.rules.purposes, "its class"), (memory.purposes, "it")):
        if purposes and asked.purpose not in purposes:
            return Verdict.WRONG_PURPOSE, f"{whose} is kept for other purposes"
    return None


def _age(memory: Memory, confidence: float | None, now: datetime) -> tuple[Verdict, str] | None:
    """Step 7."""
    if memory.expires_at is not None and memory.expires_at <= now:
        return Verdict.EXPIRED, "its own end has come"
    decay = None if memory.rules is None else memory.rules.decay
    if decay is not None and confidence is not None and confidence < decay.expire_below:
        return Verdict.EXPIRED, f"confidence fell below {decay.expire_below}"
    if memory.ends_at is not None and memory.ends_at <= now:
        return Verdict.EXPIRED, "the retention of its class has ended"
    return None


def _trust(memory: Memory, confidence: float | None) -> tuple[Verdict, str] | None:
    """Steps 8 and 9."""
    if is_inferred(memory.source_type) and memory.verification not in CONFIRMED:
        return Verdict.ASK_USER, "it was inferred and nobody confirmed it"
    decay = None if memory.rules is None else memory.rules.decay
    if decay is not None and confidence is not None and confidence < decay.reconfirm_below:
        return Verdict.RECONFIRM, f"confidence fell below {decay.reconfirm_below}"
    if memory.source_type is None and not memory.has_source:
        return Verdict.RECONFIRM, "nobody said where it comes from"
    return None
