"""A record that was damaged while it serves: what is lost is named, nothing else is, nobody gets the entry of another.

Embedded and on servers. In a bucket the operator lays other bytes over a batch, as everybody may who writes there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from botocore.config import Config

from api import folder
from ledger.batches import batch_key
from ledger.checkpoint import parse_checkpoint, verify_note
from ledger.errors import LedgerError
from ledger.merkle import verify_inclusion
from ledger.models import EntryRow, LogState
from ledger.signing import verifier_from_vkey
from muniment.errors import ApiProblem
from registry.acting import Acting
from tests.process.conftest import new_desk
from tests.process.test_process_rebuild import tenant_id
from tests.process.test_process_record import entry, post
from tests.process.test_process_restore import command

pytestmark = pytest.mark.process
PURPOSE = "dispute;case=7"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Operator:
    """Somebody with the keys of the bucket and of the database."""

    def __init__(self, running: Any, desk: Any) -> None:
        self._settings, self._services, self._tenant = running.settings, running.services, tenant_id(running, desk)
        self._log_id = str(desk.log_key).partition("+")[0].rpartition("/")[2]

    def batch(self, first: int) -> bytes:
        found: bytes = self._services.locked.get(f"{self._log_id}/{batch_key(first)}")
        return found

    def put(self, first: int, data: bytes | None) -> None:
        """Have other bytes read in place of a batch, or none."""
        self.cover(batch_key(first), data)

    def names(self, folder: str) -> list[str]:
        """The objects of a folder of the log."""
        found = self._services.locked.list(f"{self._log_id}/{folder}/")
        return [str(key).removeprefix(f"{self._log_id}/") for key in found]

    def uncover(self, name: str) -> None:
        """Take away again what lies over an object."""
        bucket, _, prefix = self._settings.objects.removeprefix("s3://").partition("/")
        s3 = boto3.client("s3", endpoint_url=self._settings.s3_endpoint_url)
        with contextlib.closing(s3):
            listed = s3.list_object_versions(Bucket=bucket, Prefix=f"{prefix}/{self._log_id}/{name}")
            laid = [*listed.get("DeleteMarkers", ()), *listed.get("Versions", ())[:-1]]
            for one in laid:
                s3.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])

    def cover(self, name: str, data: bytes | None) -> None:
        """Have other bytes read in place of an object, or none."""
        key = f"{self._log_id}/{name}"
        if not self._settings.objects.startswith("s3://"):
            path = self._settings.data / "objects" / key
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
            return
        bucket, _, prefix = self._settings.objects.removeprefix("s3://").partition("/")
        s3 = boto3.client("s3", endpoint_url=self._settings.s3_endpoint_url,
                          config=Config(request_checksum_calculation="when_required"))  # fmt: skip
        with contextlib.closing(s3):
            if data is None:
                s3.delete_object(Bucket=bucket, Key=f"{prefix}/{key}")
            else:
                s3.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=data)

    def edit(self, index: int, /, **values: Any) -> None:
        """Change the index row of an entry."""
        with self._services.database.transaction(self._tenant) as session:
            rows = sa.update(EntryRow).where(EntryRow.tenant_id == self._tenant, EntryRow.idx == index)  # type: ignore[arg-type]  # columns
            session.execute(rows.values(**values))

    def raw_id(self, idx: int) -> bytes:
        with self._services.database.transaction(self._tenant, write=False) as session:
            found: bytes = session.get_one(EntryRow, (self._tenant, idx)).entry_id
            return found


@pytest.fixture
def operator(running: Any, desk: Any) -> Operator:
    return Operator(running, desk)


def refusal(ask: Callable[[], Any]) -> tuple[int, str]:
    with pytest.raises(ApiProblem) as refused:
        ask()
    return refused.value.status, refused.value.type


def read(desk: Any, entry_id: str) -> Any:
    return desk.call("auditor", "GET", f"/v1/record/entries/{entry_id}", purpose=PURPOSE)


def prove(desk: Any, entry_id: str) -> Any:
    return desk.call("auditor", "GET", f"/v1/record/entries/{entry_id}/proof")


def replay(desk: Any, stream: str = "conv_1") -> Any:
    return desk.call("auditor", "POST", "/v1/replay", {"stream": stream}, purpose=PURPOSE)


DAMAGED = (503, "/problems/record-damaged")


def test_a_damaged_batch_costs_its_own_entries_and_no_other(desk: Any, operator: Operator) -> None:
    """A replay failed whole over one changed bit in one batch, and so did every read of its entries: 500."""
    sent = [entry(), entry(), entry()]
    first, second, third = (post(desk, one)[0]["index"] for one in sent)
    assert replay(desk)["complete"] is True
    good = operator.batch(first)
    start = good.index(b"\n") + 20
    changed = (
        good[:start] + bytes([good[start] ^ 1]) + good[start + 1 :],
        good[:20] + bytes([good[20] ^ 1]) + good[21:],
        good[:-9],
        operator.batch(third),
        None,
    )
    for data in changed:
        operator.put(first, data)
        found = replay(desk)
        verdicts = [one["integrity"] for one in found["entries"]]
        assert verdicts[1:] == ["verified", "verified"]
        assert verdicts[0] == "altered" if data is not None else verdicts[0] in ("missing", "hidden")
        assert [one["id"] for one in found["entries"]] == [one["id"] for one in sent]
        assert "body" not in found["entries"][0]
        assert found["entries"][0]["because"]
        assert (found["complete"], found["gaps"]) == (False, [])
        for ask in (read, prove):
            assert refusal(lambda ask=ask: ask(desk, sent[0]["id"])) == DAMAGED  # type: ignore[misc]  # bound early
            assert ask(desk, sent[1]["id"])["index"] == second
        operator.put(first, good)
    assert replay(desk)["complete"] is True


def test_nobody_gets_another_entry_for_the_one_that_was_asked_for(desk: Any, operator: Operator) -> None:
    """The proof of an entry was another one's, and the index counted backwards from the end of a batch."""
    sent = [entry(subjects=["user:a"]), entry(subjects=["user:b"]), entry()]
    indexes = [one["index"] for one in post(desk, *sent)]
    (later,) = post(desk, entry())
    one, two = operator.raw_id(indexes[0]), operator.raw_id(indexes[1])
    operator.edit(indexes[0], entry_id=bytes(16))
    operator.edit(indexes[1], entry_id=one)
    operator.edit(indexes[0], entry_id=two)
    for asked in sent[:2]:
        assert refusal(lambda asked=asked: read(desk, asked["id"])) == DAMAGED  # type: ignore[misc]  # bound early
        assert refusal(lambda asked=asked: prove(desk, asked["id"])) == DAMAGED  # type: ignore[misc]  # as above
    assert [line["integrity"] for line in replay(desk)["entries"]] == ["altered", "altered", "verified", "verified"]
    for place in ({"batch_first": later["index"]}, {"batch_first": 10**6}, {"idx": 10**6}):
        operator.edit(indexes[2], **place)
        assert refusal(lambda: read(desk, sent[2]["id"])) == DAMAGED
        assert refusal(lambda: prove(desk, sent[2]["id"])) == DAMAGED
        assert replay(desk)["complete"] is False


def test_what_is_told_of_an_entry_is_what_its_header_says(desk: Any, operator: Operator) -> None:
    sent = entry()
    (stored,) = post(desk, sent)
    before = read(desk, sent["id"])
    operator.edit(stored["index"], kind="decision", data_class="memory", position=7, at=EPOCH, received=EPOCH)
    assert read(desk, sent["id"]) == before


def test_an_entry_bundle_beyond_the_end_of_the_log_is_not_there(desk: Any) -> None:
    (stored,) = post(desk, entry())
    desk.client("auditor").send("GET", "/v1/log/checkpoint")
    size = stored["index"] + 1
    assert desk.client("auditor").send("GET", f"/v1/log/tile/entries/000.p/{size}").status == 200
    for path in ("000.p/255", "000", "001.p/1"):
        asked = f"/v1/log/tile/entries/{path}"
        assert refusal(lambda asked=asked: desk.client("auditor").send("GET", asked)) == (404, "/problems/not-found")  # type: ignore[misc]  # bound early


@pytest.mark.parametrize("opened_again", [True, False])
def test_a_lost_or_damaged_tile_is_made_again_from_the_batches(desk: Any, running: Any, *, opened_again: bool) -> None:
    """One byte in the unlocked store took the whole log out of service as forked, or gave proofs that did not hold."""
    sent = entry(stream="under it")
    (first,) = post(desk, sent)
    post(desk, *[entry(stream="others") for _ in range(300)])
    verifier = verifier_from_vkey(desk.log_key)
    hot, log = running.services.hot, running.services.log
    name = f"{str(desk.log_key).partition('+')[0].rpartition('/')[2]}/tile/0/000"
    desk.client("auditor").send("GET", "/v1/log/checkpoint")
    good = hot.get(name)
    for bad in (good[:-32] + bytes(32), good[32:], None):
        hot.delete(name) if bad is None else hot.replace(name, bad)
        if opened_again:
            log.forget_heads()
        found = prove(desk, sent["id"])
        head = parse_checkpoint(verify_note(found["checkpoint"].encode(), [verifier]))
        path = [bytes.fromhex(node) for node in found["inclusion"]]
        verify_inclusion(first["index"], head.size, bytes.fromhex(found["leaf_hash"]), path, head.root)
        assert replay(desk, "under it")["complete"] is True
        assert post(desk, entry())[0]["status"] == "stored"
        if opened_again:
            assert hot.get(name) == good
        hot.replace(name, good)


def test_a_log_that_takes_nothing_is_named_by_readyz_until_it_is_well_again(desk: Any, running: Any) -> None:
    """A load balancer, and whoever was on call, saw a healthy service while every post of a tenant was refused."""
    services = running.services
    new_desk(running).close()
    [mine] = [one for one in services.tenants() if one.tenant == desk.tenant]

    def turned(tenants: Sequence[Acting], read_only: str | None) -> dict[str, Any]:
        for acting in tenants:
            with contextlib.ExitStack() as held:
                with contextlib.suppress(LedgerError):  # a log that another test damaged
                    # A checkpoint that is still on its way would write back what is changed here.
                    held.enter_context(services.log.entered(acting.tenant_id))
                with services.database.transaction(acting.tenant_id) as session:
                    session.get_one(LogState, acting.tenant_id).read_only = read_only
                services.log.forget_heads()
        for acting in tenants:
            with contextlib.suppress(LedgerError):  # a log that another test damaged
                services.log.publish(acting.tenant_id, services.clock.now())
        return dict(desk.call("auditor", "GET", "/readyz"))

    assert mine.log_id not in turned([mine], None)["refusing_logs"]
    found = turned([mine], "the bucket holds a checkpoint of size 9 with another root")
    with pytest.raises(ApiProblem) as refused:
        post(desk, entry())
    assert refused.value.type == "/problems/read-only"
    assert mine.log_id in found["refusing_logs"]
    assert "another root; nothing is stored in it: muniment verify" in found["refusing_logs"][mine.log_id]
    assert desk.tenant not in str(found), "no token was shown"
    assert found["status"] == "ready", "the other tenants are served"
    with pytest.raises(ApiProblem) as down:
        turned(services.tenants(), "two histories")
    assert down.value.status == 503
    assert mine.log_id not in turned(services.tenants(), None)["refusing_logs"]
    assert post(desk, entry())[0]["status"] == "stored"


@pytest.mark.slow
@pytest.mark.scenario("L23")
def test_what_lies_over_an_object_of_a_bucket_is_hidden_and_nothing_else(
    desk: Any, running: Any, operator: Operator
) -> None:
    if not running.settings.objects.startswith("s3://"):
        pytest.skip("a folder has no versions and no delete markers")
    post(desk, entry(), entry())
    post(desk, entry())
    desk.client("auditor").send("GET", "/v1/log/checkpoint")
    folder.mark_initialised(running.settings.data)

    def verified() -> tuple[int, str, set[str]]:
        done = command(running, "verify", "--tenant", desk.tenant, "--key", desk.log_key, "--json")
        found = json.loads(done.stdout)
        return done.returncode, found["verdict"], {str(one["object"]).partition("/")[2] for one in found["findings"]}

    assert verified() == (0, "sound", set())
    for where in ("batch", "checkpoint", "payload"):
        name = operator.names(where)[-1]
        for data in (b"somebody's", None):
            operator.cover(name, data)
            code, verdict, objects = verified()
            assert (code, verdict) == (1, "hidden"), (where, data)
            assert objects == {name}
            operator.uncover(name)
    assert verified() == (0, "sound", set())
