"""What a person gets: which of their copies go into an export, which do not and why, and the manifest that says so.

Guarantees: pure. Access (GDPR Art. 15) covers everything about the person; portability (Art. 20) what they provided or
what was observed, in classes that rest on consent or a contract. Data that is about somebody else too is never decided
here: it waits for a human. Every copy that the registry counts is a line, so that the counts add up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from connectors.base import is_one_of
from erasure.collateral import of_others
from erasure.facts import ArtifactFact, PlanInput
from erasure.lineage import Lineage
from erasure.manifest_file import Listing
from erasure.plan import IDENTITY, VAULT, Plan, PlanCopy, framed, instant_text
from erasure.request import CopyState, Right
from retention.decide import Because, Claim, concerns
from retention.parts import part_ref

SCHEMA = "muniment-export/v1"
EXPORT_CLASS = "export"
EARLIER_EXPORT = "an earlier export, handed out then"
_JOINT_EXPORT = "an export with what is about other persons too (GDPR Art. 15(4))"
_OTHER_BASIS = "not processed on consent or a contract"
_DERIVED = "inferred or derived, neither provided nor observed"
SOMEBODY_ELSES = "its store says that it is somebody else's (GDPR Art. 15(4))"
NOT_PORTABLE = (_OTHER_BASIS, _DERIVED)
"""Why a copy is no part of a portability answer."""
REQUESTS = "requests"
"""The store of past requests, as manifests name it."""
_PORTABLE_BASES = ("consent", "contract")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTerms:
    """What a person is told about a class (GDPR Art. 15(1))."""

    name: str
    description: str
    legal_basis: str
    purposes: tuple[str, ...]
    categories: tuple[str, ...]
    storage_period: str


def plan_export(
    given: PlanInput,
    right: Right,
    terms: Mapping[str, ClassTerms],
    *,
    inferred: frozenset[int],
    past: Sequence[str],
    inside: frozenset[int] | None = None,
) -> Plan:
    """The plan of an export.

    `inferred` are artifacts that a model concluded, `past` ids of the person's requests, `inside` the entries of its
    conversation.
    """
    claim = _claim(given)
    depths = Lineage(given.artifacts).depths
    artifacts = (
        _artifact(
            fact,
            given,
            right,
            terms,
            is_inferred=fact.artifact_id in inferred,
            depth=depths.get(fact.artifact_id, 0),
        )
        for fact in given.artifacts
        if concerns(claim, fact.item)
    )
    asked = () if claim.data_classes is not None or claim.scopes is not None else sorted(past)
    requests = (_line("request", ref, "request", REQUESTS, claim=claim) for ref in asked)
    return framed(given, chain(artifacts, _record(given, claim, right, terms, inside), requests))


def _claim(given: PlanInput) -> Claim:
    if given.claim is None:
        message = "an export answers a request"
        raise ValueError(message)
    return given.claim


def _artifact(
    fact: ArtifactFact,
    given: PlanInput,
    right: Right,
    terms: Mapping[str, ClassTerms],
    *,
    is_inferred: bool,
    depth: int,
) -> PlanCopy:
    store = given.stores.get(fact.store)
    state, detail = CopyState.PENDING, None
    if fact.item.data_class == EXPORT_CLASS:
        is_joint = bool(fact.item.subjects - given.subjects)
        state, detail = CopyState.WITHHELD, _JOINT_EXPORT if is_joint else EARLIER_EXPORT
    elif right is Right.PORTABILITY and (why := not_portable(fact, terms, is_inferred=is_inferred)):
        state, detail = CopyState.WITHHELD, why
    elif store is None or store.not_covered is not None:
        state = CopyState.NOT_COVERED
        detail = "the store is not registered any more" if store is None else store.not_covered
    elif fact.item.subjects - given.subjects:
        state, detail = CopyState.AWAITING_HUMAN, "about other persons too (GDPR Art. 15(4))"
    return _line(
        "artifact",
        fact.name,
        fact.item.data_class,
        fact.store,
        claim=_claim(given),
        state=state,
        detail=detail,
        artifact_id=fact.artifact_id,
        depth=depth,
        others=fact.item.subjects - given.subjects,
    )


def is_somebody_elses(content: bytes, owner_field: str | None, mine: frozenset[str]) -> bool:
    """Whether an item's content names another owner than the person, by the field in which its store says so.

    Looked for in a JSON object and in what vector stores hang on one; content of another form says nothing.
    """
    if owner_field is None:
        return False
    try:
        found = json.loads(content)
    except ValueError:
        return False
    if not isinstance(found, Mapping):
        return False
    places = (found, *(found[name] for name in ("metadata", "payload") if isinstance(found.get(name), Mapping)))
    owners = [place[owner_field] for place in places if place.get(owner_field) is not None]
    return bool(owners) and not any(is_one_of(owner, mine) for owner in owners)


def not_portable(fact: ArtifactFact, terms: Mapping[str, ClassTerms], *, is_inferred: bool) -> str | None:
    """Why an item is no part of a portability answer; None where it is. Source: GDPR Art. 20(1)."""
    known = terms.get(fact.item.data_class)
    if known is None or not is_portable_basis(known.legal_basis):
        return _OTHER_BASIS
    if fact.sources or is_inferred:
        return _DERIVED
    return None


def is_portable_basis(legal_basis: str) -> bool:
    """Whether data on this basis is portable: consent or a contract."""
    return any(word in legal_basis.lower() for word in _PORTABLE_BASES)


def _record(
    given: PlanInput, claim: Claim, right: Right, terms: Mapping[str, ClassTerms], inside: frozenset[int] | None
) -> Iterator[PlanCopy]:
    """A line for each key of the record, and one for each part that others share."""
    seen: set[str] = set()
    for key in given.keys:
        name = key.item.data_class
        if name == IDENTITY or not concerns(claim, key.item):
            continue
        known = terms.get(name)
        left_out = None
        if right is Right.PORTABILITY and (known is None or not is_portable_basis(known.legal_basis)):
            left_out = _OTHER_BASIS
        state = CopyState.PENDING if left_out is None else CopyState.WITHHELD
        yield _line("key", key.key_id, name, VAULT, claim=claim, state=state, detail=left_out, key_id=key.key_id)
        for part in key.parts if left_out is None else ():
            ref = part_ref(part.entry_id, part.part)
            shared = part.item.subjects - given.subjects
            if not shared or ref in seen or (inside is not None and part.entry_idx not in inside):
                continue
            seen.add(ref)
            yield _line(
                "entry",
                ref,
                part.item.data_class,
                VAULT,
                claim=claim,
                state=CopyState.AWAITING_HUMAN,
                detail="said by or about other persons too (GDPR Art. 15(4))",
                entry_idx=part.entry_idx,
                others=shared,
            )


def _line(
    kind: str,
    ref: str,
    data_class: str,
    store: str,
    *,
    claim: Claim,
    state: CopyState = CopyState.PENDING,
    detail: str | None = None,
    artifact_id: int | None = None,
    key_id: str | None = None,
    entry_idx: int | None = None,
    depth: int = 0,
    others: frozenset[int] = frozenset(),
) -> PlanCopy:
    action = {CopyState.AWAITING_HUMAN: "review", CopyState.WITHHELD: "withhold"}.get(state, "export")
    return PlanCopy(
        copy_no=0,
        kind=kind,
        ref=ref,
        artifact_id=artifact_id,
        key_id=key_id,
        entry_idx=entry_idx,
        data_class=data_class,
        store=store,
        action=action,
        rule="request",
        because=(Because("request", action, claim.request_id),),
        until=None,
        path=(),
        collateral=of_others(others),
        depth=depth,
        required="L1",
        state=state,
        detail=detail,
    )


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the copies of one class in one store."""

    registered: int = 0
    exported: int = 0
    withheld: int = 0
    absent: int = 0
    failed: int = 0


@dataclass(slots=True)
class Totals:
    """What became of the copies of a package, counted one by one while they are listed."""

    is_empty: bool = True
    """Whether nothing is left of any, requests aside."""
    places: dict[str, set[str]] = field(default_factory=dict)
    """By class: the stores in which its copies lie."""
    _tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)

    def count(self, line: Mapping[str, Any]) -> None:
        """Take in one line of `copies`."""
        self.places.setdefault(line["data_class"], set()).add(line["store"])
        if line["store"] != REQUESTS and line["state"] != CopyState.ALREADY_ABSENT:
            self.is_empty = False
        if line["kind"] != "artifact":
            return
        tally = self._tallies.setdefault((line["data_class"], line["store"]), Tally())
        tally.registered += 1
        match line["state"]:
            case CopyState.EXPORTED:
                tally.exported += 1
            case CopyState.WITHHELD:
                tally.withheld += 1
            case CopyState.ALREADY_ABSENT:
                tally.absent += 1
            case _:
                tally.failed += 1

    def lines(self) -> list[dict[str, Any]]:
        """How many registered copies of each class and store there are, and what became of them."""
        return [
            {"data_class": name, "store": store, **_tallied(tally)}
            for (name, store), tally in sorted(self._tallies.items())
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything a manifest says, gathered by `erasure.exporting`."""

    request: str
    right: str
    regulation: str
    received_at: datetime
    made_at: datetime
    controller: Mapping[str, Any]
    terms: Sequence[ClassTerms]
    recipients: Mapping[str, Sequence[Mapping[str, Any]]]
    """By class: who else received data of it."""
    sources: Mapping[str, Sequence[str]]
    """By class: where its data came from, as far as registered."""
    copies: Listing
    """One line per copy: id, data_class, store, state, detail, file."""
    totals: Totals
    """The same lines, counted."""
    entries: Mapping[str, Tally]
    """By class: entries of the record."""
    decisions: int
    files: Listing
    certificates: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    note: str | None = None


RIGHTS = {
    "gdpr": [
        "You may ask for rectification (Art. 16), erasure (Art. 17), restriction (Art. 18), and object (Art. 21).",
        "You may complain to a supervisory authority (Art. 77).",
    ],
    "ccpa": [
        "You may ask for correction (1798.106), deletion (1798.105), and to opt out of sale or sharing (1798.120).",
        "You may complain to the California Privacy Protection Agency or the Attorney General.",
    ],
}


def manifest(contents: Contents) -> dict[str, Any]:
    """The manifest of an export: counts, terms of each class, every copy and every file, these as they were listed.

    Source: GDPR Art. 15(1).
    """
    return {
        "schema": SCHEMA,
        "request": contents.request,
        "right": contents.right,
        "regulation": contents.regulation,
        "received_at": instant_text(contents.received_at),
        "made_at": instant_text(contents.made_at),
        "controller": dict(contents.controller),
        "is_empty": contents.totals.is_empty,
        "note": contents.note,
        "classes": [
            {
                "data_class": terms.name,
                "description": terms.description,
                "purposes": list(terms.purposes),
                "categories": list(terms.categories),
                "legal_basis": terms.legal_basis,
                "storage_period": terms.storage_period,
                "recipients": [dict(one) for one in contents.recipients.get(terms.name, ())],
                "sources": sorted(contents.sources.get(terms.name, ())) or ["not recorded"],
            }
            for terms in contents.terms
        ],
        "automated_decisions": {"recorded": contents.decisions},
        "your_rights": RIGHTS.get(contents.regulation, []),
        "counts": contents.totals.lines(),
        "record": [{"data_class": name, **_tallied(tally)} for name, tally in sorted(contents.entries.items())],
        "copies": contents.copies,
        "files": contents.files,
        "certificates_of_erasure": [dict(one) for one in contents.certificates],
    }


def _tallied(tally: Tally) -> dict[str, int]:
    return {
        "registered": tally.registered,
        "exported": tally.exported,
        "withheld": tally.withheld,
        "absent": tally.absent,
        "failed": tally.failed,
    }
