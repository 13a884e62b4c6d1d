import shutil
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from vault import durable
from vault.cache import TimedCache
from vault.errors import KekDestroyed, KekUnknown, NotDecryptable, ProviderNotBuilt, RootUnavailable
from vault.keks import KekStore
from vault.providers import FileRoot, open_root, root_version

MAY = datetime(2026, 5, 4, tzinfo=UTC)
JUNE = datetime(2026, 6, 1, tzinfo=UTC)


class Ticks:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def may() -> datetime:
    return MAY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data.keys"


def store(folder: Path, **options: Any) -> KekStore:
    return KekStore(folder, FileRoot(folder, clock=may), **options)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# ── the root ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_key_files_and_folders_are_for_their_owner_alone(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.lookup_key("7")
    keks.signing_seed("log/acme")
    assert len(files(folder)) >= 5
    for path in [folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path.name


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o740, 0o701])
def test_a_folder_others_may_look_into_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(mode)
    with pytest.raises(RootUnavailable, match="expected 0700"):
        FileRoot(folder, clock=may)


def test_a_root_opens_only_what_it_wrapped_for_the_same_tenant_and_purpose(folder: Path) -> None:
    root = FileRoot(folder, clock=may)
    wrapped = root.wrap("7", b"secret", b"purpose")
    assert FileRoot(folder, clock=may).unwrap("7", wrapped, b"purpose") == b"secret"
    for tenant, data, aad in (("8", wrapped, b"purpose"), ("7", wrapped, b"other"), ("7", wrapped[:-1], b"purpose")):
        with pytest.raises(RootUnavailable):
            root.unwrap(tenant, data, aad)
    for short in (b"", wrapped[:4], wrapped[:10]):
        with pytest.raises(RootUnavailable):
            root.unwrap("7", short, b"purpose")


def test_the_root_turns_once_a_month_and_not_backwards(folder: Path) -> None:
    root = FileRoot(folder, clock=may)
    first = root_version(root.wrap("7", b"x", b""))
    assert root.rotate(MAY + timedelta(days=20)) == first
    second = root.rotate(JUNE)
    assert second == first + 1
    assert root.rotate(JUNE) == second
    assert root.rotate(MAY) == second
    assert root.rotate(JUNE, force=True) == second + 1


def test_a_root_that_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(ProviderNotBuilt) as refused:
        open_root("gcp-kms://projects/x", clock=may)
    assert refused.value.scheme == "gcp-kms"


def test_a_root_is_opened_by_its_address(folder: Path) -> None:
    root = open_root(f"file://{folder}", clock=may)
    assert root.kind == "file"
    assert root.unwrap("7", root.wrap("7", b"x", b""), b"") == b"x"


def test_an_old_root_goes_only_when_nothing_is_wrapped_under_it(folder: Path) -> None:
    root = FileRoot(folder, clock=may)
    wrapped = root.wrap("7", b"x", b"")
    newest = root.rotate(JUNE)
    assert root.retire({1}, JUNE) == []
    assert root.retire({newest}, JUNE) == [1]
    assert root.retire({newest}, JUNE) == []
    with pytest.raises(RootUnavailable):
        root.unwrap("7", wrapped, b"")
    assert root.versions()[1].destroyed_at == JUNE
    assert root.versions()[newest].destroyed_at is None


def test_a_root_whose_file_outlived_its_tombstone_is_not_called_destroyed(folder: Path) -> None:
    root = FileRoot(folder, clock=may)
    root.wrap("7", b"x", b"")
    root.rotate(JUNE)
    kept = (folder / "root" / "00000001.key").read_bytes()
    root.retire(set(), JUNE)
    (folder / "root" / "00000001.key").write_bytes(kept)
    assert root.versions()[1].destroyed_at is None
    assert root.retire(set(), JUNE + timedelta(days=1)) == [1]
    assert root.versions()[1].destroyed_at == JUNE


# ── key-encryption keys ───────────────────────────────────────────────────────────────────────────────────────


def test_each_epoch_of_each_group_of_each_tenant_has_a_key_of_its_own(folder: Path) -> None:
    keks = store(folder)
    places = [("7", 1, 1), ("7", 1, 2), ("7", 2, 1), ("8", 1, 1)]
    for place in places:
        keks.create(*place)
    keys = {keks.get(*place) for place in places}
    assert len(keys) == 4
    again = store(folder)
    for place in places:
        again.create(*place)
    assert {again.get(*place) for place in places} == keys


def test_a_key_that_was_never_made_is_unknown_not_empty(folder: Path) -> None:
    with pytest.raises(KekUnknown):
        store(folder).get("7", 1, 1)
    with pytest.raises(KekUnknown):
        store(folder).get("../7", 1, 1)
    with pytest.raises(KekUnknown):
        store(folder).recover("7", 1, 1)


def test_a_destroyed_key_is_refused_everywhere_and_never_made_again(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.get("7", 1, 1)
    warm = store(folder)
    warm.get("7", 1, 1)
    assert keks.destroy("7", 1, 1, MAY) == MAY
    assert keks.destroy("7", 1, 1, JUNE) == MAY
    for reader in (keks, warm, store(folder)):
        with pytest.raises(KekDestroyed) as refused:
            reader.get("7", 1, 1)
        assert refused.value.destroyed_at == MAY
        with pytest.raises(KekDestroyed):
            reader.create("7", 1, 1)
    [status] = keks.epochs("7")
    assert status.destroyed_at == MAY


def test_a_crash_between_tombstone_and_unlink_is_finished_by_the_next_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)

    class Killed(Exception):
        pass

    def killed(path: Path) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("vault.keks.destroy_file", killed)
        with pytest.raises(Killed):
            keks.destroy("7", 1, 1, MAY)
    again = store(folder)
    with pytest.raises(KekDestroyed):
        again.get("7", 1, 1)
    assert again.epochs("7")[0].destroyed_at is None
    assert again.recover("7", 1, 1)
    assert again.destroy("7", 1, 1, JUNE) == MAY
    assert again.epochs("7")[0].destroyed_at == MAY
    with pytest.raises(KekUnknown):
        again.recover("7", 1, 1)


@pytest.mark.scenario("L30")
def test_a_key_file_brought_back_is_seen_as_still_there(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    path = next(folder.glob("kek/7/group-*.kek"))
    kept = path.read_bytes()
    keks.destroy("7", 1, 1, MAY)
    path.write_bytes(kept)
    assert keks.epochs("7")[0].destroyed_at is None
    assert keks.final_at("7", 1, 1) is None
    with pytest.raises(KekDestroyed):
        store(folder).get("7", 1, 1)
    assert store(folder).recover("7", 1, 1)


def test_destroying_leaves_none_of_the_files_bytes_nor_a_killed_writers_copy(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    path = next(folder.glob("kek/7/group-*.kek"))
    secret = path.read_bytes()
    (path.parent / f".{path.name}.00ff.new").write_bytes(secret)
    inode = path.open("rb")
    keks.destroy("7", 1, 1, MAY)
    assert inode.read() != secret
    inode.close()
    assert not any(secret[9:] in found.read_bytes() for found in files(folder))


def test_a_damaged_key_file_is_named_and_never_replaced(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    path = next(folder.glob("kek/7/group-*.kek"))
    whole = path.read_bytes()
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1
        path.write_bytes(broken)
        with pytest.raises((NotDecryptable, KekUnknown)):
            store(folder).get("7", 1, 1)
    path.write_bytes(whole[:5])
    with pytest.raises(NotDecryptable):
        store(folder).get("7", 1, 1)
    other = path.with_name("group-0000000002-000001.kek")
    other.write_bytes(whole)
    with pytest.raises(NotDecryptable):
        store(folder).get("7", 2, 1)


def test_look_up_keys_have_versions_and_old_ones_stay_readable(folder: Path) -> None:
    keks = store(folder)
    version, key = keks.lookup_key("7")
    assert (version, len(key)) == (1, 32)
    assert store(folder).lookup_key("7") == (1, key)
    assert keks.lookup_key("8")[1] != key
    assert keks.turn_lookup("7") == 2
    assert keks.lookup_key("7")[0] == 2
    assert keks.lookup_key_of("7", 1) == key
    assert keks.lookup_versions("7") == [1, 2]
    with pytest.raises(KekUnknown):
        keks.lookup_key_of("7", 3)


def test_a_signing_seed_is_made_once_for_each_name(folder: Path) -> None:
    seed = store(folder).signing_seed("log/acme example")
    assert len(seed) == 32
    assert store(folder).signing_seed("log/acme example") == seed
    assert store(folder).signing_seed("certificate") != seed


def test_threads_that_first_ask_at_once_get_one_key(folder: Path) -> None:
    stores = [store(folder) for _ in range(8)]
    start = threading.Barrier(8)
    got: list[bytes] = []

    def ask(keks: KekStore) -> None:
        start.wait()
        keks.create("7", 1, 1)
        got.append(keks.get("7", 1, 1) + keks.signing_seed("log") + keks.lookup_key("7")[1])

    threads = [threading.Thread(target=ask, args=(keks,)) for keks in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(got)) == 1


# ── turning the root ──────────────────────────────────────────────────────────────────────────────────────────


def test_turning_the_root_keeps_every_key_and_ends_the_old_root(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.create("8", 1, 1)
    before = [keks.get("7", 1, 1), keks.get("8", 1, 1), keks.lookup_key("7")[1], keks.signing_seed("log")]
    report = keks.turn(JUNE)
    assert (report.version, report.rewrapped, report.roots_destroyed) == (2, 4, (1,))
    after = store(folder)
    assert [after.get("7", 1, 1), after.get("8", 1, 1), after.lookup_key("7")[1], after.signing_seed("log")] == before
    again = after.turn(JUNE)
    assert (again.version, again.rewrapped, again.roots_destroyed) == (2, 0, ())
    assert not list(folder.rglob("*.new"))


def test_a_turn_killed_at_any_file_is_finished_by_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Exception):
        pass

    for number in range(1, 5):
        store(folder).create("7", number, 1)
    keys = [store(folder).get("7", number, 1) for number in range(1, 5)]
    now, step, finished = JUNE, 0, False
    while not finished:
        calls = 0

        def limited(path: Path, data: bytes, *, limit: int = step) -> None:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Killed
            durable.replace(path, data)

        with monkeypatch.context() as patch:
            patch.setattr("vault.keks.replace", limited)
            try:
                store(folder).turn(now, force=True)
                finished = True
            except Killed:
                assert [store(folder).get("7", number, 1) for number in range(1, 5)] == keys
                # A key made between the two turns is not lost either.
                store(folder).create("9", 1, 1)
        store(folder).turn(now)
        assert [store(folder).get("7", number, 1) for number in range(1, 5)] == keys
        assert len(list(folder.glob("root/*.key"))) == 1
        step += 1
    assert step >= 4


@pytest.mark.scenario("L29")
def test_a_backup_of_the_key_files_without_the_root_is_dead_once_the_root_has_turned(
    folder: Path, tmp_path: Path
) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.create("7", 2, 1)
    shutil.copytree(folder / "kek", tmp_path / "backup")
    keks.destroy("7", 1, 1, MAY)
    assert keks.final_at("7", 1, 1) is None
    shutil.copytree(tmp_path / "backup", folder / "kek", dirs_exist_ok=True)
    assert store(folder).recover("7", 1, 1), "before the turn the backup still opens: that is why it is not final"
    keks.destroy("7", 1, 1, MAY)
    keks.turn(JUNE)
    assert keks.final_at("7", 1, 1) == JUNE
    shutil.copytree(tmp_path / "backup", folder / "kek", dirs_exist_ok=True)
    with pytest.raises(KekUnknown):
        store(folder).recover("7", 1, 1)


def test_a_live_epoch_is_never_final(folder: Path) -> None:
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.turn(JUNE)
    assert keks.final_at("7", 1, 1) is None


# ── what stays in memory ──────────────────────────────────────────────────────────────────────────────────────


def test_a_cached_key_is_gone_after_its_time(folder: Path) -> None:
    ticks = Ticks()
    keks = store(folder, monotonic=ticks)
    keks.create("7", 1, 1)
    key = keks.get("7", 1, 1)
    next(folder.glob("kek/7/group-*.kek")).unlink()
    ticks.at = 59.9
    assert keks.get("7", 1, 1) == key
    ticks.at = 60.0
    with pytest.raises(KekUnknown):
        keks.get("7", 1, 1)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no clock of this system counts its sleep")
def test_a_keys_time_runs_while_the_machine_sleeps(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A laptop that was closed over an erasure gave the key out again for a minute.
    slept = 0.0
    clock = time.clock_gettime
    monkeypatch.setattr(
        time, "clock_gettime", lambda which: clock(which) + (slept if which == time.CLOCK_BOOTTIME else 0.0)
    )
    keks = store(folder)
    keks.create("7", 1, 1)
    keks.get("7", 1, 1)
    next(folder.glob("kek/7/group-*.kek")).unlink()
    assert keks.get("7", 1, 1)
    slept = 61.0
    with pytest.raises(KekUnknown):
        keks.get("7", 1, 1)


def test_a_cache_is_bounded_in_count_and_age_and_ignores_what_was_read_before_an_eviction() -> None:
    ticks = Ticks()
    cache: TimedCache[str, int] = TimedCache(capacity=2, seconds=10, monotonic=ticks)
    for name in "abc":
        cache.put(name, ord(name), cache.generation)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (None, 98, 99)
    before = cache.generation
    cache.evict(["b"])
    cache.put("b", 1, before)
    assert cache.get("b") is None
    ticks.at = 10
    assert len(cache) == 1
    cache.expire()
    assert len(cache) == 0
    cache.put("d", 1, cache.generation)
    cache.evict_all()
    assert cache.get("d") is None
