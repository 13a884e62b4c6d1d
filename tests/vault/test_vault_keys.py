import secrets
import threading
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlmodel import Session, select

from vault import rows
from vault.envelope import context, part_key_of, seal, unseal_with_part_key
from vault.errors import (
    KekDestroyed,
    KeyDestroyed,
    KeyFenced,
    KeyUnknown,
    MalformedSnapshot,
    NotDecryptable,
    VaultError,
)
from vault.models import DataKey, KeyGroup, KeyState, PartKey
from vault.parts import KeptPart
from vault.providers import FileRoot
from vault.vault import Vault
from vault.wrapping import KeyHandle, KeySpec

TENANT = 7
ENTRY = "0190b0a4-0000-7000-8000-000000000001"
DAY = timedelta(days=1)


def provision(world: Any, vault: Vault, subject_id: int, month: str = "2026-05") -> KeyHandle:
    with world.transaction() as session:
        return vault.key_for(session, TENANT, subject_id, "transcript", month)


def kept(part: int, part_key: bytes, ground: str, until: datetime | None, entry_id: str = ENTRY) -> KeptPart:
    return KeptPart(
        entry_id=entry_id, part=part, idx=4, key_id="ab" * 16, part_key=part_key, ground=ground, until=until
    )


def test_one_key_for_each_subject_class_month_and_scope(any_world: Any) -> None:
    vault = any_world.vault()
    specs = [
        KeySpec(subject_id=subject, data_class=data_class, month=month, scope=scope)
        for subject in (0, 1)
        for data_class in ("transcript", "tool")
        for month in ("2026-05", "2026-06")
        for scope in ("", "s1")
    ]
    with any_world.transaction() as session:
        first = vault.keys_for(session, TENANT, specs)
    assert len({handle.key32 for handle in first.values()}) == len({handle.key_id for handle in first.values()}) == 16
    with any_world.transaction() as session:
        assert any_world.vault().keys_for(session, TENANT, specs) == first
        ids = [handle.key_id for handle in first.values()]
        opened = any_world.vault().open_keys(session, TENANT, ids)
    assert opened == {handle.key_id: handle.key32 for handle in first.values()}


def test_keys_that_draw_one_id_are_all_made_under_ids_of_their_own(
    any_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are short because the index repeats them; two that meet must not leave a key that no row holds."""
    first = provision(any_world, any_world.vault(), 1)
    drawn = iter([first.key_id, "aa" * 10, "aa" * 10, first.key_id, "bb" * 10, "cc" * 10])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(drawn))
    specs = [KeySpec(subject_id=subject, data_class="transcript", month="2026-05") for subject in (2, 3, 4)]
    with any_world.transaction() as session:
        given = any_world.vault().keys_for(session, TENANT, specs)
    assert {handle.key_id for handle in given.values()} == {"aa" * 10, "bb" * 10, "cc" * 10}
    with any_world.transaction() as session:
        assert any_world.vault().keys_for(session, TENANT, specs) == given
        (group,) = session.exec(select(KeyGroup)).all()
        assert group.size == 4


def test_the_database_holds_no_key_in_the_clear(any_world: Any) -> None:
    handle = provision(any_world, any_world.vault(), 1)
    with any_world.transaction() as session:
        row = session.exec(select(DataKey)).one()
        assert row.wrapped is not None
        assert handle.key32 not in row.wrapped
        assert row.created_at == any_world.clock.now


def test_another_tenant_sees_neither_keys_nor_groups(any_world: Any) -> None:
    vault = any_world.vault()
    handle = provision(any_world, vault, 1)
    with any_world.transaction() as session:
        other = vault.key_for(session, 8, 1, "transcript", "2026-05")
        assert other.key_id != handle.key_id
        with pytest.raises(KeyUnknown):
            vault.open_keys(session, 8, [handle.key_id])
        with pytest.raises(KeyUnknown):
            any_world.vault().open_keys(session, 8, [handle.key_id])
        vault.open_keys(session, TENANT, [handle.key_id])
        with pytest.raises(KeyUnknown):
            vault.open_keys(session, 8, [handle.key_id])


def test_a_malformed_month_is_refused(world: Any) -> None:
    with world.transaction() as session, pytest.raises(VaultError, match="YYYY-MM"):
        world.vault().key_for(session, TENANT, 1, "transcript", "2026-13")


def test_groups_fill_up_and_a_new_one_begins(any_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "GROUP_SIZE", 10)
    vault = any_world.vault()
    for start in (0, 7, 14):
        specs = [KeySpec(subject_id=subject, data_class="tool", month="2026-05") for subject in range(start, start + 7)]
        with any_world.transaction() as session:
            vault.keys_for(session, TENANT, specs)
    with any_world.transaction() as session:
        sizes = sorted(group.size for group in session.exec(select(KeyGroup)))
        numbers = [key.group_no for key in session.exec(select(DataKey))]
    assert sizes == [1, 10, 10]
    assert sorted(numbers.count(number) for number in set(numbers)) == sizes


@pytest.mark.scenario("L30")
def test_processes_that_first_provision_one_subject_end_with_one_key(any_world: Any) -> None:
    workers = 6
    start = threading.Barrier(workers)
    got: list[list[KeyHandle]] = []
    failed: list[BaseException] = []
    specs = [KeySpec(subject_id=subject, data_class="transcript", month="2026-05") for subject in range(20)]

    def work() -> None:
        vault = any_world.vault()
        try:
            start.wait()
            with any_world.transaction() as session:
                given = vault.keys_for(session, TENANT, specs)
            got.append([given[spec] for spec in specs])
        except BaseException as error:  # noqa: BLE001 - shown by the main thread
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(got) == workers
    assert all(handles == got[0] for handles in got)
    with any_world.transaction() as session:
        keys = session.exec(select(DataKey)).all()
        assert len(keys) == len(specs)
        assert sum(group.size for group in session.exec(select(KeyGroup))) == len(specs)
        opened = any_world.vault().open_keys(session, TENANT, [key.key_id for key in keys])
    assert opened == {handle.key_id: handle.key32 for handle in got[0]}


def test_a_key_whose_transaction_rolled_back_is_not_given_out_again(any_world: Any) -> None:
    # A key kept in memory whose row is gone would seal data that nobody can ever open.
    vault = any_world.vault()
    with Session(any_world.engine) as session:
        lost = vault.key_for(session, TENANT, 1, "transcript", "2026-05")
        assert vault.key_for(session, TENANT, 1, "transcript", "2026-05") == lost
        vault.open_keys(session, TENANT, [lost.key_id])
        session.rollback()
        kept = vault.key_for(session, TENANT, 1, "transcript", "2026-05")
        assert kept.key_id != lost.key_id
        session.commit()
    with any_world.transaction() as session:
        assert vault.key_for(session, TENANT, 1, "transcript", "2026-05") == kept
        with pytest.raises(KeyUnknown):
            vault.open_keys(session, TENANT, [lost.key_id])


def test_the_cache_saves_the_database_and_ends_in_time(world: Any) -> None:
    vault = world.vault()
    handle = provision(world, vault, 1)
    with world.transaction() as session:
        vault.open_keys(session, TENANT, [handle.key_id])
        session.connection().execute(text("UPDATE vault_data_key SET wrapped = x'00'"))
        assert vault.open_keys(session, TENANT, [handle.key_id])[handle.key_id] == handle.key32
        world.clock.seconds += 60
        with pytest.raises(NotDecryptable):
            vault.open_keys(session, TENANT, [handle.key_id])


@pytest.mark.parametrize("how", ["evict", "evict_all", "expire"])
def test_evicted_keys_are_read_again(world: Any, how: str) -> None:
    vault = world.vault()
    handle = provision(world, vault, 1)
    with world.transaction() as session:
        vault.open_keys(session, TENANT, [handle.key_id])
        session.connection().execute(text("UPDATE vault_data_key SET wrapped = x'00'"))
        if how == "evict":
            vault.evict([handle.key_id])
        elif how == "evict_all":
            vault.evict_all()
        else:
            world.clock.seconds += 61
            vault.expire()
        with pytest.raises(NotDecryptable):
            vault.key_for(session, TENANT, 1, "transcript", "2026-05")


def test_a_row_altered_in_any_bound_column_does_not_open(world: Any) -> None:
    handle = provision(world, world.vault(), 1)
    for change in ("subject_id = 2", "data_class = 'tool'", "month = '2026-06'", "scope = 's'"):
        with Session(world.engine) as session:
            session.connection().execute(text(f"UPDATE vault_data_key SET {change}"))
            with pytest.raises(NotDecryptable):
                world.vault().open_keys(session, TENANT, [handle.key_id])
            session.rollback()


def test_a_fenced_subject_gets_no_key_old_or_new(any_world: Any) -> None:
    vault = any_world.vault()
    handle = provision(any_world, vault, 1)
    provision(any_world, vault, 1)
    for _ in range(2):
        with any_world.transaction() as session:
            vault.fence_subject(session, TENANT, 1, now=any_world.clock.now, request="r1")
    for month in ("2026-05", "2026-06"):
        with any_world.transaction() as session, pytest.raises(KeyFenced) as refused:
            vault.key_for(session, TENANT, 1, "transcript", month)
        assert refused.value.subject_id == 1
    with any_world.transaction() as session:
        assert vault.open_keys(session, TENANT, [handle.key_id])
        assert vault.key_for(session, TENANT, 2, "transcript", "2026-05")


@pytest.mark.parametrize("any_world", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_key_that_was_read_before_a_fence_and_opened_after_it_is_not_kept(any_world: Any) -> None:
    # On SQLite nobody reads a key for sealing beside a fence: there is one writer at a time.
    provision(any_world, any_world.vault(), 1)
    vault = any_world.vault()

    class Between(FileRoot):
        """A root that takes so long that a fence is set meanwhile."""

        def unwrap(self, tenant: str, wrapped: bytes, aad: bytes) -> bytes:
            with any_world.transaction() as session:
                vault.fence_subject(session, TENANT, 1, now=any_world.clock.now, request="r1")
            return super().unwrap(tenant, wrapped, aad)

    vault.keks.root = Between(any_world.folder, clock=any_world.clock)
    with any_world.transaction() as session:
        vault.key_for(session, TENANT, 1, "transcript", "2026-05")
    with any_world.transaction() as session, pytest.raises(KeyFenced):
        vault.key_for(session, TENANT, 1, "transcript", "2026-05")


def test_what_is_known_of_keys_is_told_without_opening_them(world: Any) -> None:
    vault = world.vault()
    handle = provision(world, vault, 1)
    provision(world, vault, 2)
    with world.transaction() as session:
        [info] = vault.keys_of(session, TENANT, [1])
        assert (info.key_id, info.state, info.spec.month) == (handle.key_id, KeyState.LIVE, "2026-05")
        assert vault.info(session, TENANT, [handle.key_id, "00" * 16]) == {handle.key_id: info}
        assert vault.groups_of(session, TENANT, [handle.key_id]) == [info.group_no]


# ── part keys ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_kept_part_opens_after_its_data_key_is_gone(any_world: Any) -> None:
    vault = any_world.vault()
    handle = provision(any_world, vault, 1)
    where = context("acme", "log", ENTRY, 0)
    held, other = seal(handle.key32, b"held", where), seal(handle.key32, b"gone", context("acme", "log", ENTRY, 1))
    until = any_world.clock.now + DAY
    with any_world.transaction() as session:
        vault.keep_parts(session, TENANT, [kept(0, part_key_of(handle.key32, held, where), "hold/h1", until)])
    with any_world.transaction() as session:
        vault.delete_wrapped(session, TENANT, [handle.key_id], now=any_world.clock.now, request="r1")
    with any_world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [handle.key_id], [(ENTRY, 0)])
        vault.rotate_groups(session, TENANT, groups, any_world.clock.now, timedelta(0))
    with any_world.transaction() as session:
        vault.destroy_due_keks(session, TENANT, any_world.clock.now)
    with any_world.transaction() as session:
        fresh = any_world.vault()
        part_key = fresh.open_part(session, TENANT, ENTRY, 0)
        assert unseal_with_part_key(part_key, held) == b"held"
        with pytest.raises(NotDecryptable):
            unseal_with_part_key(part_key, other)
        assert fresh.try_open_parts(session, TENANT, [(ENTRY, 0), (ENTRY, 1)]).opened == {(ENTRY, 0): part_key}
        with pytest.raises(KeyUnknown):
            fresh.open_part(session, TENANT, ENTRY, 1)


def test_keeping_a_part_again_changes_ground_and_end_but_never_the_key(any_world: Any) -> None:
    vault = any_world.vault()
    now = any_world.clock.now
    with any_world.transaction() as session:
        vault.keep_parts(session, TENANT, [kept(0, b"a" * 76, "hold/h1", None)])
        vault.keep_parts(session, TENANT, [kept(0, b"a" * 76, "floor/tax", now + DAY)])
        with pytest.raises(NotDecryptable):
            vault.keep_parts(session, TENANT, [kept(0, b"b" * 76, "floor/tax", now)])
        with pytest.raises(NotDecryptable):
            vault.keep_parts(session, TENANT, [kept(1, b"short", "floor/tax", now)])
    with any_world.transaction() as session:
        part = session.exec(select(PartKey)).one()
        assert (part.ground, part.until) == ("floor/tax", now + DAY)
        assert vault.open_part(session, TENANT, ENTRY, 0) == b"a" * 76


def test_a_part_goes_when_its_ground_ends_and_is_not_kept_again(any_world: Any) -> None:
    vault = any_world.vault()
    now = any_world.clock.now
    with any_world.transaction() as session:
        vault.keep_parts(session, TENANT, [kept(0, b"a" * 76, "floor/tax", now + DAY)])
        vault.keep_parts(session, TENANT, [kept(1, b"b" * 76, "hold/h1", None)])
    with any_world.transaction() as session:
        assert vault.drop_parts(session, TENANT, [(ENTRY, 0)], now=now + DAY, request="sweep-1") == 1
        assert vault.drop_parts(session, TENANT, [(ENTRY, 0)], now=now + DAY, request="sweep-1") == 0
        with pytest.raises(KeyDestroyed):
            vault.open_part(session, TENANT, ENTRY, 0)
        with pytest.raises(KeyDestroyed):
            vault.keep_parts(session, TENANT, [kept(0, b"a" * 76, "floor/tax", None)])
    with any_world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [], [(ENTRY, 0)])
        [turned] = vault.rotate_groups(session, TENANT, groups, now, DAY).rotated
        assert turned.rewrapped == 1
        assert any_world.vault().open_part(session, TENANT, ENTRY, 1) == b"b" * 76


# ── snapshots for the unlocked store ──────────────────────────────────────────────────────────────────────────


def emptied(world: Any) -> None:
    with world.transaction() as session:
        for table in ("data_key", "part_key", "key_group", "retired_kek", "key_fence"):
            session.connection().execute(text(f"DELETE FROM vault_{table}"))


def test_a_lost_database_is_rebuilt_from_snapshots_and_the_key_folder(any_world: Any) -> None:
    vault = any_world.vault()
    handles = [provision(any_world, vault, subject) for subject in (1, 2)]
    ids = [handle.key_id for handle in handles]
    with any_world.transaction() as session:
        vault.keep_parts(session, TENANT, [kept(0, b"a" * 76, "hold/h1", None)])
    with any_world.transaction() as session:
        data = vault.snapshot_rows(session, TENANT, ids, [(ENTRY, 0)])
        assert data == any_world.vault().snapshot_rows(session, TENANT, reversed(ids), [(ENTRY, 0)])
        [group] = vault.groups_of(session, TENANT, ids)
        assert vault.snapshot_group(session, TENANT, group) == data
    assert not any(handle.key32 in data for handle in handles)
    emptied(any_world)
    vault = any_world.vault()
    with any_world.transaction() as session:
        report = vault.restore_rows(session, TENANT, data)
        assert (report.restored, report.kept, report.lost, report.conflicts) == (3, 0, [], [])
        again = vault.restore_rows(session, TENANT, data)
        assert (again.restored, again.kept) == (0, 3)
    with any_world.transaction() as session:
        assert vault.open_keys(session, TENANT, ids) == {handle.key_id: handle.key32 for handle in handles}
        assert vault.open_part(session, TENANT, ENTRY, 0) == b"a" * 76
        assert vault.snapshot_rows(session, TENANT, ids, [(ENTRY, 0)]) == data
        assert vault.key_for(session, TENANT, 1, "transcript", "2026-05") == handles[0]


def test_a_snapshot_never_undoes_a_destruction(any_world: Any) -> None:
    vault = any_world.vault()
    handle = provision(any_world, vault, 1)
    with any_world.transaction() as session:
        before = vault.snapshot_rows(session, TENANT, [handle.key_id])
        vault.delete_wrapped(session, TENANT, [handle.key_id], now=any_world.clock.now, request="r1")
        after = vault.snapshot_rows(session, TENANT, [handle.key_id])
    with any_world.transaction() as session:
        assert vault.restore_rows(session, TENANT, before).kept == 1
        with pytest.raises(KeyDestroyed):
            vault.open_keys(session, TENANT, [handle.key_id])
    emptied(any_world)
    with any_world.transaction() as session:
        vault.restore_rows(session, TENANT, before)
        assert any_world.vault().open_keys(session, TENANT, [handle.key_id])
        assert vault.restore_rows(session, TENANT, after).restored == 1
        with pytest.raises(KeyDestroyed) as refused:
            vault.open_keys(session, TENANT, [handle.key_id])
        assert (refused.value.request, refused.value.destroyed_at) == ("r1", any_world.clock.now)


def test_an_old_snapshot_brings_back_lost_rows_that_only_a_younger_one_revives(any_world: Any) -> None:
    vault = any_world.vault()
    erased, stays = provision(any_world, vault, 1), provision(any_world, vault, 2)
    ids = [erased.key_id, stays.key_id]
    with any_world.transaction() as session:
        old = vault.snapshot_rows(session, TENANT, ids)
        vault.delete_wrapped(session, TENANT, [erased.key_id], now=any_world.clock.now, request="r1")
    with any_world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [erased.key_id])
        vault.rotate_groups(session, TENANT, groups, any_world.clock.now, timedelta(0))
        young = vault.snapshot_group(session, TENANT, groups[0])
    with any_world.transaction() as session:
        vault.destroy_due_keks(session, TENANT, any_world.clock.now)
    emptied(any_world)
    vault = any_world.vault()
    with any_world.transaction() as session:
        assert vault.restore_rows(session, TENANT, old).lost == sorted(ids)
        for key_id in ids:
            with pytest.raises(KeyDestroyed):
                vault.open_keys(session, TENANT, [key_id])
        assert vault.restore_rows(session, TENANT, young).restored == 1
        assert vault.open_keys(session, TENANT, [stays.key_id]) == {stays.key_id: stays.key32}
        with pytest.raises(KeyDestroyed):
            vault.key_for(session, TENANT, 1, "transcript", "2026-05")
        # The erasure is then applied again from the log, and the mark of the restore becomes a tombstone.
        assert vault.delete_wrapped(session, TENANT, [erased.key_id], now=any_world.clock.now, request="r1") == 1
        vault.prove_destroyed(session, TENANT, [erased.key_id], old_rows=old)


def test_a_snapshot_that_was_altered_or_is_of_another_tenant_is_refused(world: Any) -> None:
    vault = world.vault()
    handle = provision(world, vault, 1)
    with world.transaction() as session:
        data = vault.snapshot_rows(session, TENANT, [handle.key_id])
    emptied(world)
    for broken in (data[:-1], data.replace(b'"month"', b'"moon"'), data.replace(b"/v1", b"/v2"), b"", b"[]"):
        with world.transaction() as session, pytest.raises(MalformedSnapshot):
            vault.restore_rows(session, TENANT, broken)
    with world.transaction() as session, pytest.raises(MalformedSnapshot):
        vault.restore_rows(session, 8, data)
    with Session(world.engine) as session, pytest.raises(NotDecryptable):
        vault.restore_rows(session, TENANT, data.replace(b"2026-05", b"2026-06", 1))


def test_a_key_made_meanwhile_for_the_same_purpose_stands(any_world: Any) -> None:
    vault = any_world.vault()
    handle = provision(any_world, vault, 1)
    with any_world.transaction() as session:
        data = vault.snapshot_rows(session, TENANT, [handle.key_id])
    emptied(any_world)
    other = provision(any_world, any_world.vault(), 1)
    with any_world.transaction() as session:
        assert any_world.vault().restore_rows(session, TENANT, data).conflicts == [handle.key_id]
        assert any_world.vault().key_for(session, TENANT, 1, "transcript", "2026-05") == other


def test_a_database_older_than_the_key_folder_is_a_hard_stop_not_a_new_key(any_world: Any) -> None:
    vault = any_world.vault()
    handle, erased = provision(any_world, vault, 1), provision(any_world, vault, 2)
    with any_world.transaction() as session:
        keys = [dict(row) for row in session.connection().execute(rows.KEYS.select()).mappings()]
        groups = [dict(row) for row in session.connection().execute(rows.GROUPS.select()).mappings()]
        vault.delete_wrapped(session, TENANT, [erased.key_id], now=any_world.clock.now, request="r1")
    with any_world.transaction() as session:
        numbers = vault.groups_of(session, TENANT, [erased.key_id])
        vault.rotate_groups(session, TENANT, numbers, any_world.clock.now, timedelta(0))
        young = vault.snapshot_group(session, TENANT, numbers[0])
    with any_world.transaction() as session:
        vault.destroy_due_keks(session, TENANT, any_world.clock.now)
    emptied(any_world)
    with any_world.transaction() as session:
        rows.insert_rows(session.connection(), rows.KEYS, keys)
        rows.insert_rows(session.connection(), rows.GROUPS, groups)
    vault = any_world.vault()
    for subject in (1, 2, 3):
        with Session(any_world.engine) as session, pytest.raises(KekDestroyed):
            vault.key_for(session, TENANT, subject, "transcript", "2026-05")
    with any_world.transaction() as session:
        vault.restore_rows(session, TENANT, young)
    with any_world.transaction() as session:
        assert vault.key_for(session, TENANT, 1, "transcript", "2026-05") == handle
        assert vault.key_for(session, TENANT, 3, "transcript", "2026-05")
        with pytest.raises(KekDestroyed):
            vault.open_keys(session, TENANT, [erased.key_id])


def test_key_files_gone_without_a_tombstone_stop_a_restore_instead_of_losing_rows(world: Any) -> None:
    vault = world.vault()
    handle = provision(world, vault, 1)
    with world.transaction() as session:
        data = vault.snapshot_rows(session, TENANT, [handle.key_id])
    emptied(world)
    folder: Path = world.folder
    next(folder.glob("kek/*/group-*.kek")).unlink()
    with Session(world.engine) as session, pytest.raises(VaultError):
        world.vault().restore_rows(session, TENANT, data)
