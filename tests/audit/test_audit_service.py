"""The auditor over a real service: a log that `ledger.log` wrote, read from its folder while it is open elsewhere."""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import col, select, update

from api import cli, settings, telemetry
from api.administration import NewTenant, create_tenant
from api.anchoring import rotate_key
from api.verification import KnownLog, OpensAgain, logs_of, part_states, read_only, stores_of
from api.wiring import Services, build
from audit.findings import Findings, Verdict
from audit.forge import MemoryBucket
from audit.payload import PayloadCheck
from audit.processes import Helpers, Task
from audit.reader import FolderReader
from audit.replay import Content, StoredEntry, Unsealed, fold, transcript_json
from audit.verify import Helping, Options, verify
from ledger.entry import Header, uuid7
from ledger.models import EntryRow
from registry.acting import Acting
from tests import schema
from vault.models import DataKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A data folder with a tenant whose log has entries and a signed head."""

    folder: Path
    services: Services
    made: NewTenant
    acting: Acting

    def verify(self, *options: str) -> tuple[int, dict[str, Any]]:
        """Run the command and return its exit code and its document."""
        out = self.folder / "out.json"
        import contextlib

        with out.open("w") as stream, contextlib.redirect_stdout(stream):
            code = cli.run(["verify", "--data", str(self.folder), "--json", *options])
        return code, json.loads(out.read_text())

    def batches(self) -> list[Path]:
        """Return the batch objects in order."""
        return sorted((self.folder / "objects" / self.acting.log_id / "batch").iterdir())

    def payloads(self) -> list[Path]:
        """Return the payload objects."""
        return sorted(
            path for path in (self.folder / "objects" / self.acting.log_id / "payload").rglob("*") if path.is_file()
        )


def record(kept: Kept, stream: str, texts: list[str], *, subject: str) -> list[str]:
    now = kept.services.clock.now()
    ids = [uuid7(now + timedelta(milliseconds=number)) for number in range(len(texts))]
    entries = [
        json.dumps(
            {
                "id": entry_id,
                "stream": stream,
                "kind": "turn.user",
                "at": "2026-03-01T12:00:00Z",
                "data_class": "transcript",
                "subjects": [subject],
                "body": {"content": text},
            }
        ).encode()
        for entry_id, text in zip(ids, texts, strict=True)
    ]
    result = kept.services.record.append(kept.acting, entries, now)
    assert [one["status"] for one in result.results] == ["stored"] * len(texts)
    return ids


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    folder = tmp_path / "data"
    services = build(settings.load(folder), telemetry=telemetry.build(stream=StringIO()))
    schema.bring(services.database)
    services.lease.take(services.clock.now(), force=True)
    made = create_tenant(services, "default")
    acting = services.tenants()[0]
    writer = Acting(
        tenant_id=acting.tenant_id,
        tenant=acting.tenant,
        log_id=acting.log_id,
        principal="writer",
        token_id="t",
        roles=frozenset({"writer"}),
        stores=("*",),
        classes=("*",),
    )
    kept = Kept(folder=folder, services=services, made=made, acting=writer)
    record(kept, "conv_1", ["hello", "refund please", "thanks"], subject="user:ada")
    services.log.publish(acting.tenant_id, services.clock.now())
    record(kept, "conv_2", ["other", "talk"], subject="user:bob")
    services.record.ship_outbox(acting.tenant_id, services.clock.now())
    services.log.publish(acting.tenant_id, services.clock.now())
    yield kept
    services.close()


def test_a_log_that_the_service_wrote_is_sound_while_the_service_has_it_open(kept: Kept) -> None:
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"], found["anchored"]) == (0, "sound", False), found
    assert found["checked"] == found["size"] == found["logs"][0]["signed_size"] == 6
    assert found["findings"] == []
    assert any("unanchored" in note for note in found["logs"][0]["notes"])


def test_without_a_pinned_key_the_report_says_whose_key_was_used(kept: Kept) -> None:
    code, found = kept.verify()
    assert code == 0
    assert any("pin it" in note for note in found["logs"][0]["notes"])


def test_the_command_keeps_the_list_of_anchors_and_misses_one_that_was_taken_away(
    kept: Kept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "anchors.txt"
    elsewhere, gone = (f"{log_id}/anchor/{5:020d}-{'ab' * 4}" for log_id in ("another", kept.acting.log_id))
    names.write_text(f"{elsewhere}\n\n")
    assert kept.verify("--anchors", str(names), "--keep-anchors", str(names))[0] == 0
    assert f"{names}: 1 anchors kept" in capsys.readouterr().err
    assert names.read_text() == f"{elsewhere}\n"
    names.write_text(f"{elsewhere}\n{gone}\n")
    code, found = kept.verify("--anchors", str(names), "--keep-anchors", str(names))
    assert (code, [(one["verdict"], one["object"]) for one in found["findings"]]) == (1, [("missing", gone)])
    # What is missed stays in the list.
    assert names.read_text() == f"{elsewhere}\n{gone}\n"
    names.write_text("checkpoint/1\n")
    assert kept.verify("--anchors", str(names))[0] == 2


def test_what_lies_beside_the_record_is_checked_by_the_command_too(kept: Kept) -> None:
    base = kept.folder / "objects" / kept.acting.log_id
    for folder in ("certificate/req_1/0001-final-" + "0" * 16 + ".json", "keys/log/000001", "anchor/x"):
        path = base / folder
        path.parent.mkdir(parents=True)
        path.write_bytes(b"{}")
        code, found = kept.verify("--key", kept.made.log_key)
        assert (code, found["verdict"]) == (1, "altered")
        assert [one["object"] for one in found["findings"]] == [f"{kept.acting.log_id}/{folder}"]
        path.unlink()
        path.parent.rmdir()
    for option, value in (("--tsa", "ab"), ("--certificate-key", "ab"), ("--certificate-key", kept.made.log_key)):
        code, found = kept.verify(option, value)
        assert (code, found["verdict"]) == (2, "unreadable"), found
    assert kept.verify("--certificate-key", kept.made.certificate_key, "--tsa", "ab" * 32)[0] == 0


@pytest.mark.parametrize("left", [None, b"{", b'{"log": [{"generation": 9}]}'])
def test_a_lost_or_damaged_list_of_keys_announces_no_change_twice_and_hides_none(
    kept: Kept, left: bytes | None
) -> None:
    (acting,) = kept.services.tenants()
    rotate_key(kept.services, acting, "log", revoke=False)
    name = f"{acting.log_id}/keys"
    kept.services.hot.delete(name)
    if left is not None:
        kept.services.hot.replace(name, left)
        assert kept.verify("--key", kept.made.log_key)[0] == 1
    rotate_key(kept.services, acting, "log", revoke=False)
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"]) == (0, "sound")
    with kept.services.database.transaction(acting.tenant_id, write=False) as session:
        assert len(session.exec(select(EntryRow).where(EntryRow.kind == "key.rotated")).all()) == 2


def test_a_changed_byte_in_one_of_two_signatures_is_noticed_wherever_it_stands(kept: Kept, full_length: bool) -> None:
    """A line by nobody that is known is passed over in a note: of two signatures one could be changed unseen."""
    services, tenant = kept.services, kept.acting.tenant_id
    rotate_key(services, kept.acting, "log", revoke=False)
    newest = max((kept.folder / "objects" / kept.acting.log_id / "checkpoint").iterdir())
    whole = newest.read_bytes()
    assert whole.count("\u2014 ".encode()) == 2
    assert kept.verify("--key", kept.made.log_key)[1]["verdict"] == "sound"
    newest.chmod(0o600)
    bucket, log_id = FolderReader(kept.folder / "objects"), kept.acting.log_id
    keys = [window.pin for window in services.log.keys(tenant)]
    for at in range(whole.index(b"\n\n"), len(whole), 1 if full_length else 4):
        newest.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        report = verify(bucket, log_id=log_id, keys=keys, options=Options(keys_are_all=True))
        assert {(one.verdict, one.object) for one in report.findings} == {
            (Verdict.ALTERED, f"{log_id}/checkpoint/{newest.name}")
        }, (at, report.findings)
    first, second = whole.split("\u2014 ".encode())[1:]
    for lines in ((first,), (second,), (first, second, second)):
        newest.write_bytes(whole[: whole.index(b"\n\n") + 2] + b"".join("\u2014 ".encode() + one for one in lines))
        found = kept.verify("--key", kept.made.log_key)[1]
        assert (found["verdict"], found["findings"][0]["object"]) == ("altered", f"{log_id}/checkpoint/{newest.name}")
    newest.write_bytes(whole)
    assert kept.verify("--key", kept.made.log_key)[1]["verdict"] == "sound"


def test_a_log_that_continues_the_kept_head_is_anchored(kept: Kept, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.write_bytes(kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now()))
    record(kept, "conv_1", ["more"], subject="user:ada")
    kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now())
    code, found = kept.verify("--key", kept.made.log_key, "--since", str(head))
    assert (code, found["verdict"], found["anchored"], found["size"]) == (0, "sound", True, 7)


@pytest.mark.scenario("L1")
def test_one_flipped_bit_on_disk_names_the_batch_and_its_entries(kept: Kept) -> None:
    batch = kept.batches()[0]
    data = bytearray(batch.read_bytes())
    data[data.index(b"\n") + 50] ^= 1
    batch.chmod(0o600)
    batch.write_bytes(data)
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"]) == (1, "altered")
    assert found["findings"][0]["index"] == 0
    assert "entries 0 to " in found["findings"][0]["detail"]
    assert found["findings"][0]["object"].endswith(batch.name)


def test_one_flipped_bit_in_a_payload_names_entry_and_object(kept: Kept) -> None:
    payload = kept.payloads()[0]
    data = bytearray(payload.read_bytes())
    data[100] ^= 0x80
    payload.chmod(0o600)
    payload.write_bytes(data)
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"]) == (1, "altered")
    assert found["findings"][0]["entry"]
    assert found["findings"][0]["object"].endswith(payload.name)


def test_a_log_rolled_back_with_its_database_is_found_by_the_kept_head(kept: Kept, tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.write_bytes(kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now()))
    kept.batches()[-1].unlink()
    code, found = kept.verify("--key", kept.made.log_key, "--since", str(head))
    assert (code, found["verdict"], found["anchored"]) == (1, "rolled_back", False)


@pytest.mark.scenario("L18")
def test_content_whose_key_was_destroyed_counts_as_erased_and_the_log_stays_sound(kept: Kept) -> None:
    tenant = kept.acting.tenant_id
    with kept.services.database.transaction(tenant) as session:
        gone = update(DataKey).where(col(DataKey.tenant_id) == tenant, col(DataKey.data_class) == "transcript")
        session.execute(gone.values(state="destroyed", wrapped=None, request="req_1"))
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"], found["erased"], found["expired"]) == (0, "sound", 5, 0)


def test_a_sample_is_never_called_sound(kept: Kept) -> None:
    code, found = kept.verify("--sample", "2")
    assert (code, found["verdict"], found["checked"]) == (0, "sampled 2 of 6", 2)


def test_a_stream_is_found_by_the_name_callers_gave_it(kept: Kept) -> None:
    code, found = kept.verify("--stream", "conv_1")
    assert (code, found["verdict"], found["checked"]) == (0, "sound", 3)
    code, found = kept.verify("--stream", "nobody's")
    assert (code, found["verdict"]) == (2, "unreadable")


@pytest.mark.scenario("L17")
def test_a_lost_database_leaves_a_log_that_can_be_verified(kept: Kept) -> None:
    kept.services.close()
    for path in kept.folder.glob("muniment.db*"):
        path.unlink()
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"], found["checked"]) == (0, "sound", 6)
    assert not list(kept.folder.glob("muniment.db*"))


def test_a_wrong_place_a_wrong_key_and_a_wrong_head_could_not_be_checked(kept: Kept, tmp_path: Path) -> None:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert cli.run(["verify", "--data", str(tmp_path / "nowhere"), "--json"]) == 2
    assert json.loads(out.getvalue())["verdict"] == "unreadable"
    assert not (tmp_path / "nowhere").exists()
    code, found = kept.verify("--key", "not a key")
    assert (code, found["verdict"]) == (2, "unreadable")
    broken = tmp_path / "head"
    broken.write_bytes(b"not a note")
    code, found = kept.verify("--key", kept.made.log_key, "--since", str(broken))
    assert (code, found["verdict"]) == (2, "unreadable")


def test_the_command_proves_on_a_copy_and_leaves_the_log_as_it_was(kept: Kept) -> None:
    before = {path: path.read_bytes() for path in (kept.folder / "objects").rglob("*") if path.is_file()}
    code, found = kept.verify("--prove")
    assert (code, found["verdict"]) == (0, "sound"), found
    assert found["logs"][0]["noticed"] >= 25
    assert {path: path.read_bytes() for path in (kept.folder / "objects").rglob("*") if path.is_file()} == before


def test_the_database_says_whose_keys_are_gone_and_a_kept_part_is_not(kept: Kept) -> None:
    tenant = kept.acting.tenant_id
    chosen = settings.load(kept.folder)
    with stores_of(chosen) as (bucket, _), read_only(chosen) as sessions:
        assert sessions is not None
        assert [log.log_id for log in logs_of(chosen, sessions, bucket)] == [kept.acting.log_id]
        assert part_states(sessions, tenant)(0, 100) == {}
    assert KnownLog(tenant_id=1, tenant="x", log_id="ab").origin == "muniment/ab"


@pytest.mark.scenario("L6")
def test_a_stream_replays_byte_for_byte_under_a_signed_head(kept: Kept) -> None:
    tenant = kept.acting.tenant_id
    proofs = kept.services.log.proofs(tenant, [0, 1, 2], kept.services.clock.now())
    bodies = [b'{"content": "%s"}' % text for text in (b"hello", b"refund please", b"thanks")]

    def unseal(entry: StoredEntry, header: Header) -> Unsealed:
        assert header.position == entry.index
        return Unsealed(parts=[Content(name="body", role="part.0", data=bodies[entry.index])], facts={"agent": "bot"})

    stored = [StoredEntry(index=one.index, header=one.header, inclusion=one.inclusion) for one in proofs]
    found = fold("conv_1", stored, unseal, note=proofs[0].checkpoint.encode(), vkey=kept.made.log_key, next_position=3)
    assert found.complete
    assert [one.integrity.value for one in found.entries] == ["verified"] * 3
    assert bytes(transcript_json(found)["entries"][1]["body"]) == bodies[1]
    assert base64.b64encode(proofs[0].header)


def test_a_service_that_ends_leaves_nothing_unsigned(kept: Kept) -> None:
    record(kept, "conv_3", ["said just before the end"], subject="user:ada")
    kept.services.close()
    code, found = kept.verify("--key", kept.made.log_key)
    assert (code, found["verdict"]) == (0, "sound")
    assert found["logs"][0]["signed_size"] == found["size"] == 7


def test_a_second_process_comes_to_the_same_report(kept: Kept) -> None:
    """Sound, with erased holes, and with an altered part: word for word what one process says."""
    with kept.services.database.transaction(kept.acting.tenant_id) as session:
        gone = update(DataKey).where(col(DataKey.subject_id) != 0).values(state="destroyed", request="r")
        session.execute(gone)
    for changed, options in ((False, ["--stream", "conv_2"]), (True, [])):
        if changed:
            payload = kept.payloads()[0]
            payload.chmod(0o600)
            first, *rest = payload.read_bytes()
            payload.write_bytes(bytes([first ^ 1, *rest]))
        alone = kept.verify("--key", kept.made.log_key, "--processes", "1", *options)
        assert alone == kept.verify("--key", kept.made.log_key, "--processes", "2", *options)
        assert alone[1]["verdict"] == ("altered" if changed else "sound")
        assert alone[1]["erased"] > 0


def _by_helper(kept: Kept, opener: Any) -> Any:
    with stores_of(kept.services.settings) as (bucket, hot):
        return verify(
            bucket,
            log_id=kept.acting.log_id,
            keys=[kept.made.log_key],
            hot=hot,
            helping=Helping(opener=opener, processes=1),
        )


def test_a_helper_that_dies_is_never_a_sound_log(kept: Kept) -> None:
    report = _by_helper(kept, partial(os._exit, 3))
    assert (report.verdict, report.exit_code) == (Verdict.UNREADABLE, 2)
    assert report.checked == 0


def test_a_batch_that_no_helper_is_left_for_is_named_as_not_compared() -> None:
    """A pool that broke refuses what comes next: once that ended the whole verification with an exception."""
    into = PayloadCheck(reader=MemoryBucket(), prefix="x/", findings=Findings(), states=None)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(BrokenProcessPool):
            pool.submit(os._exit, 3).result()
        work = Helpers(pool, into, ahead=1)
        work.check(Task(key="x/batch/1", first=7, digest=b"", offsets=None))
        work.collect()
    assert [(one.verdict, one.object, one.index) for one in into.findings.kept] == [
        (Verdict.UNREADABLE, "x/batch/1", 7)
    ]


@pytest.mark.slow
def test_a_store_that_shows_the_helper_something_else_is_found(kept: Kept, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(kept.folder / "objects", other / "objects")
    report = _by_helper(kept, OpensAgain(settings=settings.load(other), tenant_id=None))
    assert report.verdict is Verdict.SOUND
    batch = other / kept.batches()[0].relative_to(kept.folder)
    batch.chmod(0o600)
    batch.write_bytes(batch.read_bytes() + b"x")
    report = _by_helper(kept, OpensAgain(settings=settings.load(other), tenant_id=None))
    assert report.verdict is Verdict.ALTERED
    assert "two readers" in report.findings[0].detail
    batch.unlink()
    report = _by_helper(kept, OpensAgain(settings=settings.load(other), tenant_id=None))
    assert report.verdict is Verdict.UNREADABLE
