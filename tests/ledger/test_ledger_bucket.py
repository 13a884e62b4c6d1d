"""A bucket in another account: what lies there, whose it is, and whoever had another history before."""

from __future__ import annotations

import io
import itertools
import secrets
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from ledger.anchors import ANCHORED, BEHIND, FAILING, REFUSED, AnchorState, parse_anchors, statement, told
from ledger.bucket import BucketAddress, keep_note, open_bucket, parse_bucket
from ledger.checkpoint import format_checkpoint, parse_checkpoint, parse_note, sign_note
from ledger.errors import AnchorUnavailable, MalformedAnchor, ObjectLocked
from ledger.memory_objects import MemoryStore
from ledger.s3 import S3Store, s3_client
from tests.ledger.test_ledger_anchors import LOG_ID, ORIGIN, TENANT, Bench, log_signer

NOW = datetime.now(UTC)
ACCOUNT = "123456789012"


class Vault:
    """The other party's bucket on a real server, and a section of our credentials file that may write to it."""

    def __init__(self, service: Any, folder: Path) -> None:
        self.service = service
        self.bucket = f"anchor-{secrets.token_hex(4)}"
        self.client = s3_client(
            endpoint_url=service.endpoint, region="us-east-1", access_key=service.access_key,
            secret_key=service.secret_key,
        )  # fmt: skip
        self.client.create_bucket(Bucket=self.bucket, ObjectLockEnabledForBucket=True)
        self.store = S3Store(self.client, self.bucket, "muniment")
        self.credentials = folder / "credentials"
        self.credentials.write_text(
            f"[auditor]\naws_access_key_id = {service.access_key}\naws_secret_access_key = {service.secret_key}\n"
        )

    def address(self, bucket: str = "", **more: str) -> str:
        given = {"endpoint": self.service.endpoint, "region": "us-east-1", "profile": "auditor", **more}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"s3://{bucket or self.bucket}/muniment?{query}"

    def sizes(self) -> list[int]:
        return [int(key.rpartition("/")[2]) for key in self.store.list(f"{LOG_ID}/checkpoint/")]


@pytest.fixture
def other(s3_service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    made = Vault(s3_service, tmp_path)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(made.credentials))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield made
    made.client.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def offer(bench: Bench, address: str) -> AnchorState:
    bench.anchor_at([address])
    (state,) = bench.anchoring.offer(TENANT, NOW)
    return state


@pytest.mark.s3
def test_each_new_checkpoint_is_created_under_a_lock_that_its_writer_cannot_lift(bench: Bench, other: Vault) -> None:
    first = bench.grow(2)
    state = offer(bench, other.address())
    assert (state.state, state.kind, state.size) == (ANCHORED, "bucket", 2)
    assert statement([state]) == ""
    assert told([state]).startswith(f"anchored: s3://{other.bucket}/muniment has the first 2 entries since")
    second = bench.grow(1)
    assert bench.anchoring.states(LOG_ID)[0].state == BEHIND
    (state,) = bench.anchoring.offer(TENANT, NOW)
    (again,) = bench.anchoring.offer(TENANT, NOW)
    assert (state.state, state.size, again.state) == (ANCHORED, 3, ANCHORED)
    keys = list(other.store.list(f"{LOG_ID}/checkpoint/"))
    assert [other.store.get(key) for key in keys] == [first, second]
    for key in keys:
        info = other.store.head(key)
        assert (info.mode, info.versions, info.hidden) == ("COMPLIANCE", 1, False)
        assert info.locked_until is not None
        assert info.locked_until >= NOW + timedelta(days=2550)
        with pytest.raises(ObjectLocked):
            other.store.delete(key)


@pytest.mark.s3
def test_a_rewritten_or_shorter_log_is_refused_by_what_lies_there(bench: Bench, other: Vault, tmp_path: Path) -> None:
    bench.grow(6)
    assert offer(bench, other.address()).state == ANCHORED
    for size, word in ((4, "rolled back"), (6, "forked"), (8, "forked")):
        forged = Bench(tmp_path)
        forged.grow(size, b"rewritten ")
        state = offer(forged, other.address())
        assert (state.state, word in state.detail) == (REFUSED, True), state
        forged.close()
    assert other.sizes() == [6]


@pytest.mark.s3
def test_a_bucket_of_the_wrong_kind_fails_and_says_why(bench: Bench, other: Vault) -> None:
    plain = f"plain-{secrets.token_hex(4)}"
    other.client.create_bucket(Bucket=plain)
    bench.grow(1)
    for address, word in (
        (other.address(plain), "no Object Lock"),
        (other.address(f"none-{secrets.token_hex(4)}"), "does not exist"),
        (other.address(profile="nobody"), "ProfileNotFound"),
    ):
        state = offer(bench, address)
        assert (state.state, word in state.detail, state.size) == (FAILING, True, 0), state
        assert "unanchored" in statement([state])
    assert offer(bench, other.address()).state == ANCHORED


@pytest.mark.s3
def test_every_request_names_the_account_and_anothers_bucket_is_refused(other: Vault) -> None:
    """The server here has no accounts: what AWS does with the header is played where the request leaves."""
    asked: list[str] = []

    def as_aws(owner: str) -> Any:
        def answer(request: Any, **_: Any) -> AWSResponse | None:
            asked.append(request.headers.get("x-amz-expected-bucket-owner", b"").decode())
            if asked[-1] == owner:
                return None
            body: Any = io.BytesIO(b"<Error><Code>AccessDenied</Code></Error>")
            body.stream = lambda: [body.read()]
            return AWSResponse(request.url, 403, HTTPHeaders(), body)

        return answer

    address = parse_bucket(other.address(account=ACCOUNT))
    assert address.shown == f"s3://{other.bucket}/muniment?account={ACCOUNT}"
    until = datetime.now(UTC) + timedelta(hours=1)
    with closing(open_bucket(address)) as store:
        store._client.meta.events.register("before-send.s3", as_aws(ACCOUNT))
        store.put("a/b", b"x", lock_until=until)
        assert store.get("a/b") == b"x"
        assert list(store.list("a/")) == ["a/b"]
        assert store.head("a/b").versions == 1
    assert set(asked) == {ACCOUNT}
    assert len(asked) > 4
    checkpoint = parse_checkpoint(
        parse_note(note := sign_note(format_checkpoint(ORIGIN, 1, bytes(32)), [log_signer()])).text
    )
    with closing(open_bucket(address)) as anothers:
        anothers._client.meta.events.register("before-send.s3", as_aws("999999999999"))
        with pytest.raises(AnchorUnavailable, match="do not allow"):
            keep_note(
                anothers, note, log_id=LOG_ID, keys=(), checkpoint=checkpoint, known=0,
                root_at=lambda _: bytes(32), lock_until=until,
            )  # fmt: skip


def _kept(bench: Bench, store: MemoryStore, note: bytes, *, known: int) -> None:
    head = bench.log.head(TENANT)
    keep_note(
        store, note, log_id=LOG_ID, keys=head.keys, checkpoint=parse_checkpoint(parse_note(note).text), known=known,
        root_at=lambda size: bench.anchoring._root(head, size), lock_until=NOW + timedelta(days=30),
    )  # fmt: skip


def test_what_is_no_checkpoint_of_this_log_is_passed_over(bench: Bench) -> None:
    store = MemoryStore(lambda: NOW)
    strangers = sign_note(format_checkpoint(ORIGIN, 99, bytes(32)), [log_signer(9)])
    until = NOW + timedelta(days=1)
    store.put(f"{LOG_ID}/checkpoint/{99:020d}", strangers, lock_until=until)
    store.put(f"{LOG_ID}/checkpoint/{98:020d}", b"not a note", lock_until=until)
    first = bench.grow(1)
    store.put(f"{LOG_ID}/checkpoint/{97:020d}", first, lock_until=until)  # the right note under a wrong size
    _kept(bench, store, first, known=0)
    assert store.get(f"{LOG_ID}/checkpoint/{1:020d}") == first
    for known in (0, 1, 5):  # a hint only: also of a size that the bucket never had, or has no more
        note = bench.grow(1)
        _kept(bench, store, note, known=known)
        assert store.get(f"{LOG_ID}/checkpoint/{parse_checkpoint(parse_note(note).text).size:020d}") == note


def test_something_else_where_the_checkpoint_belongs_is_told(bench: Bench) -> None:
    store = MemoryStore(lambda: NOW)
    store.put(f"{LOG_ID}/checkpoint/{2:020d}", b"squatted", lock_until=NOW + timedelta(days=1))
    with pytest.raises(AnchorUnavailable, match="something else"):
        _kept(bench, store, bench.grow(2), known=0)
    _kept(bench, store, bench.grow(1), known=0)


def test_a_store_that_does_not_answer_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "s3://somewhere/log?endpoint=http://127.0.0.1:9&region=us-east-1"
    monkeypatch.setattr("ledger.s3.ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    bench.grow(1)
    state = offer(bench, address)
    assert (state.state, state.detail) == (FAILING, "the bucket does not answer")
    assert state.next_try is not None


def test_addresses() -> None:
    assert parse_bucket("s3://bucket") == BucketAddress(bucket="bucket", prefix="")
    text = f"s3://a.bucket/some/where?account={ACCOUNT}&region=eu-central-1&endpoint=https://s3.example&profile=auditor"
    assert parse_bucket(text) == BucketAddress(
        bucket="a.bucket", prefix="some/where", account=ACCOUNT, region="eu-central-1", endpoint="https://s3.example",
        profile="auditor",
    )  # fmt: skip
    broken = (
        "s3:/bucket", "s3://", "s3://A", "s3://user:secret@bucket", "s3://bucket:80", "s3://bucket/../up",
        "s3://bucket?account=12", "s3://bucket?account=", "s3://bucket?secret_key=x", "s3://bucket#here",
        "s3://bucket?endpoint=ftp://x", "s3://bucket?account", "s3://b",
    )  # fmt: skip
    for one in broken:
        with pytest.raises(MalformedAnchor) as told_why:
            parse_bucket(one)
        assert "secret@" not in str(told_why.value)
    for first, second in itertools.permutations(
        (f"s3://bucket?account={ACCOUNT}", f"s3://bucket?account={ACCOUNT}&region=x")
    ):
        with pytest.raises(MalformedAnchor, match="twice"):
            parse_anchors([first, second])
