"""From a sheet to sealed drafts: what each saying means is looked up once, and the entries are sealed elsewhere.

Guarantees: a saying is judged as `registry.drafting` judges an entry that says it, in the same one transaction; a sheet
of which some part depends on the time or the content of an entry (somebody is fenced or has returned, a class expects
no content, a lock ends in another month) is not `plain`, and is to be taken item by item. Not here: reading, sealing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlmodel import Session

from ledger.draft import Draft, SealedPart
from ledger.entry import sources_root
from registry.acting import Acting
from registry.drafting import MAX_AHEAD, Drafting, EntryShape, Item, lock_end
from registry.entries import EntryIn, Parsed, ParsedPart
from registry.sealing import ALGORITHM
from registry.sheets import Saying, SealedSheet, SealOrder, Shape, ShapedHeader, Sheet, spoken_for
from vault.vault import Vault


class _Meant(NamedTuple):
    """What a saying turned out to mean."""

    shape: EntryShape
    sent: EntryIn
    spoken: bytes | None
    sources_root: bytes | None


def is_timely(sheet: Sheet, now: datetime) -> bool:
    """Whether no entry is refused for its time. To be asked first: what is refused makes nobody known."""
    return max(sheet.ats) <= now + MAX_AHEAD


class SheetDrafting:
    """The drafts of one sheet: everything is looked up in the caller's transaction, sealed and made after it.

    For a sheet that `is_timely`.
    """

    def __init__(self, vault: Vault, session: Session, acting: Acting, now: datetime, sheet: Sheet) -> None:
        """Look up what the sayings need, and make people, streams and keys that are new."""
        self._sheet = sheet
        self._acting = acting
        self._now = now
        ids = dict(zip(reversed(sheet.says), reversed(sheet.ids), strict=True))
        spoken = [
            Item(number=number, parsed=_parsed(saying, ids[number], now)) for number, saying in enumerate(sheet.sayings)
        ]
        self._drafting = Drafting(vault, session, acting, now, spoken)
        self._refused = {item.number: item.problem for item in spoken if item.problem is not None}
        self._meant = {
            ready.item.number: _Meant(
                self._drafting.shape_of(ready),
                ready.parsed.sent,
                ready.spoken,
                sources_root(ready.parsed.sent.sources) if ready.parsed.sent.sources else None,
            )
            for ready in self._drafting.ready
        }
        self.is_plain = self._is_plain()

    def _is_plain(self) -> bool:
        latest = max(self._sheet.ats)
        places = {place.prk.number: place for meant in self._meant.values() for place in meant.shape.places}
        return (
            all(fate.is_open and fate.spec.content == "expected" for fate in self._drafting.fates)
            # Ends of locks are months: when the latest entry has the same one, all have.
            and all(lock_end(place.spec, latest, self._now) == place.prk.until for place in places.values())
        )

    def order(self) -> SealOrder:
        """Return what it takes to seal the sheet."""
        return SealOrder(
            tenant=str(self._acting.tenant_id),
            log_id=self._acting.log_id,
            received=self._now,
            digest_key=self._drafting.digest_key,
            keys=self._drafting.keys,
            shapes=[_shape(self._meant.get(number)) for number in range(len(self._sheet.sayings))],
        )

    def items(self) -> list[Item]:
        """Return the call's items in order, each refused or to be given its draft."""
        sheet = self._sheet
        made = [Item(number=one.number, problem=one.problem, entry_id=one.entry_id) for one in sheet.refused]
        for number, says, entry_id in zip(sheet.numbers, sheet.says, sheet.ids, strict=True):
            made.append(Item(number=number, problem=self._refused.get(says), entry_id=entry_id))
        return sorted(made, key=_number) if sheet.refused else made

    def drafts(self, items: Sequence[Item], sealed: SealedSheet) -> list[Draft]:
        """Return the drafts of the items that are not refused, and note them in the items.

        Raises: ValueError when what is sealed has another number of parts.
        """
        sheet, now = self._sheet, self._now
        odd = frozenset(sheet.odd)
        parts, digests = zip(sealed.ciphertexts, sealed.hashes, strict=True), iter(sealed.digests)
        stems = iter(sealed.stems)
        made: list[Draft] = []
        for place, (number, says, at, seq) in enumerate(
            zip(sheet.numbers, sheet.says, sheet.ats, sheet.seqs, strict=True)
        ):
            meant = self._meant.get(says)
            if meant is None:
                continue
            shape, sent, _, root = meant
            draft = Draft(
                entry_id=sheet.ids[place],
                kind=sent.kind,
                data_class=sent.data_class,
                class_version=shape.class_version,
                at=at,
                received=now,
                recorder=shape.recorder,
                seq=seq,
                stream_id=shape.stream.stream_id,
                stream_no=shape.stream.stream_no,
                run_no=shape.run_no,
                set_id=shape.set_id,
                sources_count=len(sent.sources),
                sources_root=root,
                # The places come first: where they end, what was sealed of the next entry stays.
                parts=tuple(
                    [
                        SealedPart(
                            role=role,
                            algorithm=ALGORITHM,
                            ciphertext=ciphertext,
                            lock_until=prk.until,
                            key_ids=prk.key_ids,
                            sha256=digest,
                        )
                        for (role, _, prk, _), (ciphertext, digest) in zip(shape.places, parts, strict=False)
                    ]
                ),
                subjects=shape.people,
                digest=next(digests),
                noncanonical=place in odd,
                stem=next(stems),
            )
            items[number].draft = draft
            made.append(draft)
        return made

    def moving(self, items: Sequence[Item]) -> dict[int, dict[str, bytes]]:
        """Return the bodies that machines listen to, by stream and entry id, of the items that have a draft."""
        found: dict[int, dict[str, bytes]] = {}
        for place, body in self._sheet.heard.items():
            item = items[self._sheet.numbers[place]]
            if item.draft is not None and item.entry_id is not None:
                found.setdefault(item.draft.stream_no, {})[item.entry_id] = body
        return found


def _shape(meant: _Meant | None) -> Shape | None:
    if meant is None:
        return None
    shape, sent = meant.shape, meant.sent
    parts = tuple((place.prk.number, place.bound) for place in shape.places)
    header = ShapedHeader(
        kind=sent.kind,
        data_class=sent.data_class,
        recorder=shape.recorder,
        stream=shape.stream.stream_id,
        sources_count=len(sent.sources),
        sources_root=meant.sources_root,
        algorithm=ALGORITHM,
        roles=tuple(place.role for place in shape.places),
    )
    return Shape(parts, meant.spoken, shape.facts, header)


def _parsed(saying: Saying, entry_id: str, now: datetime) -> Parsed:
    parts = tuple(
        ParsedPart(
            name=part.name,
            form=part.form,
            data=b"",
            subjects=part.subjects,
            data_class=part.data_class,
            pinned=part.pinned,
            noncanonical=False,
        )
        for part in saying.parts
    )
    return Parsed(sent=spoken_for(saying, entry_id), raw=b"", at=now, parts=parts)


def _number(item: Item) -> int:
    return item.number
