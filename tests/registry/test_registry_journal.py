"""Rows for a rebuild: sealed, bound to their place, written once, written again when they changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session, SQLModel, select

from ledger.draft import Draft, SealedPart
from ledger.entry import uuid7
from ledger.errors import ObjectMissing, StoreUnavailable
from ledger.log import Log
from ledger.memory_objects import MemoryStore
from registry import streams, subjects
from registry.errors import JournalNotWritten, JournalUnreadable
from registry.identifiers import parse_subject
from registry.journal import (
    END,
    LEFT_OUT,
    REBUILT,
    VAULT_ROWS,
    Content,
    Journal,
    complete_snapshots,
    pack,
    read_object,
    row_objects,
    tenant_column,
    tenant_of,
    unpack,
)
from registry.models import RunRow, StreamRow, SubjectSetMember, Token
from registry.put_back import put_rows
from registry.tokens import revoke
from vault.errors import KekUnknown
from vault.models import DataKey

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Hot:
    """The unlocked store in memory, one journal over it."""

    def __init__(self, house: Any) -> None:
        self.house = house
        self.seconds = 0
        self.store = MemoryStore(clock=lambda: NOW, locked=False)
        self.journal = self.fresh()

    def fresh(self) -> Journal:
        """A journal that remembers nothing, as after a restart."""
        return Journal(vault=self.house.vault, transactions=self.transaction, hot=self.store, tables=self.tables)

    @staticmethod
    def tables() -> list[sa.Table]:
        return SQLModel.metadata.sorted_tables

    def transaction(self, tenant_id: int, *, write: bool = True) -> Any:
        del tenant_id, write
        return Session(self.house.engine, expire_on_commit=False)

    def said(self, *people: str, stream: str = "conv") -> Draft:
        """An entry about people, as the record hands it to the log."""
        acting, vault = self.house.alice, self.house.vault
        with self.house.session() as session:
            numbers = subjects.resolve(session, vault, acting, [parse_subject(one) for one in people], NOW)
            ref = streams.streams_for(session, vault, acting, {stream: numbers}, NOW)[stream]
            run = streams.runs_for(session, vault, acting, {"run": numbers}, NOW)["run"]
            recorder = streams.recorders_for(session, vault, acting, ["rec"])["rec"]
            set_id = subjects.intern_set(session, acting.tenant_id, numbers, NOW)
            handles = [vault.key_for(session, acting.tenant_id, number, "transcript", "2026-03") for number in numbers]
            session.commit()
        part = SealedPart(
            role="part.0", algorithm="a", ciphertext=b"c", lock_until=None,
            key_ids=tuple(handle.key_id for handle in handles),
        )  # fmt: skip
        return Draft(
            entry_id=uuid7(NOW), kind="turn.user", data_class="transcript", class_version=1, at=NOW, received=NOW,
            recorder=recorder, seq=0, stream_id=ref.stream_id, stream_no=ref.stream_no, run_no=run.run_no,
            set_id=set_id, sources_count=0, sources_root=None, parts=(part,), subjects=(tuple(numbers),),
            digest=b"d" * 16,
        )  # fmt: skip

    def before(self, *drafts: Draft, journal: Journal | None = None) -> None:
        acting = self.house.alice
        (journal or self.journal).before(acting.tenant_id, acting.log_id, drafts, self.now())

    def now(self) -> datetime:
        """A second later than before, so that objects sort as they were written."""
        self.seconds += 1
        return NOW + timedelta(seconds=self.seconds)

    def contents(self) -> list[Content]:
        log_id = self.house.alice.log_id
        paths = row_objects(self.store, log_id)
        found = [read_object(self.store, self.house.vault.keks, log_id, path) for path in paths]
        return [content for content in found if content is not None]

    def tables_of(self, content: Content) -> dict[str, int]:
        return {name: len(rows) for name, rows in content.tables.items()}


@pytest.fixture
def hot(house: Any) -> Hot:
    return Hot(house)


def test_what_an_entry_refers_to_is_written_before_it_and_once(hot: Hot) -> None:
    draft = hot.said("user:ada", "user:bob")
    hot.before(draft)
    (content,) = hot.contents()
    counts = hot.tables_of(content)
    assert {name: counts[name] for name in ("subject", "subject_identifier", "stream", "run", "recorder")} == {
        "subject": 2, "subject_identifier": 2, "stream": 1, "run": 1, "recorder": 1,
    }  # fmt: skip
    assert counts["subject_set_member"] == 2
    assert counts["tenant"] == 1
    assert counts["data_class"] > 5
    keys = msgspec.json.decode(content.keys[0])["keys"]
    assert {key["data_class"] for key in keys} == {"transcript", "identity"}
    assert len(keys) == 4
    hot.before(draft)
    hot.before(hot.said("user:ada"))
    assert len(hot.contents()) == 2  # the set of ada alone was new
    hot.before(hot.said("user:ada"))
    assert len(hot.contents()) == 2


def test_a_stream_that_somebody_joined_is_written_again_with_all_its_people(hot: Hot) -> None:
    hot.before(hot.said("user:ada"))
    hot.before(hot.said("user:eve"))
    last = hot.contents()[-1]
    assert hot.tables_of(last)["stream"] == 1
    sets = {row["set_id"] for row in last.tables["subject_set_member"]}
    assert last.tables["stream"][0]["set_id"] in sets


def test_after_a_restart_rows_are_written_again_and_nothing_is_readable(hot: Hot) -> None:
    draft = hot.said("user:ada-lovelace")
    hot.before(draft)
    hot.before(draft, journal=hot.fresh())
    log_id = hot.house.alice.log_id
    assert len(row_objects(hot.store, log_id)) == 2
    with hot.house.session() as session:
        wrapped = [row.wrapped for row in session.exec(select(DataKey)) if row.wrapped is not None]
        hashes = [row.secret_hash for row in session.exec(select(Token))]
        lookups = [row.lookup for row in (*session.exec(select(StreamRow)), *session.exec(select(RunRow)))]
    for path in row_objects(hot.store, log_id):
        data = hot.store.get(f"{log_id}/{path}")
        for needle in (b"lovelace", b"alice", b"transcript", *wrapped, *hashes, *lookups):
            assert needle not in data


def test_what_could_not_be_written_is_written_with_the_next_entry(hot: Hot) -> None:
    draft = hot.said("user:ada")
    hot.store.fail_before(0)
    with pytest.raises(StoreUnavailable):
        hot.before(draft)
    assert hot.contents() == []
    hot.before(draft)
    assert hot.tables_of(hot.contents()[0])["subject"] == 1


def test_small_tables_are_written_when_they_changed(hot: Hot) -> None:
    acting = hot.house.alice
    hot.journal.changed(acting.tenant_id, hot.now())
    hot.journal.changed(acting.tenant_id, hot.now())
    (first,) = hot.contents()
    (token,) = first.tables["token"]
    with hot.house.session() as session:
        revoke(session, acting.tenant_id, token["token_id"], NOW)
        session.commit()
    hot.journal.changed(acting.tenant_id, hot.now())
    second = hot.contents()[-1]
    assert hot.tables_of(second) == {"token": 1}
    assert second.tables["token"][0]["revoked_at"] == NOW


def test_another_tenants_rows_are_never_in_an_object(hot: Hot) -> None:
    hot.house.tenant("mallory")
    acting = hot.house.alice
    with hot.house.session() as session:
        Log.create(session, acting.tenant_id, acting.log_id)
        session.commit()
    hot.before(hot.said("user:ada"))
    name = hot.journal.snapshot(acting.tenant_id, NOW)
    paths = [key.partition("/")[2] for key in hot.store.list(f"{acting.log_id}/")]
    assert f"{name}/{END}" in paths
    for path in paths:
        content = unpack(hot.house.vault.keks, acting.log_id, path, hot.store.get(f"{acting.log_id}/{path}"))
        for table, rows in content.tables.items():
            owner = tenant_column(SQLModel.metadata.tables[table])
            assert owner is not None
            assert {row[owner.name] for row in rows} <= {acting.tenant_id}


def test_a_snapshot_holds_every_table_of_a_tenant_that_has_rows(hot: Hot) -> None:
    acting = hot.house.alice
    hot.house.register([hot.house.item(number) for number in range(3)])
    hot.said("user:ada")
    with hot.house.session() as session:
        Log.create(session, acting.tenant_id, acting.log_id)
        session.commit()
    name = hot.journal.snapshot(acting.tenant_id, NOW)
    assert complete_snapshots(hot.store, acting.log_id) == [name]
    end = read_object(hot.store, hot.house.vault.keks, acting.log_id, f"{name}/{END}")
    assert end is not None
    counts: dict[str, int] = {}
    for number in range(end.parts):
        content = read_object(hot.store, hot.house.vault.keks, acting.log_id, f"{name}/{number:08d}")
        assert content is not None
        for name_of, rows in content.tables.items():
            counts[name_of] = counts.get(name_of, 0) + len(rows)
    with hot.house.session() as session:
        for table in SQLModel.metadata.sorted_tables:
            column = tenant_column(table)
            if column is None or table.name in REBUILT | LEFT_OUT | VAULT_ROWS:
                assert table.name not in counts
                continue
            there = session.scalar(sa.select(sa.func.count()).select_from(table).where(column == acting.tenant_id))
            assert counts.get(table.name, 0) == there, table.name
    assert counts["artifact"] == 3


def test_an_object_holds_few_megabytes_of_certificates_and_many_small_ones(hot: Hot) -> None:
    # Pages were of 2,000 pieces of a megabyte.
    acting = hot.house.alice
    pieces = SQLModel.metadata.tables["certificate_piece"]
    key = {"tenant_id": acting.tenant_id, "version": "final", "number": 2}
    large = [{**key, "request_id": "req_large", "n": n, "data": bytes([n]) * 2**20} for n in range(20)]
    small = [{**key, "request_id": f"req_{n}", "n": 0, "data": b"{}"} for n in range(30)]
    with hot.house.session() as session:
        Log.create(session, acting.tenant_id, acting.log_id)
        session.connection().execute(sa.insert(pieces), large + small)
        session.commit()
    name = hot.journal.snapshot(acting.tenant_id, NOW)
    held = []
    for key_of in hot.store.list(f"{acting.log_id}/{name}/"):
        content = read_object(hot.store, hot.house.vault.keks, acting.log_id, key_of.partition("/")[2])
        assert content is not None
        held.append([row["data"] for row in content.tables.get("certificate_piece", [])])
    assert sorted((len(data), data[0]) for some in held for data in some) == sorted(
        (len(row["data"]), row["data"][0]) for row in large + small
    )
    assert max(sum(map(len, some)) for some in held) < 16 * 2**20
    assert sum(map(bool, held)) <= 4


def test_a_snapshot_without_its_end_does_not_count(hot: Hot) -> None:
    acting = hot.house.alice
    hot.store.fail_after(0)
    with pytest.raises(StoreUnavailable):
        hot.journal.snapshot(acting.tenant_id, NOW)
    assert complete_snapshots(hot.store, acting.log_id) == []
    assert hot.journal.snapshot_if_due(acting.tenant_id, NOW + timedelta(hours=1))
    assert not hot.journal.snapshot_if_due(acting.tenant_id, NOW + timedelta(hours=2))
    assert hot.journal.snapshot_if_due(acting.tenant_id, NOW + timedelta(days=1))


def test_rows_wrapped_anew_are_read_back(hot: Hot) -> None:
    draft = hot.said("user:ada")
    acting = hot.house.alice
    with hot.house.session() as session:
        group = session.exec(select(DataKey.group_no).where(DataKey.key_id == draft.parts[0].key_ids[0])).one()
    assert hot.journal.snapshot_groups(acting.tenant_id, [group], hot.now()) == 1
    assert draft.parts[0].key_ids[0].encode() in hot.contents()[-1].keys[0]

    class Forgetful(MemoryStore):
        def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
            return super().get(key, offset=offset, length=length)[:-1]

    hot.store = Forgetful(clock=lambda: NOW, locked=False)
    with pytest.raises(JournalNotWritten):
        hot.fresh().snapshot_groups(acting.tenant_id, [group], NOW)


def test_an_object_opens_only_at_its_place_and_with_its_tenants_key(hot: Hot) -> None:
    house = hot.house
    mallory = house.tenant("mallory")
    keks, log_id = house.vault.keks, house.alice.log_id
    data = pack(keks, house.alice.tenant_id, log_id, "rows/a", Content(at=NOW, keys=(b"x",)))
    assert unpack(keks, log_id, "rows/a", data) == Content(at=NOW, keys=(b"x",))
    assert tenant_of("rows/a", data) == house.alice.tenant_id
    for other, path in ((log_id, "rows/b"), (mallory.log_id, "rows/a")):
        with pytest.raises(JournalUnreadable):
            unpack(keks, other, path, data)
    envelope = msgspec.msgpack.decode(data)
    with pytest.raises(KekUnknown):
        unpack(keks, log_id, "rows/a", msgspec.msgpack.encode([1, mallory.tenant_id, envelope[2]]))
    with pytest.raises(JournalUnreadable):
        unpack(keks, log_id, "rows/a", msgspec.msgpack.encode([2, *envelope[1:]]))
    with pytest.raises(ObjectMissing):
        hot.store.get("nothing")
    assert read_object(hot.store, keks, log_id, "rows/none") is None


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_changed_byte_is_taken_for_rows(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    from vault.keks import KekStore
    from vault.providers import FileRoot

    folder = tmp_path_factory.mktemp("keys")
    keks = KekStore(folder, FileRoot(folder, clock=lambda: NOW))
    packed = bytearray(pack(keks, 7, "0" * 32, "rows/a", Content(at=NOW, tables={"t": [{"n": 1}]})))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((JournalUnreadable, KekUnknown)):
        unpack(keks, "0" * 32, "rows/a", bytes(packed))


def test_put_back_later_rows_stand_and_a_second_time_changes_nothing(hot: Hot) -> None:
    table = SQLModel.metadata.tables["subject_set_member"]
    token = SQLModel.metadata.tables["token"]
    row = {"tenant_id": 1, "subject_no": 2, "set_id": 3}
    with hot.house.session() as session:
        old = dict(session.execute(sa.select(token)).mappings().one())
        new = {**old, "revoked_at": NOW, "a_column_of_the_future": 1}
        for _ in range(2):
            put_rows(session, table, [row, row])
            put_rows(session, token, [old])
            put_rows(session, token, [old, new])
        session.commit()
    with hot.house.session() as session:
        assert session.exec(select(Token)).one().revoked_at == NOW
        assert len(session.exec(select(SubjectSetMember).where(SubjectSetMember.tenant_id == 1)).all()) == 1
