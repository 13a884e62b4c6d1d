"""A certificate in pieces is what was signed, whole or not at all, in tables, in files and in what is sent."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlmodel import col

from erasure.canonical_file import canonical_document
from erasure.certificate import SCHEMA, Listed, sign
from erasure.certificate_rows import (
    CertificateCut,
    CertificateKey,
    add_certificate,
    digest_of,
    newest_certificate,
    open_certificate,
)
from erasure.certificate_store import CertificateDiffers, CertificateStore, name_of
from erasure.handout import CUT, certificates_of
from erasure.models import CertificatePiece, CertificateRow
from erasure.rendering.opened import document_of
from erasure.report_check import check
from erasure.signed_file import PIECE, SignedFile
from ledger import canonical
from ledger.entry import uuid7
from ledger.memory_objects import MemoryStore
from ledger.signing import Ed25519Signer
from registry.journal import Content, pack

LARGE = bytes(range(256)) * (5 * PIECE // 512)


class Broken(Exception):
    """The process ended here."""


@pytest.mark.parametrize("data", [b"", b"{}", b"x" * PIECE, LARGE])
def test_a_file_is_the_same_in_pieces_in_place_and_whole_from_wherever_it_starts(data: bytes) -> None:
    for start in (0, min(2, len(data))):
        with SignedFile.of([data[: len(data) // 3], memoryview(data)[len(data) // 3 :]]) as made:
            wanted, signed = data[start:], SignedFile(made._file, start)
            view = signed.view()
            assert (b"".join(signed.pieces(PIECE // 7 + 1)), bytes(view), signed.read()) == (wanted, wanted, wanted)
            assert (signed.size, signed.sha256()) == (len(wanted), sha256(wanted).hexdigest())
        assert view == wanted, "what was looked at stays when the file is closed"


def test_a_large_certificate_is_signed_in_its_file_as_a_small_one_is_in_memory() -> None:
    signer = Ed25519Signer.from_seed("example.org/certificate", b"s" * 32)
    events = [{"entry": "e", "header": "h", "index": number} for number in range(2)]
    around = {"checkpoint": "c", "key": "k"}
    lines = [{"copy": number, "text": "\u00e4<&" * 40} for number in range(5_000)]
    for some in (lines[:1], lines):
        with Listed() as listed, Listed() as proofs:
            listed.add(some[:1])
            listed.add(some[1:])
            proofs.add(events)
            value = {"schema": SCHEMA, "zebra": None, "copies": listed, "log": {**around, "proofs": proofs}}
            with sign(value, signer) as signed:
                report = signed.read()
        whole = {**value, "copies": some, "log": {**around, "proofs": events}}
        with sign(whole, signer) as again:
            assert again.read() == report
        document = json.loads(report)
        assert document["certificate"] == whole
        assert canonical.dumps(document) == report
        assert list(document_of(memoryview(report))["certificate"]["copies"]) == some
        found = canonical_document(report)
        assert found is not None
        read, signed_bytes = found
        assert list(read["certificate"]["copies"]) == some
        assert signed_bytes == canonical.dumps(whole)


CANONICAL = (
    b'{"certificate":{"copies":[{"a":1,"b":[{"c":2}]},{"a":2}],"log":{"proofs":[]},"text":"\xc3\xa4"},"signature":{}}'
)


@pytest.mark.parametrize(
    "change",
    [
        (b'{"certificate"', b'{ "certificate"'),
        (b',"signature"', b' ,"signature"'),
        (b"}}", b"}}\n"),
        (b'{"a":2}', b'{"a": 2}'),
        (b'{"a":2}', b'{"a":2,"a":2}'),
        (b'{"a":2}', b'"a"'),
        (b'{"a":1,"b"', b'{"b":1,"a"'),
        (b'{"c":2}', b'{"c":2.0}'),
        (b'{"c":2}', b'{"c":1e+21}'),
        (b'{"c":2}', b'{"c":2,"c":2}'),
        (b'},{"a":2}', b'} ,{"a":2}'),
        (b'"proofs":[]', b'"proofs":[ ]'),
        (b'"log":{"proofs":[]}', b'"log":{"proofs":[],"proofs":[]}'),
        (b'"text":"\xc3\xa4"', b'"text":"\\u00e4"'),
        (b'"text":"\xc3\xa4"', b'"text":1.5'),
        (b'"text":"\xc3\xa4"', b'"text":"\xc3"'),
        (b'"log"', b'"m\xc3\xa4"'),
        (b'"copies":[{"a":1,"b":[{"c":2}]},{"a":2}]', b'"copies":{}'),
        (b'"signature":{}', b'"signature":{},"signature":{}'),
        (CANONICAL, b"[]"),
        (CANONICAL, b""),
    ],
)
def test_only_bytes_that_are_their_own_canonical_form_are_read_in_place(change: tuple[bytes, bytes]) -> None:
    assert canonical_document(CANONICAL) is not None
    assert CANONICAL.count(change[0]) == 1
    assert canonical_document(CANONICAL.replace(*change)) is None


def test_a_certificate_in_the_tables_is_whole_or_refused(world: Any) -> None:
    key = CertificateKey(world.tenant.tenant_id, "req_large", "interim", 1)
    with SignedFile.of([LARGE]) as signed, world.parts.transactions(key.tenant_id) as session:
        assert add_certificate(session, key, signed, world.now) == sha256(LARGE).hexdigest()
    with world.parts.transactions(key.tenant_id, write=False) as session:
        assert newest_certificate(session, key.tenant_id, "req_large") == key
        assert digest_of(session, key) == sha256(LARGE).hexdigest()
        with open_certificate(session, key) as found:
            assert found.view() == LARGE
    last = (col(CertificatePiece.request_id) == "req_large") & (col(CertificatePiece.n) == 2)
    for change in (
        sa.update(CertificatePiece).where(last).values(data=b"short"),
        sa.delete(CertificatePiece).where(last),
        sa.update(CertificatePiece).where(last).values(n=3),
    ):
        with suppress(Broken), world.parts.transactions(key.tenant_id) as session:
            session.connection().execute(change)
            for read in (open_certificate, digest_of):
                with pytest.raises(CertificateCut, match=f"expected {len(LARGE)} bytes"):
                    read(session, key)
            raise Broken


def test_rows_from_before_certificates_were_cut_come_back_as_what_was_signed(world: Any) -> None:
    # They came back as certificates of no bytes, which kept those of the locked store out.
    tenant, log_id = world.tenant.tenant_id, world.tenant.log_id
    bodies = {"req_small": b"{}", "req_large": LARGE}
    rows = [
        {
            "tenant_id": tenant, "request_id": request, "version": "interim", "number": 1, "body": body,
            "issued_at": world.now, "stored_at": None,
        }
        for request, body in bodies.items()
    ]  # fmt: skip
    path = f"rows/{uuid7(world.now)}"
    content = Content(at=world.now, tables={"certificate": rows})
    world.services.hot.replace(f"{log_id}/{path}", pack(world.services.vault.keks, tenant, log_id, path, content))
    rebuild = world.services.recovery.rebuild
    for _ in range(2):
        rebuild.catch_up(
            tenant, log_id, size=0, since=world.now - timedelta(days=1), now=world.now, grace=timedelta(days=1)
        )
        with world.parts.transactions(tenant, write=False) as session:
            for request, body in bodies.items():
                with open_certificate(session, CertificateKey(tenant, request, "interim", 1)) as found:
                    assert found.read() == body


def test_a_certificate_that_breaks_off_between_its_pieces_leaves_nothing(world: Any) -> None:
    key = CertificateKey(world.tenant.tenant_id, "req_large", "interim", 1)

    class Ending(SignedFile):
        def pieces(self, size: int = PIECE) -> Any:
            for number, piece in enumerate(super().pieces(size)):
                if number == 2:
                    raise Broken
                yield piece

    with pytest.raises(Broken), Ending.of([LARGE]) as signed, world.parts.transactions(key.tenant_id) as session:
        add_certificate(session, key, signed, world.now)
    with world.parts.transactions(key.tenant_id, write=False) as session:
        assert newest_certificate(session, key.tenant_id, "req_large") is None
        assert session.scalar(sa.select(sa.func.count()).select_from(CertificatePiece)) == 0


def test_a_broken_certificate_is_named_in_every_pass_and_those_after_it_are_stored(world: Any) -> None:
    # The first one ended the pass: nothing that was issued later was ever kept beyond the table.
    tenant, log_id = world.tenant.tenant_id, world.tenant.log_id
    away = MemoryStore(lambda: world.now)
    store = CertificateStore(locked=away, transactions=world.parts.transactions, lock_end=world.services.lock_end)
    cut, differs, whole = (CertificateKey(tenant, f"req_{name}", "interim", 1) for name in ("cut", "differs", "whole"))
    for minute, key in enumerate((cut, differs, whole)):
        with SignedFile.of([key.request_id.encode()]) as signed, world.parts.transactions(tenant) as session:
            add_certificate(session, key, signed, world.now + timedelta(minutes=minute))
    digest = sha256(differs.request_id.encode()).hexdigest()
    away.put(f"{log_id}/{name_of(differs, digest)}", b"another one", lock_until=None)
    removed = sa.delete(CertificatePiece).where(col(CertificatePiece.request_id) == cut.request_id)
    with world.parts.transactions(tenant) as session:
        session.connection().execute(removed)
    for _ in range(2):
        with pytest.raises(CertificateCut, match="req_cut"):
            store.store_due(tenant, log_id, world.now)
        with world.parts.transactions(tenant, write=False) as session:
            stored = {row.request_id: row.stored_at for row in session.scalars(sa.select(CertificateRow))}
        assert stored == {"req_cut": None, "req_differs": None, "req_whole": world.now}
    with world.parts.transactions(tenant) as session:
        session.connection().execute(sa.delete(CertificateRow).where(col(CertificateRow.request_id) == "req_cut"))
    with pytest.raises(CertificateDiffers, match="req_differs"):
        store.store_due(tenant, log_id, world.now)


def test_a_cut_certificate_holds_up_neither_the_one_after_it_nor_an_export_that_lists_it(world: Any) -> None:
    # Each pass over either ended at it, for ever.
    world.change(certificates=world.services.certificates)
    world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    request = world.erase()
    interim = world.reader.certificate(world.acting(), request)
    with world.parts.transactions(world.tenant.tenant_id) as session:
        session.connection().execute(sa.delete(CertificatePiece))
        told = certificates_of(session, world.tenant.tenant_id, [request])
    assert [(line["request"], line["sha256"], line["note"]) for line in told] == [(request, None, CUT)]
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work()
    final = world.reader.certificate(world.acting(), request, "final")
    assert json.loads(final)["certificate"]["supersedes"] == sha256(interim).hexdigest()
    assert "supersedes" in check(final, world.certificate_key, world.log_key)[-1]


def test_only_the_object_that_was_issued_then_stands_for_a_cut_certificate(world: Any) -> None:
    tenant, log_id = world.tenant.tenant_id, world.tenant.log_id
    store = CertificateStore(
        locked=MemoryStore(lambda: world.now), transactions=world.parts.transactions, lock_end=world.services.lock_end
    )
    key = CertificateKey(tenant, "req_a", "interim", 1)
    bodies = []
    for second in range(2):
        said = {"request": "req_a", "version": "interim", "issued_at": f"2026-03-01T12:00:0{second}Z"}
        bodies.append(msgspec.json.encode({"certificate": said, "signature": {}}))
    with SignedFile.of([bodies[1]]) as signed, world.parts.transactions(tenant) as session:
        add_certificate(session, key, signed, datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC))
        session.connection().execute(sa.delete(CertificatePiece))
    others = [(bodies[0], sha256(bodies[0]).hexdigest()), (bodies[1], "0" * 64)]
    for body, digest in others:
        store.locked.put(f"{log_id}/{name_of(key, digest)}", body, lock_until=None)
    with world.parts.transactions(tenant, write=False) as session:
        with pytest.raises(CertificateCut):
            store.open(session, key, log_id)
        name = f"{log_id}/{name_of(key, sha256(bodies[1]).hexdigest())}"
        store.locked.put(name, bodies[1], lock_until=None)
        with store.open(session, key, log_id) as signed:
            assert signed.read() == bodies[1]


def test_a_certificate_of_many_pieces_goes_to_the_locked_store_and_comes_back(world: Any) -> None:
    request = world.ask()
    tenant, log_id = world.tenant.tenant_id, world.tenant.log_id
    away = MemoryStore(lambda: world.now)
    store = CertificateStore(locked=away, transactions=world.parts.transactions, lock_end=world.services.lock_end)
    said = {"request": request, "version": "interim", "issued_at": world.now.isoformat(), "text": "x" * 9 * PIECE}
    body = msgspec.json.encode({"certificate": said, "signature": {}})
    key = CertificateKey(tenant, request, "interim", 1)
    with SignedFile.of([body]) as signed, world.parts.transactions(tenant) as session:
        add_certificate(session, key, signed, world.now)
    assert store.store_due(tenant, log_id, world.now) == 1
    name = f"{log_id}/{name_of(key, sha256(body).hexdigest())}"
    assert away.get(name) == body
    foreign = name.replace(request, "req_of_nobody")
    unlike = name_of(CertificateKey(tenant, request, "final", 2), "0" * 16)
    away.put(foreign, body, lock_until=None)
    away.put(f"{log_id}/{unlike}", body, lock_until=None)
    with world.parts.transactions(tenant) as session:
        for table in (CertificateRow, CertificatePiece):
            session.connection().execute(sa.delete(table))
    found = store.restore(tenant, log_id, world.now)
    assert (found.count, sorted(found.strange)) == (1, sorted([foreign.removeprefix(f"{log_id}/"), unlike]))
    with world.parts.transactions(tenant, write=False) as session, open_certificate(session, key) as signed:
        assert signed.read() == body
    assert store.restore(tenant, log_id, world.now).count == 0
    # A row without its bytes was taken for the certificate, and the object stayed where it was.
    for change in (
        sa.update(CertificateRow).values(size=0),
        sa.delete(CertificatePiece).where(col(CertificatePiece.n) == 4),
    ):
        with world.parts.transactions(tenant) as session:
            session.connection().execute(change)
            with pytest.raises(CertificateCut):
                open_certificate(session, key)
        assert store.restore(tenant, log_id, world.now).count == 1
        with world.parts.transactions(tenant, write=False) as session:
            assert digest_of(session, key) == sha256(body).hexdigest()
