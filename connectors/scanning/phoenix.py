"""Phoenix's traces: spans with what was said, and the copies that outlive them. Source: store-recipes.md §1c.

Guarantees: sessions, spans, dataset examples, their revisions and experiment runs are counted apart, because deleting a
trace reaches the spans only. Owners are read from the spans' attributes (OpenInference, GenAI).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from connectors.scanning.database import Database, SqliteReader, Unreadable
from connectors.scanning.langgraph import fields_of
from connectors.scanning.look import Look, time_of
from connectors.scanning.report import DryRun, Place, Setting
from connectors.scanning.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = (
    "project_sessions", "traces", "spans", "span_annotations", "document_annotations", "trace_annotations",
    "dataset_examples", "dataset_example_revisions", "experiment_runs",
)  # fmt: skip


def is_phoenix(db: Database) -> bool:
    """Tell whether the tables are Phoenix's."""
    return db.has("project_sessions", "traces", "spans") and db.tables["spans"].has("attributes")


def scan_phoenix(db: Database, look: Look, label: str, config: Mapping[str, Any]) -> Place:
    """Return what traces and their copies hold."""
    place = Place(what="phoenix", label=label, kind="sql", config=config, ages=look.ages(), registrable=False)
    mentions = 0
    for name in TABLES:
        if name in db.tables:
            try:
                place.parts[name] = db.count(f"SELECT count(*) FROM {db.from_(name)}")
                place.rows += place.parts[name]
                mentions += _mentions(db, look, name)
            except Unreadable as error:
                place.unread.append(f"{name}: {error}")
    try:
        own = _spans(db, look, place)
        if look.subject is not None:
            place.dry_run = DryRun(items=own, mentions=max(0, mentions - own))
    except Unreadable as error:
        place.unread.append(f"spans: {error}")
    _copies(db, place)
    if place.parts.get("project_sessions"):
        place.leaves.append(f"{place.parts['project_sessions']} sessions, which outlive a deleted trace")
    why = "PHOENIX_DEFAULT_RETENTION_POLICY_DAYS is 0, for ever, unless somebody set it; the file does not say"
    place.settings.append(Setting(name="retention", value="not kept in the file", dangerous=True, why=why))
    return place


def _mentions(db: Database, look: Look, name: str) -> int:
    table = db.tables[name]
    wide = [column for column, kind in table.types.items() if not kind.startswith(("int", "bool", "timestamp"))]
    text = look.text()
    if text is None or not wide:
        return 0
    holds = " OR ".join(db.holds(db.quoted(column), table.types[column]) for column in wide)
    return db.count(f"SELECT count(*) FROM {db.from_(name)} WHERE {holds}", *[text] * len(wide))


def _spans(db: Database, look: Look, place: Place) -> int:
    own = 0
    threads = Threads(look)
    start = "start_time" if "start_time" in db.tables["spans"].columns else "NULL"
    for attributes, at in db.rows(f"SELECT {db.text('attributes')}, {start} FROM {db.from_('spans')}"):
        place.bytes += len(attributes or "")
        place.ages.add(time_of(at))
        fields = fields_of(attributes) or {}
        flat = {**fields, **_flat(fields, "user", "session", "enduser")}
        owner = look.owner_in(flat)
        if owner is None:
            place.nobody += 1
        else:
            place.people.add([owner[1]])
            place.owner_fields[owner[0]] += 1
            own += look.is_subject(owner[1])
        if isinstance(session := flat.get("session.id"), str):
            threads.add(session, owner)
    threads.sum_up(place, nobody=False)
    return own


def _flat(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return `user.id` and the like from nested members, as Phoenix keeps attributes."""
    found: dict[str, Any] = {}
    for name in names:
        inner = fields.get(name)
        if isinstance(inner, dict):
            found |= {f"{name}.{key}": value for key, value in inner.items()}
    return found


def _copies(db: Database, place: Place) -> None:
    try:
        if "dataset_examples" in db.tables and db.tables["dataset_examples"].has("span_id"):
            lost = db.count(f"SELECT count(*) FROM {db.from_('dataset_examples')} WHERE span_id IS NULL")
            place.orphan("dataset examples without a span", lost, "copied from a span that was deleted, or by hand")
        revisions = db.tables.get("dataset_example_revisions")
        if revisions is not None and revisions.has("dataset_example_id", "revision_kind"):
            table = db.from_("dataset_example_revisions")
            old = db.count(
                f"SELECT count(*) FROM {table} o WHERE o.revision_kind <> 'DELETE' AND EXISTS (SELECT 1 FROM {table} d"
                " WHERE d.dataset_example_id = o.dataset_example_id AND d.revision_kind = 'DELETE')"
            )
            place.orphan("revisions of deleted examples", old, "a deleted example keeps every text it ever had")
        for name, what in (("experiment_runs", "experiment runs"), ("dataset_examples", "dataset examples")):
            if place.parts.get(name):
                place.leaves.append(f"{place.parts[name]} {what}, which deleting a trace does not reach")
        if isinstance(db, SqliteReader):
            place.leaves.append("free pages of the file: Phoenix neither vacuums nor deletes securely")
    except Unreadable as error:
        place.unread.append(f"copies: {error}")
