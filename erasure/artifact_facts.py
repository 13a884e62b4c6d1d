"""Facts about a person's artifacts, read for a plan: rows, people, edges, conversations, events, consents.

Guarantees: every look-up is by an index and in chunks; of many artifacts a page at a time is in memory as rows, and
what is kept of them are columns (`facts.ArtifactFacts`). Opens nothing and decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlmodel import Session, col

from erasure.facts import AS_COLUMNS, ArtifactFact, ArtifactFacts, SourceFact
from erasure.standing import Standing
from ledger.models import EntryRow
from registry import bulk
from registry.ids import artifact_name
from registry.keyed import chunks
from registry.models import Artifact
from registry.sets import members
from retention.consents import CLOCK, until_of
from retention.decide import Claim, Item
from retention.key_clocks import entry_states
from retention.models import EventRow
from retention.parts import streams_of

_COLUMNS = (
    "id, given_id, store, data_class, set_id, own_set_id, registered_by, confidence, created_at, observed_at, "
    "last_activity_at, confirmed_at, expires_at"
)
ROWS = f"SELECT {_COLUMNS} FROM artifact WHERE tenant_id = ?"  # noqa: S608 - names of ours
_FETCHED = 1_000
_EDGES = "SELECT child, parent_kind, parent FROM derivation WHERE tenant_id = ? AND child"
_SCOPES = "SELECT item, lookup FROM scope_key WHERE tenant_id = ? AND kind = ? AND item"


class Row(NamedTuple):
    """What a plan needs of an artifact's row."""

    id: int
    given_id: str | None
    store: str
    data_class: str
    set_id: int
    own_set_id: int
    registered_by: str
    confidence: float | None
    created_at: datetime
    observed_at: datetime | None
    last_activity_at: datetime | None
    confirmed_at: datetime | None
    expires_at: datetime | None


def rows_of(session: Session, head: str, known: Sequence[Any], values: Sequence[int]) -> Iterator[Row]:
    """The rows of a query that ends in a column of these values, as they come."""
    for row in _streamed(session, head, known, values):
        created = bulk.moment(row[8])
        if created is not None:  # as in every row
            yield Row._make((*row[:8], created, *map(bulk.moment, row[9:])))


def _streamed(session: Session, head: str, known: Sequence[Any], values: Sequence[int]) -> Iterator[tuple[Any, ...]]:
    session.flush()
    db = session.connection()
    on_postgres = db.dialect.name == "postgresql"
    for some in [values] if on_postgres else chunks(values):
        if on_postgres:
            query, given = f"{head.replace('?', '%s')} = ANY(%s::int8[])", (*known, bulk.array(db, "int8", some))
        else:
            query, given = f"{head} IN ({', '.join('?' * len(some))})", (*known, *some)
        result = db.exec_driver_sql(query, given)
        try:
            while page := result.cursor.fetchmany(_FETCHED):
                yield from page
        finally:
            result.close()


def facts_of(
    session: Session,
    tenant_id: int,
    rows: Iterable[Row],
    subjects: frozenset[int],
    known: Standing,
    *,
    claim: Claim | None,
) -> Sequence[ArtifactFact]:
    """The facts of these rows, in their order; of very many as columns."""
    more = iter(rows)
    first = list(islice(more, AS_COLUMNS + 1))
    if len(first) <= AS_COLUMNS:
        return _page(session, tenant_id, first, subjects, known, claim=claim)
    found = ArtifactFacts()
    more = chain(first, more)
    del first
    while page := list(islice(more, AS_COLUMNS)):
        for fact in _page(session, tenant_id, page, subjects, known, claim=claim):
            found.append(fact)
    return found


def _page(
    session: Session,
    tenant_id: int,
    rows: Sequence[Row],
    subjects: frozenset[int],
    known: Standing,
    *,
    claim: Claim | None,
) -> list[ArtifactFact]:
    people = members(session, tenant_id, {number for row in rows for number in (row.set_id, row.own_set_id)})
    ids = [row.id for row in rows]
    sources = _sources(session, tenant_id, ids, subjects, claim)
    scopes = _scopes(session, tenant_id, "a", ids)
    clocks = {name: fact.rules.starts for name, fact in known.classes.items()}
    waiting = {
        row.id: (clocks[row.data_class].removeprefix("event:"), scopes.get(row.id, frozenset()))
        for row in rows
        if clocks.get(row.data_class, "").startswith("event:")
    }
    events = _events(session, tenant_id, waiting)
    consents = until_of(session, tenant_id, rows, [name for name, starts in clocks.items() if starts == CLOCK])
    facts = []
    for row in rows:
        store = known.stores.get(row.store)
        facts.append(
            ArtifactFact(
                artifact_id=row.id,
                name=row.given_id or artifact_name(row.id),
                store=row.store,
                item=Item(
                    item_id=row.id,
                    data_class=row.data_class,
                    created=row.created_at,
                    subjects=people.get(row.set_id, frozenset()),
                    own_subjects=people.get(row.own_set_id, frozenset()),
                    observed=row.observed_at,
                    last_activity=row.last_activity_at,
                    consent_until=consents.get(row.id),
                    confidence=row.confidence,
                    confirmed=row.confirmed_at,
                    expires_at=row.expires_at,
                    events=events.get(row.id, {}),
                    scopes=scopes.get(row.id, frozenset()),
                ),
                sources=tuple(sources.get(row.id, ())),
                asserted_by=None if store is not None and store.checks_owner else row.registered_by,
            )
        )
    return facts


def _sources(
    session: Session, tenant_id: int, ids: Sequence[int], subjects: frozenset[int], claim: Claim | None
) -> dict[int, list[SourceFact]]:
    edges = list(bulk.select_in(session, _EDGES, (tenant_id,), ids, "int8"))
    parents = _parents(session, tenant_id, sorted({ref for _, kind, ref in edges if kind == "a"}))
    entries = _entries(session, tenant_id, sorted({ref for _, kind, ref in edges if kind == "e"}), subjects, claim)
    sources: dict[int, list[SourceFact]] = defaultdict(list)
    for child, kind, ref in sorted(edges):
        source = (parents if kind == "a" else entries).get(ref)
        if source is not None:
            sources[child].append(source)
    return sources


def _parents(session: Session, tenant_id: int, ids: Sequence[int]) -> dict[int, SourceFact]:
    found: dict[int, SourceFact] = {}
    for chunk in chunks(ids):
        rows = session.execute(
            sa.select(col(Artifact.id), col(Artifact.given_id), col(Artifact.status), col(Artifact.ends_at)).where(
                col(Artifact.tenant_id) == tenant_id, col(Artifact.id).in_(chunk)
            )
        )
        for ref, given, status, ends in rows:
            found[ref] = SourceFact(kind="a", ref=ref, name=given or artifact_name(ref), status=status, ends_at=ends)
    return found


def _entries(
    session: Session, tenant_id: int, ids: Sequence[int], subjects: frozenset[int], claim: Claim | None
) -> dict[int, SourceFact]:
    rows: list[Any] = []
    for chunk in chunks(ids):
        rows += session.execute(
            sa.select(
                col(EntryRow.idx),
                col(EntryRow.entry_id),
                col(EntryRow.set_id),
                col(EntryRow.data_class),
                col(EntryRow.stream_no),
            ).where(col(EntryRow.tenant_id) == tenant_id, col(EntryRow.idx).in_(chunk))
        )
    people = members(session, tenant_id, {row.set_id for row in rows})
    streams = streams_within(session, tenant_id, claim)
    states = entry_states(session, tenant_id, ids)
    return {
        row.idx: SourceFact(
            kind="e",
            ref=row.idx,
            name=f"entry:{UUID(bytes=row.entry_id)}",
            status=states.get(row.idx, "live"),
            about_subjects=not people.get(row.set_id, frozenset()).isdisjoint(subjects)
            and (streams is None or row.stream_no in streams)
            and (claim is None or claim.data_classes is None or row.data_class in claim.data_classes),
        )
        for row in rows
    }


def streams_within(session: Session, tenant_id: int, claim: Claim | None) -> frozenset[int] | None:
    """The streams of the conversation that a request is limited to; None where it is not limited to one."""
    if claim is None or claim.scopes is None:
        return None
    return streams_of(session, tenant_id, claim.scopes)


def _scopes(session: Session, tenant_id: int, kind: str, items: Sequence[int]) -> dict[int, frozenset[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for item, lookup in bulk.select_in(session, _SCOPES, (tenant_id, kind), items, "int8"):
        found[item].add(bytes(lookup).hex())
    return {item: frozenset(lookups) for item, lookups in found.items()}


def _events(
    session: Session, tenant_id: int, wanted: Mapping[int, tuple[str, frozenset[str]]]
) -> dict[int, dict[str, datetime | None]]:
    """The events that started the clock of each item: those of the class's name with one of the item's scope keys."""
    names = sorted({name for name, _ in wanted.values()})
    if not names:
        return {}
    lookups = sorted({bytes.fromhex(scope) for _, scopes in wanted.values() for scope in scopes})
    happened: dict[tuple[str, str], datetime] = {}
    for chunk in chunks(lookups):
        rows = session.execute(
            sa.select(col(EventRow.name), col(EventRow.lookup), sa.func.max(col(EventRow.at)))
            .where(col(EventRow.tenant_id) == tenant_id, col(EventRow.name).in_(names), col(EventRow.lookup).in_(chunk))
            .group_by(col(EventRow.name), col(EventRow.lookup))
        )
        happened.update({(name, lookup.hex()): at for name, lookup, at in rows})
    return {
        item: {scope: happened[name, scope] for scope in scopes if (name, scope) in happened}
        for item, (name, scopes) in wanted.items()
    }
