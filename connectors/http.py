"""Kind `http`: what a vendor keeps behind its API, driven by a recipe (`connectors.http_recipe`).

Config: `{"url", "recipe", "secret"?, "owner_field"?, "scope"?}`; locators `{"kind", …the recipe's fields}`.

Guarantees: a success of the vendor is never an erasure: only a read that no longer finds the item is (L1, and no level
above it can be shown). "Not found" counts as absent only where the item was seen before with these credentials
(`capture`, or an earlier read), or where the credentials were shown to lead to `scope`. A deletion that the vendor
takes and does later is `accepted` (L0) until a read shows the end. What belongs to an item and does not go with it is
listed and treated first or afterwards, and looked at again. Items go by id, one by one.

Not promised: what the vendor keeps in logs, backups, caches and derived data; a read and a delete are two requests, so
an item that changes its owner in between goes with the former one.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs
from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    owner_forms,
)
from connectors.errors import (
    BadConfig,
    BadLocator,
    ConnectorError,
    NotWalkable,
    ReadOnlyConnector,
    StoreUnreachable,
    Timeout,
    WrongCredentials,
)
from connectors.http_client import KIND, HttpClient
from connectors.http_recipe import Listing, Recipe, Thing, dotted, filled, load, path_of, text_of, values_of
from connectors.http_steps import Listings, Refused, Vendor
from connectors.residue import Needles, samples

if TYPE_CHECKING:
    from datetime import datetime

BATCH = 50
_SETTINGS = frozenset({"url", "recipe", "secret", "owner_field", "scope"})
_CANARIES = 8
_PAUSE = 0.2
_UNSEEN = "not found, and nobody saw it with these credentials: a wrong project or key looks the same"
_CANNOT = "the vendor's own files, logs and backups cannot be looked at"
_METHOD = "the vendor's API, by id"
_ACCEPTED = (Outcome.ACCEPTED, Level.L0, "the vendor took the deletion; the item can still be read")


def open_store(config: Mapping[str, Any], *, read_only: bool) -> HttpConnector:
    """Return the connector of a vendor; nothing is contacted yet. Raises: BadConfig."""
    if unknown := set(config) - _SETTINGS:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    url, secret = config.get("url"), config.get("secret")
    if not isinstance(url, str):
        raise BadConfig("url is missing")
    recipe = load(config.get("recipe"))
    if not isinstance(secret, str) or not secret.strip():
        raise BadConfig("secret is missing: env:… or file:… with the vendor's key")
    if config.get("scope") is not None and recipe.scope is None:
        raise BadConfig("scope is set, and the recipe knows no way to see it")
    headers = {**recipe.headers, recipe.auth.header: _auth(recipe, secret.strip())}
    client = HttpClient(url, headers)
    return HttpConnector(
        client, recipe, owner_field=config.get("owner_field"), scope=config.get("scope"), read_only=read_only
    )


def _auth(recipe: Recipe, secret: str) -> str:
    if any(ord(sign) < 32 or ord(sign) > 126 for sign in secret):  # noqa: PLR2004 -- RFC 9110 §5.5, visible characters
        raise BadConfig("the secret holds characters that no header can carry")
    if recipe.auth.basic:
        return "Basic " + base64.b64encode(secret.encode()).decode()
    return recipe.auth.value.replace("{secret}", secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """An item with its locator resolved."""

    item: Item
    kind: str
    thing: Thing
    values: Mapping[str, str] = field(repr=False)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, *(self.values[name] for name in sorted(self.values)))


class HttpConnector(Connector):
    """One vendor's API under one key."""

    def __init__(
        self, client: HttpClient, recipe: Recipe, *, owner_field: str | None, scope: str | None, read_only: bool
    ) -> None:
        self._client = client
        self._recipe = recipe
        self._vendor = Vendor(client)
        self._owner_field = owner_field
        self._scope = scope
        self._scope_shown = False
        self._read_only = read_only
        self._seen: set[tuple[str, ...]] = set()
        self._accepted: dict[tuple[str, ...], _Named] = {}

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind=KIND,
            erase_level=Level.L1,
            reclaim_level=Level.L1,
            verify_level=Level.L1,
            batch_size=BATCH,
            locks="nothing",
            fence=False,
            search=False,
            owner_check=self._owner_field is not None,
            discover=any(thing.listing is not None for thing in self._recipe.kinds.values()),
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        values_of(self._recipe, locator)

    # ── finding ───────────────────────────────────────────────────────────────────────────────────────────────────

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = owner_forms(selector.identifiers)
        blind = [
            name for name, thing in self._recipe.kinds.items() if thing.listing is None and thing.owner is not None
        ]
        for locator, entry, thing in self._listed(limit):
            owner = dotted(entry, (thing.listing.owner if thing.listing else None) or self._owner_field)
            if owner is None:
                # Lists of some vendors are shorter than what a read shows.
                owner = self._owner(self._read_thing(thing, locator, limit))
            if text_of(owner) in forms:
                yield locator
        if blind:
            raise BadLocator(f"kinds {', '.join(blind)} cannot be listed: their ids are registered when they are made")

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        if any(thing.listing is None for thing in self._recipe.kinds.values()):
            raise NotWalkable(KIND)
        for locator, _, _ in self._listed(limit):
            yield locator

    def _listed(self, limit: Deadline) -> Iterator[tuple[dict[str, Any], Any, Thing]]:
        self._check_scope(limit)
        for name, thing in self._recipe.kinds.items():
            if thing.listing is None:
                continue
            for entry in self._entries(thing.listing, limit):
                values = {field: text_of(dotted(entry, place)) for field, place in thing.listing.locator.items()}
                if any(value is None for value in values.values()):
                    raise BadLocator("the vendor lists something that no locator can name")
                yield {"kind": name, **values}, entry, thing

    def _entries(self, listing: Listing, limit: Deadline) -> Iterator[Any]:
        try:
            yield from Listings(self._client).entries(listing, {}, limit)
        except Refused as refused:
            raise StoreUnreachable(KIND, refused.detail) from None

    def _read_thing(self, thing: Thing, locator: Mapping[str, Any], limit: Deadline) -> Any:
        found = self._vendor.read(thing, {name: str(locator[name]) for name in thing.fields}, limit)
        return None if found is None else found.json()

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        self._check_scope(limit)
        found: dict[str, list[bytes]] = {}
        for item in items:
            named = self._named(item)
            answer = self._vendor.read(named.thing, named.values, limit)
            if answer is None:
                found[item.copy_id] = []
                continue
            self._seen.add(named.key)
            # At least one, so that whoever erases knows that the item was seen in this scope.
            found[item.copy_id] = _samples(answer.json()) or samples(answer.body) or [answer.body[:96]]
        return found

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        self._check_scope(limit)
        for item in items:
            named = self._named(item)
            answer = self._vendor.read(named.thing, named.values, limit)
            if answer is None and not self._was_seen(named):
                raise StoreUnreachable(KIND, _UNSEEN)
            yield item.copy_id, None if answer is None else answer.body

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(
            held=False, detail="a vendor's API cannot refuse one person's writes; late copies are looked for"
        )

    # ── erasing ───────────────────────────────────────────────────────────────────────────────────────────────────

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        self._writable("erase")
        limit = Deadline("erase", deadline)
        self._check_scope(limit)
        forms = owner_forms(owner_identifiers)
        receipts: list[Receipt] = []
        trouble: str | None = None
        for item in items:
            outcome, level, detail = Outcome.FAILED, None, trouble or "not reached before the deadline"
            if trouble is None and not limit.is_over():
                try:
                    outcome, level, detail = self._erase_one(self._named(item), forms, limit)
                except (BadLocator, Refused) as refused:
                    detail = refused.detail
                except (StoreUnreachable, WrongCredentials, Timeout) as error:
                    if not receipts:
                        raise
                    # What was done so far is known and is said; the rest is not tried against a vendor that is down.
                    detail = trouble = str(error)
            at = now + timedelta(seconds=limit.spent())
            receipts.append(
                Receipt(copy_id=item.copy_id, outcome=outcome, level=level, method=_METHOD, detail=detail, at=at)
            )
        return self._settled(items, receipts, limit)

    def _erase_one(self, named: _Named, forms: frozenset[str], limit: Deadline) -> tuple[Outcome, Level | None, str]:
        answer = self._vendor.read(named.thing, named.values, limit)
        if answer is None:
            if not self._was_seen(named):
                return Outcome.FAILED, None, _UNSEEN
            self._vendor.treat(named.thing.after, named.values, limit)
            self._accepted.pop(named.key, None)
            return Outcome.ALREADY_ABSENT, Level.L1, "read again with the credentials that saw it before"
        self._seen.add(named.key)
        owner = text_of(self._owner(answer.json()))
        if self._owner_field is not None and (owner is None or owner not in forms):
            return Outcome.OWNER_MISMATCH, None, "the item names another owner, or none"
        if named.key in self._accepted:
            return _ACCEPTED
        self._vendor.treat(named.thing.before, named.values, limit)
        later = self._vendor.delete(named.thing, named.values, limit)
        self._vendor.treat(named.thing.after, named.values, limit)
        if self._vendor.read(named.thing, named.values, limit) is None:
            return Outcome.ERASED, Level.L1, "deleted and read again"
        if not later:
            return Outcome.FAILED, None, "the vendor said it was done, and the item can still be read"
        self._accepted[named.key] = named
        return _ACCEPTED

    def _settled(self, items: Sequence[Item], receipts: list[Receipt], limit: Deadline) -> list[Receipt]:
        """Wait a little, for all together, for what the vendor took and does later."""
        waiting = {n: self._named(items[n]) for n, each in enumerate(receipts) if each.outcome is Outcome.ACCEPTED}
        patience = Deadline("patience", min(self._recipe.patience_seconds, limit.left()))
        while waiting:
            for number, named in list(waiting.items()):
                receipt = receipts[number]
                try:
                    if self._is_gone(named, limit):
                        detail = "deleted later by the vendor, and read again"
                        receipts[number] = structs.replace(
                            receipt, outcome=Outcome.ERASED, level=Level.L1, detail=detail
                        )
                        del waiting[number]
                except Refused as refused:
                    receipts[number] = structs.replace(
                        receipt, outcome=Outcome.FAILED, level=None, detail=refused.detail
                    )
                    del waiting[number]
                except ConnectorError:
                    return receipts  # what was taken stays taken; the next look tells
            if patience.is_over():
                break
            time.sleep(min(_PAUSE, patience.left()))
        return receipts

    def _is_gone(self, named: _Named, limit: Deadline) -> bool:
        """Tell whether a deletion that was taken has been done. Raises: Refused where the vendor's task failed."""
        try:
            self._vendor.check_task(named.thing, named.values, limit)
            if self._vendor.read(named.thing, named.values, limit) is not None:
                return False
            self._vendor.treat(named.thing.after, named.values, limit)
        except Refused:
            # Nothing of ours is outstanding there any more; another erase asks anew.
            self._accepted.pop(named.key, None)
            raise
        self._accepted.pop(named.key, None)
        return True

    @override
    def await_done(self, *, deadline: float) -> bool:
        limit = Deadline("await_done", deadline)
        while self._accepted:
            for named in list(self._accepted.values()):
                try:
                    self._is_gone(named, limit)
                except Refused:
                    continue
                except Timeout:
                    return False
            if self._accepted:
                if limit.left() <= _PAUSE:
                    return False
                time.sleep(_PAUSE)
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        self._writable("reclaim")
        residual: Literal["unknown"] = "unknown"
        return ReclaimReport(level=Level.L1, residual_until=residual, detail=self._recipe.keeps, method="none")

    # ── looking again ─────────────────────────────────────────────────────────────────────────────────────────────

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        self._check_scope(limit)
        return [self._verify_one(self._named(item), level, limit) for item in items]

    def _verify_one(self, named: _Named, level: Level, limit: Deadline) -> Finding:
        copy_id = named.item.copy_id
        if self._vendor.read(named.thing, named.values, limit) is not None:
            return Finding(copy_id=copy_id, level=None, present=True, how="read by id")
        if not self._was_seen(named):
            return Finding(copy_id=copy_id, level=None, present=None, how="read by id", could_not_check=_UNSEEN)
        for step in (*named.thing.before, *named.thing.after):
            if self._vendor.remains(step, named.values, limit):
                return Finding(copy_id=copy_id, level=None, present=True, how="what belongs to it is still listed")
        if level <= Level.L1:
            return Finding(copy_id=copy_id, level=Level.L1, present=False, how="read by id")
        return Finding(copy_id=copy_id, level=Level.L1, present=None, how="read by id", could_not_check=_CANNOT)

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        """Return where what the vendor lists still holds the canaries; its own bytes are nobody's to see."""
        limit = Deadline("residue", deadline)
        if any(thing.listing is None for thing in self._recipe.kinds.values()):
            raise NotWalkable(KIND)
        needles = Needles(canaries)
        found: dict[tuple[str, int, str], int] = {}
        for locator, _, thing in self._listed(limit):
            answer = self._vendor.read(thing, {name: str(locator[name]) for name in thing.fields}, limit)
            for (number, encoding), count in needles.count_chunks([answer.body if answer else b""], limit).items():
                place = (f"what the API shows of kind {locator['kind']}", number, encoding)
                found[place] = found.get(place, 0) + count
        return [
            Residue(where=where, count=count, encoding=encoding, canary=number)
            for (where, number, encoding), count in found.items()
        ]

    # ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        self._writable("check")
        limit = Deadline("check", deadline)
        ready = [(name, thing) for name, thing in self._recipe.kinds.items() if thing.create is not None]
        findings: list[str] = []
        reached: Level | None = None
        erased, enforced = False, False
        try:
            self._check_scope(limit)
            if ready:
                erased, enforced, reached = self._try_out(*ready[0], now=now, limit=limit, findings=findings)
            else:
                self._reach(limit)
                findings.append("the recipe writes no canary: that the vendor answers is all that was shown")
        except BadConfig:
            raise
        except ConnectorError as error:
            reachable = not isinstance(error, StoreUnreachable | Timeout | WrongCredentials)
            return self._report(now, limit, (*findings, str(error)), reachable=reachable)
        except Refused as refused:
            findings.append(refused.detail)
        return self._report(now, limit, tuple(findings), erased=erased, enforced=enforced, reached=reached)

    def _reach(self, limit: Deadline) -> None:
        """Read something that does not exist, which needs credentials that work. Raises: ConnectorError, Refused."""
        thing = next(iter(self._recipe.kinds.values()))
        nothing = {name: f"muniment-check-{uuid.uuid4().hex}" for name in thing.fields}
        self._vendor.read(thing, nothing, limit)

    def _try_out(
        self, name: str, thing: Thing, *, now: datetime, limit: Deadline, findings: list[str]
    ) -> tuple[bool, bool, Level | None]:
        assert thing.create is not None  # noqa: S101 -- narrows for the type checker; the caller chose it so
        owner, canary = f"muniment-check-{uuid.uuid4().hex}", f"muniment canary {uuid.uuid4().hex}"
        request = thing.create.request
        values = {"owner": owner, "canary": canary}
        answer = self._client.send(request.method, request.path, limit, body=filled(request.body, values), once=True)
        if not answer.is_success:
            raise Refused(f"the vendor refused to write a canary ({answer.status})")
        made = {field: text_of(dotted(answer.json(), place)) for field, place in thing.create.locator.items()}
        if any(value is None for value in made.values()):
            raise Refused("the vendor's answer does not say what the canary's id is")
        item = Item(copy_id="check", locator={"kind": name, **made}, canaries=(canary.encode(),))
        enforced = True
        if self._owner_field is not None:
            wrong = self.erase([item], owner_identifiers=["check:nobody"], now=now, deadline=limit.left())[0]
            enforced = wrong.outcome is Outcome.OWNER_MISMATCH
            if not enforced:
                findings.append("an item of another owner was not left alone")
        receipt = self.erase([item], owner_identifiers=[f"user:{owner}"], now=now, deadline=limit.left())[0]
        if receipt.outcome is Outcome.ACCEPTED:
            findings.append("the vendor deletes later: the canary was still there after the recipe's patience")
        elif receipt.outcome not in {Outcome.ERASED, Outcome.ALREADY_ABSENT}:
            findings.append(f"the canary was not erased: {receipt.detail}")
            # It is ours by its id, whatever the vendor says of its owner; nothing of a check stays if we can help it.
            self._vendor.delete(thing, self._named(item).values, limit)
            return False, enforced, None
        seen = self.verify([item], Level.L1, deadline=limit.left())[0]
        return seen.present is False, enforced, seen.level or receipt.level

    def _report(
        self, now: datetime, limit: Deadline, findings: tuple[str, ...], *, reachable: bool = True,
        erased: bool = False, enforced: bool = False, reached: Level | None = None,
    ) -> CheckReport:  # fmt: skip
        checked: Literal["enforced", "not_configured", "failed"] = "not_configured"
        if self._owner_field is not None and (erased or enforced):
            checked = "enforced" if enforced else "failed"
        return CheckReport(
            reachable=reachable,
            can_erase=erased,
            level_reached=reached,
            owner_check=checked,
            took_ms=int(limit.spent() * 1000),
            findings=findings,
            checked_at=now,
        )

    @override
    def close(self) -> None:
        self._client.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _named(self, item: Item) -> _Named:
        kind, thing, values = values_of(self._recipe, item.locator)
        return _Named(item=item, kind=kind, thing=thing, values=values)

    def _was_seen(self, named: _Named) -> bool:
        return self._scope_shown or bool(named.item.canaries) or named.key in self._seen

    def _owner(self, found: Any) -> Any:
        return None if self._owner_field is None else dotted(found, self._owner_field)

    def _check_scope(self, limit: Deadline) -> None:
        """Show once that the credentials lead where the configuration says. Raises: WrongCredentials."""
        if self._scope is None or self._scope_shown or self._recipe.scope is None:
            return
        answer = self._client.send("GET", path_of(self._recipe.scope.path, {}), limit)
        if not answer.is_success or text_of(dotted(answer.json(), self._recipe.scope.field)) != str(self._scope):
            raise WrongCredentials(KIND, "the credentials lead to another project than the configured scope")
        self._scope_shown = True

    def _writable(self, operation: str) -> None:
        if self._read_only:
            raise ReadOnlyConnector(operation)


def _samples(found: Any) -> list[bytes]:
    """Return the longest texts of an answer, by which its content is told."""
    texts: list[str] = []
    waiting = [found]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            texts.append(each)
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    texts.sort(key=len, reverse=True)
    pieces = [piece for text in texts[:_CANARIES] for piece in samples(text.encode(errors="replace"))]
    return pieces[:_CANARIES]
