"""The keys of subjects: given out for sealing, opened for reading, destroyed for good.

Guarantees: one key for each (subject, class, month, scope), whoever asks first; a destroyed key is never made again;
nothing is given out for a fenced subject; a plaintext key stays in this process for at most ``cache_seconds``, and a
key whose row is not committed yet is not kept at all. Does not decide who may read, nor what has to go, and writes no
event: the caller does, before a binding step. The caller opens the transaction with its tenant and commits.

Python cannot wipe memory: an evicted key's bytes may stay in the process until they are overwritten by chance.

Example::

    handle = vault.key_for(session, tenant_id, subject_id, "transcript", "2026-05")
    sealed = seal(handle.key32, pack(body), context("acme", log_id, entry_id, 0))
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlmodel import Session

from vault import destruction, opening, proof, rows, snapshot
from vault.cache import TimedCache, awake_or_asleep
from vault.destruction import RetiredEpoch, RotateReport
from vault.errors import KeyDestroyed, KeyUnknown
from vault.keks import KekStore
from vault.models import KeyState
from vault.parts import KeptPart, PartInfo, PartReading, keep_parts, open_part, part_infos, try_open_parts
from vault.rows import AnyRow, PartId
from vault.snapshot import RestoreReport
from vault.transaction import pending
from vault.wrapping import KeyHandle, KeySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """What is known about a key without opening it."""

    key_id: str
    spec: KeySpec
    state: KeyState
    group_no: int
    epoch: int
    destroyed_at: datetime | None
    request: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Keys that opened, and why the others did not."""

    opened: dict[str, bytes]
    destroyed: dict[str, KeyDestroyed]


class Vault:
    """One process's access to the keys."""

    def __init__(
        self,
        keks: KekStore,
        *,
        clock: Callable[[], datetime],
        cache_count: int = 10_000,
        cache_seconds: float = 60.0,
        monotonic: Callable[[], float] = awake_or_asleep,
    ) -> None:
        """``clock`` dates new rows; ``cache_seconds`` is the bound that erasure waits for (DESIGN §4: 60)."""
        self.keks = keks
        self.cache_seconds = cache_seconds
        self._clock = clock
        self._keys: TimedCache[str, tuple[int, bytes]] = TimedCache(
            capacity=cache_count, seconds=cache_seconds, monotonic=monotonic
        )
        self._ids: TimedCache[tuple[int, KeySpec], str] = TimedCache(
            capacity=cache_count, seconds=cache_seconds, monotonic=monotonic
        )

    # ── giving out and opening ────────────────────────────────────────────────────────────────────────────────

    def key_for(  # noqa: PLR0917 - four fields name a key, as everywhere
        self, session: Session, tenant_id: int, subject_id: int, data_class: str, month: str, scope: str = ""
    ) -> KeyHandle:
        """Return the key to seal with, made if there is none. Raises as keys_for does."""
        spec = KeySpec(subject_id=subject_id, data_class=data_class, month=month, scope=scope)
        return self.keys_for(session, tenant_id, [spec])[spec]

    def keys_for(self, session: Session, tenant_id: int, specs: Iterable[KeySpec]) -> dict[KeySpec, KeyHandle]:
        """Return the keys to seal with, made where there are none; ask once for a whole flush.

        Raises KeyFenced for a fenced subject or a key that is being destroyed, KeyDestroyed for one that was, and
        KekDestroyed where the database is older than the key folder (restore the rows first).
        """
        wanted = set(specs)
        named = self._ids.get_many([(tenant_id, spec) for spec in wanted])
        held = self._keys.get_many(named.values())
        # The tenant is compared even though key ids are random: a key is never served across the wall.
        given = {
            spec: KeyHandle(key_id=key_id, key32=held[key_id][1])
            for (_, spec), key_id in named.items()
            if key_id in held and held[key_id][0] == tenant_id
        }
        missing = sorted(spec for spec in wanted if spec not in given)
        if missing:
            generations = self._generations()
            found = opening.rows_for_sealing(session, self.keks, tenant_id, missing, self._clock())
            opener = opening.Opener(self.keks)
            for spec, row in found.items():
                given[spec] = KeyHandle(key_id=row["key_id"], key32=opener.open_key(row))
                self._keep(session, row, given[spec].key32, generations)
        return given

    def open_keys(self, session: Session, tenant_id: int, key_ids: Iterable[str]) -> dict[str, bytes]:
        """Return the keys to read with. Raises KeyDestroyed and KeyUnknown, each naming the first such key."""
        reading = self.try_open_keys(session, tenant_id, key_ids)
        for fact in reading.destroyed.values():
            raise fact
        return reading.opened

    def try_open_keys(self, session: Session, tenant_id: int, key_ids: Iterable[str]) -> Reading:
        """Return the keys that open and, for those destroyed, since when and why. Raises KeyUnknown."""
        wanted = sorted(set(key_ids))
        opened = {key_id: key for key_id in wanted if (key := self._held(tenant_id, key_id)) is not None}
        missing = [key_id for key_id in wanted if key_id not in opened]
        destroyed: dict[str, KeyDestroyed] = {}
        if missing:
            generations = self._generations()
            found = rows.keys_by_id(rows.connection(session), tenant_id, missing)
            opener = opening.Opener(self.keks)
            for key_id in missing:
                if key_id not in found:
                    raise KeyUnknown(key_id)
                try:
                    opened[key_id] = opener.open_key(found[key_id])
                except KeyDestroyed as fact:
                    destroyed[key_id] = fact
                else:
                    self._keep(session, found[key_id], opened[key_id], generations)
        return Reading(opened=opened, destroyed=destroyed)

    def keys_of(self, session: Session, tenant_id: int, subject_ids: Iterable[int]) -> list[KeyInfo]:
        """Return every key these incarnations have or had."""
        return [_info(row) for row in rows.keys_of_subjects(rows.connection(session), tenant_id, subject_ids)]

    def info(self, session: Session, tenant_id: int, key_ids: Iterable[str]) -> dict[str, KeyInfo]:
        """Return what is known about these keys; unknown ones are left out."""
        found = rows.keys_by_id(rows.connection(session), tenant_id, key_ids)
        return {key_id: _info(row) for key_id, row in found.items()}

    def evict(self, key_ids: Iterable[str]) -> None:
        """Forget these keys in this process."""
        self._keys.evict(key_ids)

    def evict_all(self) -> None:
        """Forget every key in this process, key-encryption keys included."""
        self._keys.evict_all()
        self._ids.evict_all()
        self.keks.evict_all()

    def expire(self) -> None:
        """Forget what is past its time; called by a periodic job, so that unused keys do not stay either."""
        self._keys.expire()
        self._ids.expire()
        self.keks.expire()

    # ── parts that must outlive their data key ────────────────────────────────────────────────────────────────

    def keep_parts(self, session: Session, tenant_id: int, parts: Sequence[KeptPart]) -> int:
        """Keep the keys of parts; one already kept gets the new ground and end. Returns how many were not kept before.

        Raises KeyDestroyed if a part's key was destroyed, NotDecryptable if another key is already kept for it.
        """
        return keep_parts(session, self.keks, tenant_id, parts, self._clock())

    def open_part(self, session: Session, tenant_id: int, entry_id: str, part: int) -> bytes:
        """Return the part key. Raises KeyUnknown if none is kept, KeyDestroyed if it was destroyed."""
        return open_part(session, self.keks, tenant_id, (entry_id, part))

    def try_open_parts(self, session: Session, tenant_id: int, names: Collection[PartId]) -> PartReading:
        """Return the part keys that are kept for these parts, and those that were destroyed."""
        return try_open_parts(session, self.keks, tenant_id, names)

    def part_infos(self, session: Session, tenant_id: int, names: Collection[PartId]) -> dict[PartId, PartInfo]:
        """Return what is known about these parts' keys; those that never had one are left out."""
        return part_infos(session, tenant_id, names)

    def drop_parts(
        self, session: Session, tenant_id: int, parts: Sequence[PartId], *, now: datetime, request: str
    ) -> int:
        """Destroy part keys whose ground has ended; then rotate their groups. Returns how many changed."""
        return destruction.drop_parts(session, tenant_id, parts, now, request)

    # ── destruction, in the order of vault/destruction.py ─────────────────────────────────────────────────────

    def fence_subject(self, session: Session, tenant_id: int, subject_id: int, *, now: datetime, request: str) -> None:
        """Close an incarnation: from the commit on, no key of it is made or given out for sealing.

        Evicted here and again by the caller after the commit (`evict_all`), as for a key that goes. Another process
        that holds such a key may give it out for ``cache_seconds`` more: what must not be sealed is refused elsewhere.
        """
        db = rows.connection(session)
        row = {"tenant_id": tenant_id, "subject_id": subject_id, "fenced_at": now, "request": request}
        rows.insert_missing(db, rows.FENCES, [row])
        self._ids.evict_all()

    def mark_destroying(self, session: Session, tenant_id: int, key_ids: Sequence[str], *, request: str) -> int:
        """Step 1. From the commit on, nothing new is sealed under these keys and no process starts to hold them."""
        changed = destruction.mark_keys(session, tenant_id, key_ids, request)
        self.evict(key_ids)
        return changed

    def delete_wrapped(
        self, session: Session, tenant_id: int, key_ids: Sequence[str], *, now: datetime, request: str
    ) -> int:
        """Step 2. The rows lose their bytes and stay as tombstones; returns how many changed. Raises KeyUnknown.

        Evicted here and again by the caller after the commit: until then another thread may read the old row.
        """
        changed = destruction.delete_wrapped(session, tenant_id, key_ids, now, request)
        self.evict(key_ids)
        return changed

    def groups_of(
        self, session: Session, tenant_id: int, key_ids: Iterable[str], parts: Collection[PartId] = ()
    ) -> list[int]:
        """Return the groups that a destruction of these keys and parts touches."""
        db = rows.connection(session)
        found = [*rows.keys_by_id(db, tenant_id, key_ids).values(), *rows.parts_by_id(db, tenant_id, parts).values()]
        return sorted({int(row["group_no"]) for row in found})

    def rotate_groups(
        self,
        session: Session,
        tenant_id: int,
        groups: Iterable[int],
        now: datetime,
        grace: timedelta,
        *,
        force: bool = False,
    ) -> RotateReport:
        """Step 3. Wrap the groups' live rows under a new epoch; the old one is due ``grace`` after ``now``.

        A group without anything destroyed under its present epoch is skipped, unless ``force``.
        """
        return destruction.rotate_groups(session, self.keks, tenant_id, groups, now=now, grace=grace, force=force)

    def due_keks(self, session: Session, tenant_id: int, now: datetime) -> list[RetiredEpoch]:
        """Return what destroy_due_keks would destroy, for the binding event that comes first."""
        return destruction.due_keks(session, tenant_id, now)

    def destroy_due_keks(self, session: Session, tenant_id: int, now: datetime) -> list[RetiredEpoch]:
        """Step 5. Destroy the former epochs whose grace is over and that no row is wrapped under; return them."""
        return destruction.destroy_due_keks(session, self.keks, tenant_id, now)

    def prove_destroyed(
        self, session: Session, tenant_id: int, key_ids: Sequence[str], *, old_rows: bytes | None = None
    ) -> None:
        """Step 6. Try to open the keys with an instance that holds nothing, and return only if that fails.

        ``old_rows`` is a snapshot from before the destruction, such as a backup holds: its rows must not open either,
        once their epoch was destroyed. While its grace lasts they do by design; ``unopenable_since`` tells.
        Raises DestructionUnproven, and KeyUnknown for a key that has no tombstone.
        """
        proof.prove_destroyed(session, self.keks, tenant_id, key_ids, old_rows)

    def prove_parts_destroyed(self, session: Session, tenant_id: int, names: Collection[PartId]) -> None:
        """Step 6 for part keys. Raises DestructionUnproven, and KeyUnknown for a part that never had one."""
        proof.prove_parts_destroyed(session, self.keks, tenant_id, names)

    def unopenable_since(
        self, session: Session, tenant_id: int, key_ids: Sequence[str], parts: Collection[PartId] = ()
    ) -> datetime | None:
        """Return since when no backup of the rows opens any of these keys and part keys, or None while one might.

        That is when the last epoch that wrapped one of them was destroyed.
        """
        return proof.unopenable_since(session, self.keks, tenant_id, key_ids, parts)

    def final_at(
        self, session: Session, tenant_id: int, key_ids: Sequence[str], parts: Collection[PartId] = ()
    ) -> datetime | None:
        """Return since when every root is gone that could open a copy of these keys' epochs, or None before that.

        Raises KeyUnknown for a key or part key that there is no row of.
        """
        return proof.final_at(session, self.keks, tenant_id, key_ids, parts)

    # ── the unlocked store ────────────────────────────────────────────────────────────────────────────────────

    def snapshot_rows(
        self, session: Session, tenant_id: int, key_ids: Iterable[str], parts: Collection[PartId] = ()
    ) -> bytes:
        """Return wrapped rows, tombstones included, as canonical bytes."""
        return snapshot.snapshot(session, tenant_id, key_ids, parts)

    def snapshot_group(self, session: Session, tenant_id: int, group_no: int) -> bytes:
        """Return every live row of a group, to be stored and read back after a rotation."""
        return snapshot.snapshot_group(session, tenant_id, group_no)

    def restore_rows(self, session: Session, tenant_id: int, data: bytes) -> RestoreReport:
        """Bring rows back from a snapshot without undoing any destruction."""
        report = snapshot.restore(session, self.keks, tenant_id, data)
        self._keys.evict_all()
        self._ids.evict_all()
        return report

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────

    def _held(self, tenant_id: int, key_id: str) -> bytes | None:
        # The tenant is compared even though key ids are random: a key is never served across the wall.
        held = self._keys.get(key_id)
        return held[1] if held is not None and held[0] == tenant_id else None

    def _generations(self) -> tuple[int, int]:
        """Read before the rows are: what they said before an eviction is not put after it."""
        return self._keys.generation, self._ids.generation

    def _keep(self, session: Session, row: AnyRow, key32: bytes, generations: tuple[int, int]) -> None:
        if row["state"] != KeyState.LIVE or row["key_id"] in pending(session).keys:
            return
        tenant_id = row["tenant_id"]
        self._keys.put(row["key_id"], (tenant_id, key32), generations[0])
        self._ids.put((tenant_id, rows.spec_of(row)), row["key_id"], generations[1])


def _info(row: AnyRow) -> KeyInfo:
    return KeyInfo(
        key_id=row["key_id"],
        spec=rows.spec_of(row),
        state=KeyState(row["state"]),
        group_no=row["group_no"],
        epoch=row["epoch"],
        destroyed_at=row["destroyed_at"],
        request=row["request"],
    )
