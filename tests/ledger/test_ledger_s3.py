"""The S3 store against a real server: lost answers, conflicts, tampering, and buckets of the wrong kind."""

from __future__ import annotations

import secrets
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

from ledger.errors import (
    LockNotEnforced,
    ObjectExists,
    ObjectHidden,
    ObjectLocked,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.objects import probe, require_kept
from ledger.s3 import ATTEMPTS, LONGEST_PAUSE_SECONDS, SAMPLE, S3Store, open_s3, s3_client

pytestmark = pytest.mark.s3

# A name of its own, since a server lives as long as the session.
BUCKET, PLAIN, VERSIONED = (f"{kind}-{secrets.token_hex(4)}" for kind in ("locked", "plain", "versioned"))


class Interfering:
    """A network between us and the real client: it loses answers, refuses, or calls somebody in between."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls: list[str] = []
        self.before: dict[str, list[Callable[[], None]]] = {}
        self.after: dict[str, list[Callable[[], None]]] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.client, name)

        def call(**arguments: Any) -> Any:
            self.calls.append(name)
            if self.before.get(name):
                self.before[name].pop(0)()
            answer = real(**arguments)
            if self.after.get(name):
                self.after[name].pop(0)()
            return answer

        return call


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def status(code: int, name: str = "Name", headers: dict[str, str] | None = None) -> ClientError:
    metadata: Any = {"HTTPStatusCode": code, "HTTPHeaders": headers or {}}
    return ClientError({"Error": {"Code": name}, "ResponseMetadata": metadata}, "PutObject")


LOST = ReadTimeoutError(endpoint_url="http://storage")


@pytest.fixture(scope="module")
def client(s3_service: Any) -> Iterator[Any]:
    made = s3_client(
        endpoint_url=s3_service.endpoint,
        region="us-east-1",
        access_key=s3_service.access_key,
        secret_key=s3_service.secret_key,
    )
    made.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    made.create_bucket(Bucket=PLAIN)
    made.create_bucket(Bucket=VERSIONED)
    made.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
    yield made
    made.close()


@pytest.fixture
def network(client: Any) -> Interfering:
    return Interfering(client)


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def store(network: Any, pauses: list[float]) -> S3Store:
    return S3Store(network, BUCKET, secrets.token_hex(6), pause=pauses.append)


def until() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


@pytest.mark.scenario("L20", "L39")
def test_a_put_whose_answer_was_lost_finds_its_own_object_and_succeeds(store: S3Store, network: Interfering) -> None:
    for error in (LOST, status(503), status(500), ConnectionResetError()):
        key = f"batch/{secrets.token_hex(4)}"
        network.after["put_object"] = [failing(error)]
        network.calls.clear()
        store.put(key, b"ours", lock_until=until())
        assert network.calls.count("put_object") == 2
        assert store.get(key) == b"ours"
        assert store.head(key).versions == 1


def test_a_large_view_whose_answer_was_lost_is_sent_again_and_read_back_in_pieces(
    store: S3Store, network: Interfering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.s3._AT_ONCE", 100_000)
    data = memoryview(secrets.token_bytes(250_000))
    network.before["put_object"] = [failing(LOST)]
    store.put("certificate/a", data, lock_until=until())
    network.after["put_object"] = [failing(LOST)]
    store.put("certificate/b", data, lock_until=until())
    assert store.get("certificate/a") == store.get("certificate/b") == data
    other = S3Store(network.client, BUCKET, store._prefix)
    network.before["put_object"] = [
        failing(LOST), lambda: other.put("certificate/c", bytes(data) + b"more", lock_until=until())
    ]  # fmt: skip
    with pytest.raises(ObjectExists):
        store.put("certificate/c", data, lock_until=until())


@pytest.mark.scenario("L20", "L7")
def test_a_put_whose_answer_was_lost_and_whose_key_another_won_is_fenced(store: S3Store, network: Interfering) -> None:
    other = S3Store(network.client, BUCKET, store._prefix)
    network.before["put_object"] = [failing(LOST), lambda: other.put("batch/1", b"theirs", lock_until=None)]
    with pytest.raises(ObjectExists):
        store.put("batch/1", b"ours", lock_until=until())
    assert store.get("batch/1") == b"theirs"


def test_our_bytes_under_a_weaker_lock_are_not_called_stored(store: S3Store, network: Interfering) -> None:
    other = S3Store(network.client, BUCKET, store._prefix)
    network.before["put_object"] = [failing(LOST), lambda: other.put("a", b"ours", lock_until=None)]
    with pytest.raises(LockNotEnforced):
        store.put("a", b"ours", lock_until=until())


def test_equal_bytes_without_a_lost_answer_are_still_another_object(store: S3Store) -> None:
    store.put("a", b"same", lock_until=None)
    with pytest.raises(ObjectExists):
        store.put("a", b"same", lock_until=None)


@pytest.mark.scenario("L20")
def test_a_conditional_conflict_is_asked_again(store: S3Store, network: Interfering, pauses: list[float]) -> None:
    network.before["put_object"] = [failing(status(409, "ConditionalRequestConflict"))] * 2
    store.put("a", b"data", lock_until=until())
    assert network.calls.count("put_object") == 3
    assert len(pauses) == 2


def test_retries_are_bounded_and_end_in_unavailable(store: S3Store, network: Interfering, pauses: list[float]) -> None:
    for error in (LOST, status(503, "SlowDown"), status(429), status(409), ConnectTimeoutError(endpoint_url="x")):
        network.calls.clear()
        pauses.clear()
        network.before["put_object"] = [failing(error)] * 20
        with pytest.raises(StoreUnavailable):
            store.put("a", b"data", lock_until=until())
        assert network.calls.count("put_object") == ATTEMPTS
        assert len(pauses) == ATTEMPTS - 1
        assert all(0 <= pause <= LONGEST_PAUSE_SECONDS for pause in pauses)
    network.before["get_object"] = [failing(status(503))] * 20
    with pytest.raises(StoreUnavailable):
        store.get("a")


def test_a_read_survives_a_short_outage(store: S3Store, network: Interfering) -> None:
    store.put("a", b"data", lock_until=None)
    network.before["get_object"] = [failing(LOST), failing(status(503))]
    assert store.get("a") == b"data"


@pytest.mark.scenario("L38")
def test_a_refusal_is_not_repeated_and_shows_no_secret(store: S3Store, network: Interfering) -> None:
    for error in (status(403, "AccessDenied"), status(400, "InvalidRequest"), NoCredentialsError()):
        network.calls.clear()
        network.before["put_object"] = [failing(error)]
        with pytest.raises(StoreDenied) as caught:
            store.put("a", b"data", lock_until=until())
        assert network.calls == ["put_object"]
        assert BUCKET not in str(caught.value)


def test_wrong_credentials_are_denied(s3_service: Any, client: Any) -> None:
    stranger = s3_client(
        endpoint_url=s3_service.endpoint, region="us-east-1", access_key="nobody", secret_key=secrets.token_hex(8)
    )
    with closing(S3Store(stranger, BUCKET)) as store, pytest.raises(StoreDenied):
        store.get("a")


def test_a_server_that_is_not_there_is_unavailable() -> None:
    nobody = s3_client(endpoint_url="http://127.0.0.1:9", region="us-east-1", access_key="a", secret_key="b")
    with closing(S3Store(nobody, BUCKET, pause=lambda _: None)) as store, pytest.raises(StoreUnavailable):
        store.get("a")


@pytest.mark.scenario("L24", "L25")
def test_mode_date_condition_and_checksum_are_sent_with_every_locked_object(
    client: Any, store: S3Store, network: Interfering
) -> None:
    sent: list[dict[str, str]] = []

    def keep(request: Any, **_: Any) -> None:
        sent.append({name.lower(): str(value) for name, value in request.headers.items()})

    client.meta.events.register("before-sign.s3.PutObject", keep)
    try:
        for number in range(3):
            store.put(f"a{number}", bytes(6 * 1024 * 1024), lock_until=until())
    finally:
        client.meta.events.unregister("before-sign.s3.PutObject", keep)
    assert len(sent) == 3
    for headers in sent:
        assert headers["if-none-match"] in ("*", "b'*'")
        assert "COMPLIANCE" in headers["x-amz-object-lock-mode"]
        assert "x-amz-object-lock-retain-until-date" in headers
        assert "x-amz-checksum-sha256" in headers
        assert "x-amz-checksum-crc32" not in headers
    assert not any("multipart" in call for call in network.calls)


def test_the_first_object_of_a_lock_date_and_then_a_sample_are_read_back(store: S3Store, network: Interfering) -> None:
    end = until()
    for number in range(SAMPLE + 1):
        store.put(f"a/{number}", b"data", lock_until=end)
    assert network.calls.count("head_object") == 2
    store.put("b", b"data", lock_until=end + timedelta(days=1))
    assert network.calls.count("head_object") == 3


class Forgetful(Interfering):
    """A server that drops the lock headers, as copies do on SeaweedFS and multipart on others."""

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name != "put_object":
            return call

        def put_object(**arguments: Any) -> Any:
            kept = {key: value for key, value in arguments.items() if not key.startswith("ObjectLock")}
            return call(**kept)

        return put_object


@pytest.mark.scenario("L24")
def test_a_server_that_drops_the_lock_is_found_by_the_first_object(client: Any) -> None:
    network: Any = Forgetful(client)
    store = S3Store(network, BUCKET, secrets.token_hex(6))
    with pytest.raises(LockNotEnforced, match="no date"):
        store.put("a", b"data", lock_until=until())
    with pytest.raises(LockNotEnforced):
        require_kept(probe(store, datetime.now(UTC)))


def test_a_second_version_is_reported_and_the_first_one_described(client: Any, store: S3Store) -> None:
    store.put("a", b"first", lock_until=until())
    client.put_object(Bucket=BUCKET, Key=f"{store._prefix}a", Body=b"over it")
    store.put("a.b", b"a neighbour", lock_until=None)
    info = store.head("a")
    assert (info.hidden, info.versions, info.size, info.mode) == (True, 2, 5, "COMPLIANCE")
    assert not store.head("a.b").hidden


def test_a_delete_marker_is_reported(client: Any, store: S3Store) -> None:
    store.put("a", b"data", lock_until=until())
    client.delete_object(Bucket=BUCKET, Key=f"{store._prefix}a")
    info = store.head("a")
    assert (info.hidden, info.versions, info.size) == (True, 1, 4)
    with pytest.raises(ObjectLocked):
        store.delete("a")
    assert store.head("a").hidden
    assert list(store.list("")) == []


def test_a_read_under_a_delete_marker_says_hidden(store: S3Store, network: Interfering) -> None:
    network.before["get_object"] = [failing(status(404, "NoSuchKey", {"x-amz-delete-marker": "true"}))]
    with pytest.raises(ObjectHidden):
        store.get("a")


def test_deleting_removes_every_version_and_marker(client: Any, store: S3Store) -> None:
    store.put("a", b"first", lock_until=None)
    client.put_object(Bucket=BUCKET, Key=f"{store._prefix}a", Body=b"second")
    client.delete_object(Bucket=BUCKET, Key=f"{store._prefix}a")
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.head("a")
    left = client.list_object_versions(Bucket=BUCKET, Prefix=f"{store._prefix}a")
    assert not left.get("Versions")
    assert not left.get("DeleteMarkers")


def test_a_delete_that_is_denied_without_a_lock_is_not_called_locked(store: S3Store, network: Interfering) -> None:
    store.put("a", b"data", lock_until=None)
    network.before["delete_object"] = [failing(status(403, "AccessDenied"))]
    with pytest.raises(StoreDenied):
        store.delete("a")


@pytest.mark.scenario("L1")
def test_what_a_hostile_operator_removes_behind_the_lock_is_missing_not_fine(s3_service: Any, store: S3Store) -> None:
    store.put("batch/1", b"data", lock_until=until())
    request = urllib.request.Request(  # noqa: S310 (loopback, started by this test)
        f"{s3_service.filer}/buckets/{BUCKET}/{store._prefix}?recursive=true", method="DELETE"
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 (as above)
    with pytest.raises(ObjectMissing):
        store.get("batch/1")


@pytest.mark.scenario("L19")
def test_a_bucket_of_the_wrong_kind_is_refused_before_anything_is_written(
    s3_service: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_service.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_service.secret_key)

    def opened(url: str, *, locked: bool = True) -> S3Store:
        return open_s3(url, endpoint_url=s3_service.endpoint, region="us-east-1", locked=locked)

    with closing(opened(f"s3://{BUCKET}/some/prefix")) as locked:
        locked.put(secrets.token_hex(8), b"data", lock_until=None)
    with closing(opened(f"s3://{PLAIN}", locked=False)) as hot:
        hot.replace("a", b"data")
    for bucket in (PLAIN, VERSIONED):
        with pytest.raises(LockNotEnforced, match="Object Lock"):
            opened(f"s3://{bucket}")
    for bucket in (VERSIONED, BUCKET):
        with pytest.raises(StoreDenied, match="old versions"):
            opened(f"s3://{bucket}", locked=False)
    for url in ("s3://no-such-bucket", f"https://{BUCKET}", "s3://", f"s3://{BUCKET}/../x", f"s3://{BUCKET}?a=b"):
        with pytest.raises(StoreDenied):
            opened(url)


@pytest.mark.scenario("L23")
def test_the_probe_passes_in_both_modes(client: Any) -> None:
    store = S3Store(client, BUCKET, secrets.token_hex(6), mode="GOVERNANCE")
    findings = probe(store, datetime.now(UTC))
    require_kept(findings)
    asked = {finding.check for finding in findings}
    assert asked >= {
        "a second put is refused",
        "delete is refused under the lock",
        "a batch delete is refused",
        "a shorter lock is refused",
        "lifting the lock is refused",
        "a plain overwrite takes nothing away",
        "a copy over it takes nothing away",
        "a plain delete takes nothing away",
        "suspending the versions is refused",
    }
    assert "a weaker mode is refused" not in asked
    store = S3Store(client, BUCKET, secrets.token_hex(6))
    strict = probe(store, datetime.now(UTC))
    require_kept(strict)
    assert "a weaker mode is refused" in {finding.check for finding in strict}
    # What was laid over the attacked object is gone again, but for the copy: this server gives it the lock as well.
    listed = client.list_object_versions(Bucket=BUCKET, Prefix=f"{store._prefix}probe/")
    assert sorted(one["Size"] for one in listed["Versions"]) == [len("racer 0"), len("under it"), len("under it")]
    assert "DeleteMarkers" not in listed
    assert client.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"


class Yielding(Interfering):
    """A server that calls one kind of attack a success: the lock is gone, or what was laid over it stays unseen."""

    def __init__(self, client: Any, operation: str) -> None:
        super().__init__(client)
        self.operation = operation

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)

        def call(**arguments: Any) -> Any:
            is_lifting = arguments.get("Retention") == {}
            is_ours = "IfNoneMatch" in arguments or ("VersionId" in arguments and not is_lifting)
            return real(**arguments) if is_ours or name != self.operation else {}

        return call


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ("put_object_retention", "lifting the lock is refused"),
        ("put_object", "a plain overwrite takes nothing away"),
        ("copy_object", "a copy over it takes nothing away"),
        ("delete_object", "a plain delete takes nothing away"),
        ("put_bucket_versioning", "suspending the versions is refused"),
    ],
)
def test_a_server_that_gives_way_to_an_attack_is_named_by_it(client: Any, operation: str, named: str) -> None:
    server: Any = Yielding(client, operation)
    findings = probe(S3Store(server, BUCKET, secrets.token_hex(6)), datetime.now(UTC))
    assert named in {finding.check for finding in findings if not finding.kept}


def test_prefixes_keep_stores_apart(client: Any) -> None:
    name = secrets.token_hex(6)
    one, two = S3Store(client, BUCKET, f"{name}/one"), S3Store(client, BUCKET, f"{name}/on")
    one.put("a", b"1", lock_until=None)
    two.put("a", b"2", lock_until=None)
    assert list(one.list("")) == list(two.list("")) == ["a"]
    assert (one.get("a"), two.get("a")) == (b"1", b"2")
