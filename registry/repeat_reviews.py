"""What another token wanted to change of a registered item: listed for a human, accepted or refused.

Guarantees: nothing of a review is in force before somebody other than who asked accepts it; accepting does what the
item's own token could have done, a refused source is taken away again; a reason is kept, sealed. Nothing is erased
here: an item that goes after an accepted source joins the request behind that source. The caller commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlmodel import Session, col, select

from registry import classes, details, memory_log
from registry.acting import Acting
from registry.artifact_rows import by_numbers, parent_names, public_name
from registry.batch import LABEL
from registry.claims import REVIEW_LABEL, Edge, claims_of, settle_claims
from registry.declaration import DataClass
from registry.ends import CONSENT, EndsAt, HeldClasses, dates_of, default_ends_at, leaves_hold
from registry.errors import Conflict, HeldInItsClass, SamePrincipalDecides, UnknownRegistrationReview
from registry.graph import Parent, full_sets, mark_fenced, spread, write_sets
from registry.keyed import Lookups, Seals, canonical_json
from registry.models import Artifact, ClaimedSource, Derivation, Token
from registry.new_rows import rekey_scopes
from registry.origins import attach
from registry.review_models import ReviewRow
from registry.sets import intern_sets, members
from registry.subjects import opaque_ids
from vault.vault import Vault

ACCEPTED, REFUSED, GONE = "accepted", "refused", "gone"
DECISIONS = {"accept": ACCEPTED, "refuse": REFUSED}
_ENDED = ("erasing", "erased")


def reviews(
    session: Session, tenant_id: int, *, open_only: bool = True, after: int = 0, limit: int = 50
) -> tuple[list[dict[str, Any]], int | None]:
    """What waits for a human, oldest first, and where the next page starts; people and sources under opaque ids."""
    query = select(ReviewRow).where(ReviewRow.tenant_id == tenant_id, col(ReviewRow.id) > after)
    if open_only:
        query = query.where(col(ReviewRow.decision).is_(None))
    rows = list(session.exec(query.order_by(col(ReviewRow.id)).limit(limit + 1)))
    page = rows[:limit]
    return views(session, tenant_id, page), page[-1].id if len(rows) > limit else None


def views(session: Session, tenant_id: int, rows: Sequence[ReviewRow]) -> list[dict[str, Any]]:
    """Reviews as the API shows them."""
    items = by_numbers(session, tenant_id, [row.artifact_id for row in rows])
    sources = {row.id: _sources_of(row) for row in rows}
    names = parent_names(session, tenant_id, {one for found in sources.values() for one in found})
    people = opaque_ids(session, tenant_id, {number for row in rows for number in row.wanted.get("subjects", ())})
    found = []
    for row in rows:
        wanted = {name: value for name, value in row.wanted.items() if value is not None}
        if "sources" in wanted:
            wanted["sources"] = sorted(names[one] for one in sources[row.id] if one in names)
        if "subjects" in wanted:
            wanted["subjects"] = sorted(people[number] for number in row.wanted["subjects"] if number in people)
        found.append(
            {
                "id": review_name(row.id),
                "artifact": public_name(items[row.artifact_id]) if row.artifact_id in items else None,
                "wanted": wanted,
                "asked_by": sorted(_asking(session, row)),
                "asked_at": row.at,
                "decision": row.decision,
                "decided_by": row.decided_by,
                "decided_at": row.decided_at,
            }
        )
    return found


def decide_review(
    session: Session,
    vault: Vault,
    acting: Acting,
    review_id: str,
    decision: str,
    *,
    reason: str,
    now: datetime,
    ends_at: EndsAt = default_ends_at,
    held: HeldClasses = (),
) -> dict[str, Any]:
    """The review after a human's word, which takes effect at once.

    Raises: UnknownRegistrationReview; Conflict where it is decided; SamePrincipalDecides for who asked for the change;
    RejectedSources where too many people would stand behind the item; HeldInItsClass where a hold would lose it.
    """
    row = _load(session, acting.tenant_id, review_id)
    if row.decision is not None:
        message = f"the review is {row.decision}"
        raise Conflict(message)
    if acting.principal in _asking(session, row):
        raise SamePrincipalDecides
    named = (acting.tenant_id, row.artifact_id)
    item = session.get_one(Artifact, named, with_for_update=True, populate_existing=True)
    row.decision = DECISIONS[decision]
    if item.status in _ENDED:
        row.decision = GONE
    elif row.decision == ACCEPTED:
        wanted = row.wanted.get("data_class")
        if wanted is not None and leaves_hold(held, item.data_class, wanted):
            raise HeldInItsClass(item.data_class, wanted)
        _apply(session, vault, acting, item, row, now=now, ends_at=ends_at)
    else:
        _take_away(session, row)
    row.decided_by, row.decided_at = acting.principal, now
    seals = Seals(session, vault, acting.tenant_id)
    holder = seals.holder((item.holder_no,))
    row.sealed = seals.seal(holder, REVIEW_LABEL, str(row.id), canonical_json({"reason": reason}))
    session.add(row)
    session.flush()
    return views(session, acting.tenant_id, [row])[0]


def review_name(number: int) -> str:
    """The public id of a review."""
    return f"rev_{number:016x}"


def _load(session: Session, tenant_id: int, review_id: str) -> ReviewRow:
    digits = review_id.removeprefix("rev_")
    try:
        number = int(digits, 16)
    except ValueError:
        raise UnknownRegistrationReview from None
    row = session.get(ReviewRow, (tenant_id, number), with_for_update=True) if 0 <= number < 2**63 else None
    if row is None:
        raise UnknownRegistrationReview
    return row


def _sources_of(row: ReviewRow) -> list[Parent]:
    return [Parent(kind, number) for kind, number in row.wanted.get("sources", ())]


def _asking(session: Session, row: ReviewRow) -> frozenset[str]:
    """The principals whose tokens asked for it: of the repeat, or of the claims it is about."""
    tokens = {row.token_id}
    for parent in _sources_of(row):
        claim = session.get(ClaimedSource, (row.tenant_id, row.artifact_id, parent.kind, parent.number))
        if claim is not None:
            tokens.add(claim.token_id)
    query = select(Token.principal).where(Token.tenant_id == row.tenant_id, col(Token.token_id).in_(sorted(tokens)))
    return frozenset(session.exec(query))


def _apply(
    session: Session,
    vault: Vault,
    acting: Acting,
    item: Artifact,
    row: ReviewRow,
    *,
    now: datetime,
    ends_at: EndsAt,
) -> None:
    wanted = row.wanted
    if "overwrite" in wanted:
        _overwrite(session, vault, acting, item, row, now=now)
    rules = _rules(session, item, wanted.get("data_class"))
    if rules is not None:
        item.data_class, item.class_version = rules.name, rules.version
    if expires := wanted.get("expires_at"):
        wished = datetime.fromisoformat(expires)
        item.expires_at = wished if item.expires_at is None else min(wished, item.expires_at)
    if rules is not None:
        item.ends_at = None if rules.keep_from == CONSENT else ends_at(rules, dates_of(item))
    session.add(item)
    session.flush()
    if people := frozenset(wanted.get("subjects", ())):
        _add_people(session, item, people, now)
    if sources := _sources_of(row):
        attach(session, item.tenant_id, item, sources, now)


def _rules(session: Session, item: Artifact, wanted: str | None) -> DataClass | None:
    in_force = classes.in_force(session, item.tenant_id)
    if wanted is not None and wanted not in in_force:
        message = f"data class {wanted!r} is not in force any more"
        raise Conflict(message)
    return in_force.get(wanted or item.data_class)


def _overwrite(
    session: Session, vault: Vault, acting: Acting, item: Artifact, row: ReviewRow, *, now: datetime
) -> None:
    """The value another token found at the place takes the place of the one registered; both are in the change log."""
    before = memory_log.facts_of(item)
    wanted = row.wanted["overwrite"]
    item.digest = None if wanted.get("digest") is None else bytes.fromhex(wanted["digest"])
    item.source_type, item.verification = wanted.get("source_type"), wanted.get("verification")
    item.confidence, item.confirmed_at = wanted.get("confidence"), None
    observed = wanted.get("observed_at")
    item.observed_at = None if observed is None else datetime.fromisoformat(observed)
    _retell(session, vault, item, row)
    session.add(item)
    change = memory_log.overwritten(before, memory_log.facts_of(item), acting.principal)
    memory_log.note(session, vault, item, change, now)


def _retell(session: Session, vault: Vault, item: Artifact, row: ReviewRow) -> None:
    """What is said of an item is what was said of its new value; where that cannot be read, its place alone.

    The turn, the purposes and the scope of the value before would be a false origin of this one.
    """
    seals = Seals(session, vault, item.tenant_id)
    before = seals.open(item.holder_no, LABEL, str(item.id), item.sealed)
    after = seals.open(item.holder_no, REVIEW_LABEL, str(row.id), row.sealed)
    if before is None:
        return
    told = {"locator": details.read(before)["locator"]} if after is None else details.read(after)
    kind = told.get("activity", {}).get("kind")
    item.activity = None if kind is None else {"kind": kind}
    item.sealed = seals.seal(item.holder_no, LABEL, str(item.id), details.write(told))
    rekey_scopes(session, Lookups(vault, item.tenant_id), item, told.get("scope", {}))


def _add_people(session: Session, item: Artifact, people: frozenset[int], now: datetime) -> None:
    """Make the item theirs too, and what was made from it; it goes where somebody's erasure has begun."""
    tenant_id = item.tenant_id
    own = members(session, tenant_id, (item.own_set_id,))[item.own_set_id] | people
    item.own_set_id = intern_sets(session, tenant_id, (own,), now)[own]
    session.add(item)
    session.flush()
    former = full_sets(session, tenant_id, (item.id,))[item.id]
    gained = {item.id: people - former}
    write_sets(session, tenant_id, {item.id: former | people}, now)
    gained |= spread(session, tenant_id, {item.id: former | people}, now)
    mark_fenced(session, tenant_id, gained)
    session.expire_all()


def _take_away(session: Session, row: ReviewRow) -> None:
    """A claim that a human refused is no source; people it brought before stay, as a person's copies are not hidden."""
    refused = {Edge(row.artifact_id, one.kind, one.number) for one in _sources_of(row)}
    for edge in refused & claims_of(session, row.tenant_id, (row.artifact_id,)):
        session.connection().execute(
            sa.delete(Derivation).where(
                col(Derivation.tenant_id) == row.tenant_id,
                col(Derivation.child) == edge.child,
                col(Derivation.parent_kind) == edge.kind,
                col(Derivation.parent) == edge.parent,
            )
        )
        settle_claims(session, row.tenant_id, [edge])
