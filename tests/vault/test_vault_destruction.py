import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlmodel import Session, select

from vault import rows
from vault.envelope import context, seal, unseal
from vault.errors import (
    DestructionUnproven,
    KekDestroyed,
    KeyDestroyed,
    KeyFenced,
    KeyUnknown,
    RootUnavailable,
    VaultError,
)
from vault.keks import KekStore
from vault.models import DataKey, KeyGroup, KeyState, RetiredKek
from vault.vault import Vault
from vault.wrapping import KeyHandle, KeySpec

TENANT = 7
GRACE = timedelta(days=7)
NONE = timedelta(0)
REQUEST = "req-1"


def provision(world: Any, count: int = 3) -> list[KeyHandle]:
    specs = [KeySpec(subject_id=subject, data_class="transcript", month="2026-05") for subject in range(1, count + 1)]
    with world.transaction() as session:
        given = world.vault().keys_for(session, TENANT, specs)
    return [given[spec] for spec in specs]


def mark(world: Any, vault: Vault, session: Session, key_id: str, grace: timedelta) -> None:
    vault.mark_destroying(session, TENANT, [key_id], request=REQUEST)


def delete(world: Any, vault: Vault, session: Session, key_id: str, grace: timedelta) -> None:
    vault.delete_wrapped(session, TENANT, [key_id], now=world.clock.now, request=REQUEST)


def rotate(world: Any, vault: Vault, session: Session, key_id: str, grace: timedelta) -> None:
    vault.rotate_groups(session, TENANT, vault.groups_of(session, TENANT, [key_id]), world.clock.now, grace)


def destroy(world: Any, vault: Vault, session: Session, key_id: str, grace: timedelta) -> None:
    vault.destroy_due_keks(session, TENANT, world.clock.now + grace)


Step = Callable[[Any, Vault, Session, str, timedelta], None]
STEPS: list[Step] = [mark, delete, rotate, destroy]


def erase(world: Any, vault: Vault, key_id: str, grace: timedelta = NONE) -> None:
    for step in STEPS:
        with world.transaction() as session:
            step(world, vault, session, key_id, grace)


def assert_destroyed(world: Any, gone: KeyHandle, stay: list[KeyHandle], old_rows: bytes) -> None:
    vault = world.vault()
    with world.transaction() as session:
        with pytest.raises(KeyDestroyed) as refused:
            vault.open_keys(session, TENANT, [gone.key_id])
        assert (refused.value.key_id, refused.value.request) == (gone.key_id, REQUEST)
        assert refused.value.destroyed_at == world.clock.now
        with pytest.raises(KeyDestroyed):
            vault.key_for(session, TENANT, 1, "transcript", "2026-05")
        reading = vault.try_open_keys(session, TENANT, [gone.key_id, *(handle.key_id for handle in stay)])
        assert reading.opened == {handle.key_id: handle.key32 for handle in stay}
        assert list(reading.destroyed) == [gone.key_id]
        vault.prove_destroyed(session, TENANT, [gone.key_id], old_rows=old_rows)
        assert vault.unopenable_since(session, TENANT, [gone.key_id]) == world.clock.now


@pytest.mark.scenario("B8")
def test_a_destroyed_key_is_dead_for_cold_and_warm_processes_and_never_made_again(any_world: Any) -> None:
    gone, *stay = provision(any_world)
    warm = any_world.vault()
    with any_world.transaction() as session:
        warm.open_keys(session, TENANT, [gone.key_id])
        old_rows = warm.snapshot_rows(session, TENANT, [gone.key_id])
    erase(any_world, warm, gone.key_id)
    with any_world.transaction() as session:
        with pytest.raises(KeyDestroyed):
            warm.open_keys(session, TENANT, [gone.key_id])
        with pytest.raises(KeyDestroyed):
            warm.key_for(session, TENANT, 1, "transcript", "2026-05")
    assert_destroyed(any_world, gone, stay, old_rows)


@pytest.mark.scenario("L28")
@pytest.mark.parametrize("killed_at", range(len(STEPS)))
@pytest.mark.parametrize("persisted", [False, True])
def test_a_destruction_killed_at_any_step_reaches_the_same_end(any_world: Any, killed_at: int, persisted: bool) -> None:
    gone, *stay = provision(any_world)
    with any_world.transaction() as session:
        old_rows = any_world.vault().snapshot_rows(session, TENANT, [gone.key_id])
    for number, step in enumerate(STEPS[: killed_at + 1]):
        with Session(any_world.engine) as session:
            step(any_world, any_world.vault(), session, gone.key_id, NONE)
            if number < killed_at or persisted:
                session.commit()
            else:
                session.rollback()
    with any_world.transaction() as session:
        states = {info.state for info in any_world.vault().info(session, TENANT, [gone.key_id]).values()}
        assert states <= {KeyState.LIVE, KeyState.DESTROYING, KeyState.DESTROYED}
        opened = any_world.vault().open_keys(session, TENANT, [handle.key_id for handle in stay])
        assert opened == {handle.key_id: handle.key32 for handle in stay}
    erase(any_world, any_world.vault(), gone.key_id)
    assert_destroyed(any_world, gone, stay, old_rows)


def test_doing_everything_twice_changes_nothing(any_world: Any) -> None:
    gone, *_ = provision(any_world)
    erase(any_world, any_world.vault(), gone.key_id)
    with any_world.transaction() as session:
        before = [row.model_dump() for table in (DataKey, KeyGroup, RetiredKek) for row in session.exec(select(table))]
    any_world.clock.advance(timedelta(days=40))
    erase(any_world, any_world.vault(), gone.key_id)
    with any_world.transaction() as session:
        after = [row.model_dump() for table in (DataKey, KeyGroup, RetiredKek) for row in session.exec(select(table))]
    assert after == before


def test_a_key_being_destroyed_still_opens_but_seals_nothing_and_is_not_kept_in_memory(any_world: Any) -> None:
    gone, *_ = provision(any_world)
    vault = any_world.vault()
    with any_world.transaction() as session:
        vault.open_keys(session, TENANT, [gone.key_id])
        assert vault.mark_destroying(session, TENANT, [gone.key_id], request=REQUEST) == 1
        assert vault.mark_destroying(session, TENANT, [gone.key_id], request=REQUEST) == 0
    with any_world.transaction() as session:
        assert vault.open_keys(session, TENANT, [gone.key_id]) == {gone.key_id: gone.key32}
        with pytest.raises(KeyFenced):
            vault.key_for(session, TENANT, 1, "transcript", "2026-05")
        any_world.vault().delete_wrapped(session, TENANT, [gone.key_id], now=any_world.clock.now, request=REQUEST)
        with pytest.raises(KeyDestroyed):
            vault.open_keys(session, TENANT, [gone.key_id])


@pytest.mark.scenario("L31")
def test_a_second_warm_process_fails_within_its_bound_and_says_since_when(any_world: Any) -> None:
    gone, *_ = provision(any_world)
    one, two = any_world.vault(), any_world.vault()
    for vault in (one, two):
        with any_world.transaction() as session:
            vault.open_keys(session, TENANT, [gone.key_id])
    erased_at = any_world.clock.now
    with any_world.transaction() as session:
        one.mark_destroying(session, TENANT, [gone.key_id], request=REQUEST)
    with any_world.transaction() as session:
        one.delete_wrapped(session, TENANT, [gone.key_id], now=erased_at, request=REQUEST)
    with any_world.transaction() as session, pytest.raises(KeyDestroyed):
        one.open_keys(session, TENANT, [gone.key_id])
    any_world.clock.seconds += 60
    with any_world.transaction() as session, pytest.raises(KeyDestroyed) as refused:
        two.open_keys(session, TENANT, [gone.key_id])
    assert refused.value.destroyed_at == erased_at


def test_an_erasure_of_a_key_without_a_row_is_refused(any_world: Any) -> None:
    vault = any_world.vault()
    with any_world.transaction() as session:
        with pytest.raises(KeyUnknown):
            vault.delete_wrapped(session, TENANT, ["00" * 16], now=any_world.clock.now, request=REQUEST)
        with pytest.raises(KeyUnknown):
            vault.prove_destroyed(session, TENANT, ["00" * 16])
        with pytest.raises(VaultError, match="no key group"):
            vault.rotate_groups(session, TENANT, [1], any_world.clock.now, NONE)


# ── epochs ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rotation_turns_only_groups_in_which_something_was_destroyed(any_world: Any) -> None:
    gone, *stay = provision(any_world)
    vault = any_world.vault()
    now = any_world.clock.now
    with any_world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [gone.key_id])
        assert vault.rotate_groups(session, TENANT, groups, now, GRACE).skipped == tuple(groups)
        vault.delete_wrapped(session, TENANT, [gone.key_id], now=now, request=REQUEST)
        [turned] = vault.rotate_groups(session, TENANT, groups, now, GRACE).rotated
        assert (turned.old_epoch, turned.new_epoch, turned.rewrapped) == (1, 2, 2)
        assert turned.destroy_after == now + GRACE
        assert vault.rotate_groups(session, TENANT, groups, now, GRACE).skipped == tuple(groups)
        [forced] = vault.rotate_groups(session, TENANT, groups, now, GRACE, force=True).rotated
        assert (forced.new_epoch, forced.rewrapped) == (3, 2)
    with any_world.transaction() as session:
        opened = any_world.vault().open_keys(session, TENANT, [handle.key_id for handle in stay])
        assert opened == {handle.key_id: handle.key32 for handle in stay}
        fresh = any_world.vault().key_for(session, TENANT, 9, "transcript", "2026-05")
        assert any_world.vault().info(session, TENANT, [fresh.key_id])[fresh.key_id].epoch == 3


def test_many_groups_turn_or_none_when_the_root_is_away_for_one_of_them(
    any_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their next keys are made several at a time; the rows turn only when all of these are on disk."""
    monkeypatch.setattr(rows, "GROUP_SIZE", 2)
    vault = any_world.vault()
    keys = provision(any_world, 14)
    with any_world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [key.key_id for key in keys])
    assert len(groups) == 7

    def turn(store: Vault) -> tuple[Any, ...]:
        with any_world.transaction() as session:
            report = store.rotate_groups(session, TENANT, groups, any_world.clock.now, GRACE, force=True)
        return tuple(report.rotated)

    create = KekStore.create

    def away(store: KekStore, tenant: str, group_no: int, epoch: int) -> None:
        if group_no == groups[4]:
            raise RootUnavailable("away")
        create(store, tenant, group_no, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(KekStore, "create", away)
        with pytest.raises(RootUnavailable):
            turn(vault)
    with any_world.transaction() as session:
        assert set(session.exec(select(DataKey.epoch))) == {1}
        assert any_world.vault().open_keys(session, TENANT, [keys[8].key_id]) == {keys[8].key_id: keys[8].key32}
    turned = turn(vault)
    assert [(one.group_no, one.old_epoch, one.new_epoch, one.rewrapped) for one in turned] == [
        (group, 1, 2, 2) for group in groups
    ]
    with any_world.transaction() as session:
        assert set(session.exec(select(DataKey.epoch))) == {2}
        opened = any_world.vault().open_keys(session, TENANT, [key.key_id for key in keys])
    assert opened == {key.key_id: key.key32 for key in keys}


def test_an_old_epoch_lives_through_its_grace_and_not_longer(any_world: Any) -> None:
    gone, *_ = provision(any_world)
    vault = any_world.vault()
    now = any_world.clock.now
    with any_world.transaction() as session:
        old_rows = vault.snapshot_rows(session, TENANT, [gone.key_id])
    for step in (mark, delete, rotate):
        with any_world.transaction() as session:
            step(any_world, vault, session, gone.key_id, GRACE)
    with any_world.transaction() as session:
        early = now + GRACE - timedelta(seconds=1)
        assert vault.due_keks(session, TENANT, early) == vault.destroy_due_keks(session, TENANT, early) == []
        assert vault.unopenable_since(session, TENANT, [gone.key_id]) is None
        vault.prove_destroyed(session, TENANT, [gone.key_id], old_rows=old_rows)
        [due] = vault.due_keks(session, TENANT, now + GRACE)
        [done] = vault.destroy_due_keks(session, TENANT, now + GRACE)
        assert (due.group_no, due.epoch, due.destroyed_at) == (done.group_no, done.epoch, None)
        assert done.destroyed_at == now + GRACE
    with any_world.transaction() as session:
        assert vault.destroy_due_keks(session, TENANT, now + GRACE) == []
        assert vault.unopenable_since(session, TENANT, [gone.key_id]) == now + GRACE


def test_an_epoch_that_a_row_still_carries_is_never_destroyed(any_world: Any) -> None:
    gone, other, *_ = provision(any_world)
    vault = any_world.vault()
    for step in (mark, delete):
        with any_world.transaction() as session:
            step(any_world, vault, session, gone.key_id, NONE)
    with any_world.transaction() as session:
        held = (
            session.connection()
            .execute(text("SELECT wrapped FROM vault_data_key WHERE key_id = :id"), {"id": other.key_id})
            .scalar_one()
        )
        rotate(any_world, vault, session, gone.key_id, NONE)
        session.connection().execute(
            text("UPDATE vault_data_key SET epoch = 1, wrapped = :wrapped WHERE key_id = :id"),
            {"id": other.key_id, "wrapped": held},
        )
    with any_world.transaction() as session:
        assert vault.destroy_due_keks(session, TENANT, any_world.clock.now) == []
    with any_world.transaction() as session:
        assert vault.open_keys(session, TENANT, [other.key_id])
        vault.rotate_groups(
            session, TENANT, vault.groups_of(session, TENANT, [gone.key_id]), any_world.clock.now, NONE, force=True
        )
    with any_world.transaction() as session:
        assert len(vault.destroy_due_keks(session, TENANT, any_world.clock.now)) == 2
        assert any_world.vault().open_keys(session, TENANT, [other.key_id]) == {other.key_id: other.key32}


def test_the_old_epoch_is_not_destroyed_while_its_rotation_could_roll_back(any_world: Any) -> None:
    gone, *stay = provision(any_world)
    vault = any_world.vault()
    with Session(any_world.engine) as session:
        delete(any_world, vault, session, gone.key_id, NONE)
        rotate(any_world, vault, session, gone.key_id, NONE)
        with pytest.raises(VaultError, match="commit the rotation"):
            destroy(any_world, vault, session, gone.key_id, NONE)
        session.rollback()
        destroy(any_world, vault, session, gone.key_id, NONE)
        session.rollback()
    with any_world.transaction() as session:
        assert len(any_world.vault().open_keys(session, TENANT, [handle.key_id for handle in stay])) == 2


def test_a_key_destroyed_while_its_group_turns_stays_destroyed(any_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The rotation read the row before it was destroyed; writing the new bytes must not bring it back.
    gone, late, stay = provision(any_world)
    vault = any_world.vault()
    with any_world.transaction() as session:
        delete(any_world, vault, session, gone.key_id, NONE)
    from vault import rows

    write = rows.write_rewrapped

    def destroyed_first(db: Any, table: Any, changes: Any, **epochs: Any) -> None:
        if table is rows.KEYS:
            db.execute(
                text("UPDATE vault_data_key SET wrapped = NULL, state = 'destroyed' WHERE key_id = :id"),
                {"id": late.key_id},
            )
        write(db, table, changes, **epochs)

    monkeypatch.setattr(rows, "write_rewrapped", destroyed_first)
    with any_world.transaction() as session:
        rotate(any_world, vault, session, gone.key_id, NONE)
    with any_world.transaction() as session:
        with pytest.raises(KeyDestroyed):
            any_world.vault().open_keys(session, TENANT, [late.key_id])
        assert any_world.vault().open_keys(session, TENANT, [stay.key_id])


# ── backups ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.scenario("B8", "L29")
def test_rows_of_an_old_backup_do_not_open_once_their_epoch_is_destroyed(world: Any, tmp_path: Path) -> None:
    gone, *_ = provision(world)
    sealed = seal(gone.key32, b"canary", context("acme", "log", "e", 0))
    database = Path(str(world.engine.url.database))
    with world.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = tmp_path / "backup.sqlite"
    shutil.copy(database, backup)
    erase(world, world.vault(), gone.key_id)
    world.engine.dispose()
    for name in tmp_path.glob("data.sqlite*"):
        name.unlink()
    shutil.copy(backup, database)
    for _ in range(2):
        vault = world.vault()
        with Session(world.engine) as session:
            with pytest.raises(KekDestroyed):
                vault.open_keys(session, TENANT, [gone.key_id])
            with pytest.raises(KekDestroyed):
                vault.key_for(session, TENANT, 1, "transcript", "2026-05")
            with pytest.raises(DestructionUnproven):
                vault.prove_destroyed(session, TENANT, [gone.key_id])
    assert unseal(gone.key32, sealed, context("acme", "log", "e", 0)) == b"canary"


@pytest.mark.scenario("B8", "L29", "L30")
def test_a_key_folder_restored_from_a_backup_is_noticed_and_destroyed_again(any_world: Any, tmp_path: Path) -> None:
    gone, *stay = provision(any_world)
    with any_world.transaction() as session:
        old_rows = any_world.vault().snapshot_rows(session, TENANT, [gone.key_id])
    shutil.copytree(any_world.folder, tmp_path / "keys.backup")
    erase(any_world, any_world.vault(), gone.key_id)
    shutil.copytree(tmp_path / "keys.backup", any_world.folder, dirs_exist_ok=True)
    for gone_too in any_world.folder.glob("kek/*/*.gone"):
        gone_too.unlink()
    with any_world.transaction() as session:
        vault = any_world.vault()
        with pytest.raises(KeyDestroyed):
            vault.open_keys(session, TENANT, [gone.key_id])
        with pytest.raises(DestructionUnproven, match="still opens"):
            vault.prove_destroyed(session, TENANT, [gone.key_id], old_rows=old_rows)
        assert vault.unopenable_since(session, TENANT, [gone.key_id]) is None
        vault.destroy_due_keks(session, TENANT, any_world.clock.now)
    assert_destroyed(any_world, gone, stay, old_rows)


@pytest.mark.scenario("L30")
def test_a_key_store_that_keeps_what_it_deletes_makes_the_proof_fail(any_world: Any, monkeypatch: Any) -> None:
    gone, *_ = provision(any_world)
    with any_world.transaction() as session:
        old_rows = any_world.vault().snapshot_rows(session, TENANT, [gone.key_id])
    with monkeypatch.context() as patch:
        # What a recycle bin or purge protection amounts to: the call returns, the bytes stay.
        patch.setattr("vault.keks.destroy_file", lambda _: None)
        erase(any_world, any_world.vault(), gone.key_id)
    with any_world.transaction() as session:
        with pytest.raises(DestructionUnproven):
            any_world.vault().prove_destroyed(session, TENANT, [gone.key_id], old_rows=old_rows)
        assert any_world.vault().unopenable_since(session, TENANT, [gone.key_id]) is None
        assert any_world.vault().final_at(session, TENANT, [gone.key_id]) is None


def test_a_key_that_is_not_destroyed_is_never_proven_so(any_world: Any) -> None:
    gone, *_ = provision(any_world)
    vault = any_world.vault()
    with any_world.transaction() as session:
        with pytest.raises(DestructionUnproven):
            vault.prove_destroyed(session, TENANT, [gone.key_id])
        mark(any_world, vault, session, gone.key_id, NONE)
        with pytest.raises(DestructionUnproven):
            vault.prove_destroyed(session, TENANT, [gone.key_id])
        assert vault.final_at(session, TENANT, [gone.key_id]) is None


def test_final_is_the_day_the_last_root_that_wrapped_it_went(any_world: Any) -> None:
    gone, other, *_ = provision(any_world)
    vault = any_world.vault()
    erase(any_world, vault, gone.key_id)
    with any_world.transaction() as session:
        assert vault.final_at(session, TENANT, [gone.key_id]) is None
    any_world.clock.advance(timedelta(days=40))
    vault.keks.turn(any_world.clock.now)
    with any_world.transaction() as session:
        assert any_world.vault().final_at(session, TENANT, [gone.key_id]) == any_world.clock.now
        assert any_world.vault().final_at(session, TENANT, [gone.key_id, other.key_id]) is None
        with pytest.raises(KeyUnknown):
            vault.final_at(session, TENANT, ["00" * 16])


# ── the bytes themselves ──────────────────────────────────────────────────────────────────────────────────────


def haystack(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def checkpointed(world: Any) -> None:
    with world.engine.connect() as connection:
        connection.exec_driver_sql("COMMIT")
        busy, _, _ = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
        assert busy == 0


def test_neither_raw_nor_wrapped_bytes_of_a_destroyed_key_stay_in_any_file(world: Any, tmp_path: Path) -> None:
    gone, *stay = provision(world, 40)
    checkpointed(world)
    with world.transaction() as session:
        wrapped = {row.key_id: bytes(row.wrapped or b"") for row in session.exec(select(DataKey))}
    keks = [path.read_bytes()[9:] for path in world.folder.glob("kek/*/group-*.kek")]
    before = haystack(tmp_path)
    assert all(needle in before for needle in wrapped.values()), "the scan must be able to find what it looks for"
    assert all(needle in before for needle in keks)
    erase(world, world.vault(), gone.key_id)
    checkpointed(world)
    after = haystack(tmp_path)
    for needle in (gone.key32, wrapped[gone.key_id], *keks):
        for start in range(0, len(needle) - 16, 8):
            assert needle[start : start + 16] not in after
    for handle in stay:
        assert handle.key32 not in after
        assert wrapped[handle.key_id] not in after, "the rows were wrapped anew"


def test_a_thousand_rows_are_wrapped_anew_quickly(world: Any) -> None:
    gone, *_ = provision(world, 1000)
    vault = world.vault()
    with world.transaction() as session:
        delete(world, vault, session, gone.key_id, NONE)
    with world.transaction() as session:
        groups = vault.groups_of(session, TENANT, [gone.key_id])
        start = time.perf_counter()
        report = vault.rotate_groups(session, TENANT, groups, world.clock.now, NONE)
        took = time.perf_counter() - start
    assert report.rotated[0].rewrapped == 999
    # Measured 15 to 25 ms; the bound catches a statement or a key derivation per row too many.
    assert took < 0.5
