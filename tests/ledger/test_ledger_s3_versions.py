"""Versions and checksums where servers differ: a hold lies on our version, and wrong bytes are found by ourselves."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from ledger.errors import LockNotEnforced, ObjectLocked
from ledger.s3 import SAMPLE, S3Store, s3_client
from tests.ledger.test_ledger_s3 import Interfering, until

pytestmark = pytest.mark.s3
BUCKET = "versions-locked"


@pytest.fixture(scope="module")
def client(s3_service: Any) -> Iterator[Any]:
    made = s3_client(
        endpoint_url=s3_service.endpoint,
        region="us-east-1",
        access_key=s3_service.access_key,
        secret_key=s3_service.secret_key,
    )
    made.create_bucket(Bucket=BUCKET, ObjectLockEnabledForBucket=True)
    yield made
    made.close()


@pytest.fixture
def store(client: Any) -> S3Store:
    return S3Store(client, BUCKET, secrets.token_hex(6))


@pytest.mark.scenario("L26")
def test_a_legal_hold_lies_on_the_version_that_was_written_first_also_under_a_later_one(
    client: Any, store: S3Store
) -> None:
    store.put("a", b"ours", lock_until=None)
    name = f"{store._prefix}a"
    versions = [one["VersionId"] for one in client.list_object_versions(Bucket=BUCKET, Prefix=name)["Versions"]]
    client.put_object(Bucket=BUCKET, Key=name, Body=b"somebody's over it")
    store.hold("a", on=True)
    status = client.get_object_legal_hold(Bucket=BUCKET, Key=name, VersionId=versions[0])["LegalHold"]["Status"]
    assert status == "ON"
    assert store.head("a").held
    with pytest.raises(ObjectLocked):
        store.delete("a")
    assert client.get_object(Bucket=BUCKET, Key=name, VersionId=versions[0])["Body"].read() == b"ours"
    store.hold("a", on=False)
    store.delete("a")
    assert "Versions" not in client.list_object_versions(Bucket=BUCKET, Prefix=name)


class Careless(Interfering):
    """A server that stores other bytes than it was sent and ignores the checksum beside them, as emulators do."""

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)
        if name != "put_object":
            return call

        def put_object(**arguments: Any) -> Any:
            kept = {key: value for key, value in arguments.items() if key != "ChecksumSHA256"}
            return call(**kept | {"Body": bytes(arguments["Body"]) + b"!"})

        return put_object


@pytest.mark.scenario("L27")
def test_a_server_that_ignores_our_checksum_is_found_by_what_it_gives_back(client: Any) -> None:
    network: Any = Careless(client)
    careless = S3Store(network, BUCKET, secrets.token_hex(6))
    with pytest.raises(LockNotEnforced, match="other bytes"):
        careless.put("a", b"data", lock_until=until())


@pytest.mark.scenario("L27")
def test_a_server_that_becomes_careless_is_found_by_the_sample(client: Any, store: S3Store) -> None:
    end = until()
    store.put("first", b"data", lock_until=end)
    store._client = Careless(client)  # type: ignore[assignment]  # the same server, worse from here on

    def write() -> None:
        for number in range(SAMPLE):
            store.put(f"a/{number}", b"data", lock_until=end)

    with pytest.raises(LockNotEnforced, match="other bytes"):
        write()
