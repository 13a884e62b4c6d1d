"""One item of a registration: parsed, checked against its class and store, with its place looked up.

Guarantees: an item that passes names a class and a store in force that the token may use, a place of the right shape,
well-formed people and sources, and times and numbers in range. Refusals are per item and repeat no value.
Does not know whether its sources exist; that is `registry.registration`. Source: API §4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from registry import details
from registry.acting import Acting
from registry.declaration import DataClass
from registry.errors import InvalidDeclaration, MalformedSubject, NotBuilt
from registry.identifiers import Identifier, parse_subject
from registry.keyed import Lookups, canonical_json
from registry.locators import MalformedLocator, canonical_locator, kind_of_places, normal_locator
from registry.models import StoreRow
from registry.reading import Faults, Reader, is_list
from registry.value_schema import check_value, compile_schema

GIVEN_ID = re.compile(r"art_[A-Za-z0-9_-]{1,60}")
OWN_ID = re.compile(r"art_([0-9a-f]{16})")
"""The form of ids that the service makes itself (`registry.ids.artifact_name`)."""
_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
METHOD = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ACTIVITY = ("kind", "run", "model", "prompt_version", "retrieval_version")
_VERSIONS = ("workflow", "tools", "policy", "prompt", "schema")
_SHORT = 512
_ANY_TIME = datetime.max.replace(tzinfo=UTC)
AHEAD = timedelta(hours=1)
"""By how much a sender's clock may be ahead of ours."""
_TOLD = frozenset({"scope", "activity", "versions", "source_ref", "purposes", "after_action"})
"""Members that are sealed with the place."""
MAX_SOURCES = 10_000
MAX_SUBJECTS = 1_000
"""How many people may stand behind an item, unless its class is declared an aggregate. Source: DESIGN §5."""
MAX_AGGREGATED = 100_000


class ItemRejected(Exception):
    """One item is refused, the rest of its batch is not. `problem` is a documented type."""

    def __init__(self, problem: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.pointer = pointer


class Source(NamedTuple):
    """What an item was made from, as the caller names it: an artifact's id, a place, or an entry of the record."""

    kind: str
    key: str | bytes | tuple[str, bytes]


class Item(NamedTuple):
    """One item as it will be registered. `details` is everything in free form (`registry.details`), to be sealed."""

    given_id: str | None
    data_class: DataClass
    store: str
    locator_hash: bytes
    subjects: tuple[Identifier, ...]
    sources: tuple[Source, ...]
    details: bytes
    scope: Mapping[str, str]
    activity: str | None
    run: str | None
    """The run that made it."""
    source_type: str | None
    verification: str | None
    confidence: float | None
    digest: bytes | None
    observed_at: datetime | None
    expires_at: datetime | None
    anonymised: bool
    """Whether its making was declared to take the people of its sources out."""
    after_action: bytes | None = None
    """The look-up of the product write that must have succeeded before."""

    def __repr__(self) -> str:
        """Its class and store only: the rest may name somebody."""
        return f"Item(data_class={self.data_class.name!r}, store={self.store!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every item of a batch is checked against."""

    acting: Acting
    classes: Mapping[str, DataClass]
    stores: Mapping[str, StoreRow]
    lookups: Lookups
    seen_by: datetime = _ANY_TIME
    """Nothing was observed later; without it nobody reads items, but their sources only."""
    open_classes: dict[str, DataClass] = field(default_factory=dict)
    """Those that the token was found to be allowed."""
    open_stores: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name and kind of places of those that the token was found to be allowed."""


def given_id_of(raw: object) -> str | None:
    """The id that a refused item was given, if it has the form of one; whatever else stands there is not repeated."""
    found = raw.get("id") if isinstance(raw, Mapping) else None
    return found if isinstance(found, str) and GIVEN_ID.fullmatch(found) else None


def parse_item(raw: object, context: Context) -> Item:
    """The item. Raises: ItemRejected."""
    if not isinstance(raw, Mapping):
        raise ItemRejected("invalid", "expected an object")
    faults = Faults("artifact")
    reader = Reader(raw, faults)
    data_class, (store, kind) = _class_of(reader, context), _store_of(reader, context)
    try:
        locator = normal_locator(kind, reader.raw("locator"))
        place = canonical_locator(locator)
    except MalformedLocator as error:
        raise ItemRejected(error.problem, error.detail, "/locator") from error
    # An absent member costs a look-up here, not a read: most items have few, and batches have thousands of items.
    said = reader.fields.keys()
    subjects = _subjects(reader, data_class)
    sources = read_sources(reader, context) if "sources" in said else ()
    activity, activity_details, anonymisation = _activity(reader) if "activity" in said else (None, {}, {})
    scope = _scope(reader) if "scope" in said else {}
    after_action = reader.text("after_action", limit=_SHORT) or None if "after_action" in said else None
    told: dict[str, Any] = {"locator": locator}
    if _TOLD & said:
        told |= {
            "scope": scope,
            "activity": activity_details,
            "anonymisation": anonymisation,
            "versions": _texts(reader.inner("versions"), _VERSIONS),
            "source_ref": reader.text("source_ref", limit=_SHORT) or None,
            "purposes": list(reader.codes("purposes")),
            "after_action": after_action,
        }
    value_digest = _value(reader, data_class) if "value" in said or data_class.schema is not None else None
    item = Item(
        given_id=reader.code("id", pattern=GIVEN_ID) if "id" in said else None,
        data_class=data_class,
        store=store,
        locator_hash=context.lookups.locator(store, place),
        subjects=subjects,
        sources=sources,
        details=_encoded(told),
        scope=scope,
        activity=activity,
        run=activity_details.get("run"),
        source_type=reader.code("source_type", pattern=_CODE) if "source_type" in said else None,
        verification=reader.code("verification", pattern=_CODE) if "verification" in said else None,
        confidence=reader.share("confidence") if "confidence" in said else None,
        digest=_digest(reader, context.lookups, value_digest) if "digest" in said or value_digest else None,
        observed_at=reader.instant("observed_at") if "observed_at" in said else None,
        expires_at=reader.instant("expires_at") if "expires_at" in said else None,
        anonymised=bool(anonymisation),
        after_action=None if after_action is None else context.lookups.of("action", after_action),
    )
    reader.done()
    _check_together(item, reader, context.seen_by)
    try:
        faults.raise_any()
    except NotBuilt as error:
        raise ItemRejected("not-built", error.faults[0].detail, error.faults[0].pointer) from error
    except InvalidDeclaration as error:
        raise ItemRejected("invalid", error.faults[0].detail, error.faults[0].pointer) from error
    return item


def _encoded(said: Mapping[str, Any]) -> bytes:
    try:
        return details.write(said)
    except UnicodeEncodeError:
        raise ItemRejected("invalid", "a text is not valid Unicode") from None


def read_sources(reader: Reader, context: Context) -> tuple[Source, ...]:
    """The sources of an item, each once. Raises: ItemRejected."""
    raw = reader.raw("sources")
    if raw is None:
        return ()
    if not is_list(raw) or len(raw) > MAX_SOURCES:
        raise ItemRejected("invalid", f"expected a list of at most {MAX_SOURCES} sources", "/sources")
    return tuple(dict.fromkeys([_source(one, number, context) for number, one in enumerate(raw)]))


def _class_of(reader: Reader, context: Context) -> DataClass:
    name = reader.raw("data_class")
    if isinstance(name, str) and (found := context.open_classes.get(name)) is not None:
        return found
    if not isinstance(name, str) or name not in context.classes:
        raise ItemRejected("unknown-class", "no data class of that name is in force; register it first", "/data_class")
    if not context.acting.may_use_class(name):
        raise ItemRejected("outside-token-scope", "the token may not register items of this class", "/data_class")
    return context.open_classes.setdefault(name, context.classes[name])


def _store_of(reader: Reader, context: Context) -> tuple[str, str]:
    """Its name and the kind of its places."""
    name = reader.raw("store")
    if isinstance(name, str) and (found := context.open_stores.get(name)) is not None:
        return found
    if not isinstance(name, str) or name not in context.stores:
        raise ItemRejected("unknown-store", "no store of that name is in force; register it first", "/store")
    if not context.acting.may_use_store(name):
        raise ItemRejected("outside-token-scope", "the token may not register items in this store", "/store")
    store = context.stores[name]
    return context.open_stores.setdefault(name, (store.name, kind_of_places(store.kind, store.config)))


def _subjects(reader: Reader, data_class: DataClass) -> tuple[Identifier, ...]:
    raw = reader.raw("subjects")
    if raw is None:
        return ()
    if not is_list(raw) or len(raw) > MAX_SUBJECTS:
        raise ItemRejected("invalid", f"expected a list of at most {MAX_SUBJECTS} subjects", "/subjects")
    found = []
    for number, text in enumerate(raw):
        try:
            one = parse_subject(text)
        except MalformedSubject as error:
            raise ItemRejected("malformed-subject", error.detail, f"/subjects/{number}") from error
        if data_class.subject_types and one.type not in data_class.subject_types:
            listed = ", ".join(data_class.subject_types)
            raise ItemRejected("invalid", f"the class lists subject types {listed} only", f"/subjects/{number}")
        found.append(one)
    return tuple(found) if len(found) < 2 else tuple(dict.fromkeys(found))  # noqa: PLR2004 - one is distinct


def _source(raw: object, number: int, context: Context) -> Source:
    pointer = f"/sources/{number}"
    if isinstance(raw, str):
        if raw.startswith("entry:"):
            try:
                return Source("entry", UUID(raw.removeprefix("entry:")).bytes)
            except ValueError:
                raise ItemRejected("unknown-source", "entry: is followed by the entry's UUID", pointer) from None
        if GIVEN_ID.fullmatch(raw):
            return Source("artifact", raw)
        raise ItemRejected("unknown-source", "expected art_…, entry:<uuid>, or a store and locator", pointer)
    if not isinstance(raw, Mapping) or set(raw) != {"store", "locator"}:
        raise ItemRejected("unknown-source", "expected art_…, entry:<uuid>, or a store and locator", pointer)
    store = context.stores.get(raw["store"]) if isinstance(raw["store"], str) else None
    if store is None:
        raise ItemRejected("unknown-store", "no store of that name is in force", f"{pointer}/store")
    try:
        place = canonical_locator(normal_locator(kind_of_places(store.kind, store.config), raw["locator"]))
    except MalformedLocator as error:
        raise ItemRejected(error.problem, error.detail, f"{pointer}/locator") from error
    return Source("place", (store.name, context.lookups.locator(store.name, place)))


def _activity(reader: Reader) -> tuple[str | None, dict[str, str], dict[str, str]]:
    """Its kind, what else was said of it, and the anonymisation it declares."""
    inner = reader.inner("activity")
    if inner is None:
        return None, {}, {}
    kind = inner.code("kind", pattern=_CODE)
    declared: dict[str, str] = {}
    if (anonymisation := inner.inner("anonymisation")) is not None:
        why = "without its basis (why nobody can be found in it) the people of the sources stay"
        basis = anonymisation.text("basis", required=why, limit=_SHORT)
        method = anonymisation.code("method", pattern=METHOD)
        anonymisation.done()
        declared = {"basis": basis or "?", "method": method or "unspecified"}
    return kind, _texts(inner, _ACTIVITY), declared


def _texts(inner: Reader | None, names: tuple[str, ...]) -> dict[str, str]:
    if inner is None:
        return {}
    found = {name: inner.text(name, limit=_SHORT) for name in names}
    inner.done()
    return {name: value for name, value in found.items() if value}


def _scope(reader: Reader) -> dict[str, str]:
    raw = reader.raw("scope")
    if raw is None:
        return {}
    if not isinstance(raw, Mapping) or len(raw) > 32:  # noqa: PLR2004 - keys of one item, each an index row
        raise ItemRejected("invalid", "expected an object of at most 32 names and values", "/scope")
    for name, value in raw.items():
        if not isinstance(name, str) or not _CODE.fullmatch(name):
            raise ItemRejected("invalid", f"expected names matching {_CODE.pattern}", "/scope")
        if not isinstance(value, str) or not 1 <= len(value) <= _SHORT:
            raise ItemRejected("invalid", f"expected texts of 1 to {_SHORT} characters", f"/scope/{name}")
    return dict(raw)


def _digest(reader: Reader, lookups: Lookups, of_value: str | None) -> bytes | None:
    text = reader.code("digest", pattern=_DIGEST) or of_value
    return None if text is None else lookups.digest(text)


def _value(reader: Reader, data_class: DataClass) -> str | None:
    """The SHA-256 of a value that fits its class's schema; the value itself is checked and forgotten.

    Raises: ItemRejected.
    """
    given = "value" in reader.fields
    value = reader.raw("value")
    if data_class.schema is None:
        if given:
            detail = "the class has no schema: a value is only checked, never kept, so leave it out"
            raise ItemRejected("invalid", detail, "/value")
        return None
    if not given:
        raise ItemRejected("invalid", "missing: the class says what a value looks like", "/value")
    if fault := check_value(compile_schema(data_class.schema), value):
        raise ItemRejected("invalid", fault, "/value")
    try:
        return sha256(canonical_json({"value": value})).hexdigest()
    except (UnicodeEncodeError, OverflowError):
        raise ItemRejected("invalid", "expected valid Unicode and whole numbers up to 64 bits", "/value") from None


def _check_together(item: Item, reader: Reader, seen_by: datetime) -> None:
    if item.observed_at is not None and item.observed_at > seen_by:
        reader.add("observed_at", "lies in the future: nothing was seen yet, and a clock would start then")
    if item.expires_at is not None and item.observed_at is not None and item.expires_at <= item.observed_at:
        reader.add("expires_at", "not after observed_at: it would have ended before it was seen")
    if item.data_class.personal and not item.subjects and not item.sources:
        raise ItemRejected("no-subject", "a personal class needs a subject or a source", "/subjects")
    write = item.data_class.write
    if write is not None and write.follows_action and item.after_action is None:
        reader.add("after_action", "missing: a memory of this class follows a product write; name its action id")
    if item.anonymised and item.data_class.personal:
        reader.add("data_class", "anonymous output belongs into a class with personal: false, or it is still personal")
    if item.anonymised and (item.subjects or not item.sources):
        reader.add("activity", "an anonymisation has sources and names nobody")
    if item.data_class.requires_sources and not item.sources:
        reader.add("sources", "missing: the class demands where the item came from")
