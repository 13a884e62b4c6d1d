"""A person's row and its blob, in two stores of which one refuses: the request never says that it is done."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from registry.stores import secret_prefix
from tests.process.conftest import wait_for

pytestmark = [pytest.mark.process, pytest.mark.s3, pytest.mark.timeout(120)]
ADA = "email:ada@example.org"
UPLOAD = {
    "state": "record", "personal": True, "owner": "team", "description": "what people send in",
    "legal_basis": "contract",
    "purposes": ["support"], "categories": ["contact"],
    "retention": {"keep": "P90D", "from": "created", "then": "erase"},
    "erasure": {"on_request": "erase", "required": "L2"},
}  # fmt: skip


@pytest.fixture
def bucket(s3_service: Any) -> Iterator[tuple[Any, str]]:
    """An administrator's client and a bucket of its own, with versions."""
    client = boto3.client(
        "s3",
        endpoint_url=s3_service.endpoint,
        aws_access_key_id=s3_service.access_key,
        aws_secret_access_key=s3_service.secret_key,
        region_name="us-east-1",
        config=Config(request_checksum_calculation="when_required"),
    )
    name = f"uploads-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    yield client, name
    client.close()


def _stores(desk: Any, s3_service: Any, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Register a database we may change and a bucket we may only read; return the database."""
    base: Path = desk.running.settings.data.parent / "stores" / desk.tenant
    base.mkdir(parents=True)
    file = base / "app.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE upload (id TEXT PRIMARY KEY, owner TEXT, caption TEXT)")
    db.close()
    prefix = secret_prefix(desk.tenant)
    monkeypatch.setenv(f"{prefix}BLOB_KEY", s3_service.reader_access_key)
    monkeypatch.setenv(f"{prefix}BLOB_SECRET", s3_service.reader_secret_key)
    desk.call("platform", "PUT", "/v1/data-classes/upload", UPLOAD)
    rows = {"url": f"sqlite:///{file}", "owner_field": "owner"}
    blobs = {
        "bucket": bucket,
        "endpoint_url": s3_service.endpoint,
        "access_key": f"env:{prefix}BLOB_KEY",
        "secret_key": f"env:{prefix}BLOB_SECRET",
        "owner_field": "owner",
    }
    desk.call("platform", "PUT", "/v1/stores/rows", {"kind": "sql", "config": rows})
    desk.call("platform", "PUT", "/v1/stores/blobs", {"kind": "s3", "config": blobs})
    return file


@pytest.mark.scenario("A10")
@pytest.mark.slow
def test_a_row_that_goes_and_a_blob_that_stays_is_partially_failed_and_names_the_blob(
    desk: Any, s3_service: Any, bucket: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, name = bucket
    file = _stores(desk, s3_service, name, monkeypatch)
    client.put_object(Bucket=name, Key="u/1.png", Body=b"a picture of ada's passport", Metadata={"owner": ADA})
    with sqlite3.connect(file) as db:
        db.execute("INSERT INTO upload VALUES ('1', ?, 'the passport of ada')", (ADA,))
    db.close()
    places = [
        {"store": "rows", "locator": {"table": "upload", "key": {"id": "1"}}},
        {"store": "blobs", "locator": {"key": "u/1.png"}},
    ]
    results = desk.client("writer").artifacts(
        [{**place, "data_class": "upload", "subjects": [ADA]} for place in places]
    )
    row, blob = (str(result["id"]) for result in results)
    made = desk.call("legal", "POST", "/v1/requests", {"right": "erasure", "subjects": [ADA], "regulation": "gdpr"})
    path = f"/v1/requests/{made['id']}"
    desk.call("legal", "POST", f"{path}/verify-identity", {"identifier": ADA, "method": "login"})
    plan = desk.call("legal", "POST", f"{path}/plan")
    desk.call("legal2", "POST", f"{path}/approve", {"plan_hash": plan["plan_hash"]})

    def ended() -> Any:
        found = desk.call("legal", "GET", path)
        return found if found["state"] in ("partially_failed", "completed") else None

    assert wait_for(ended, 90)["state"] == "partially_failed"
    copies = {copy.get("artifact"): copy for copy in desk.call("legal", "GET", f"{path}/copies")["items"]}
    assert copies[row]["state"] == "erased_physical"
    assert copies[blob]["state"] == "failed"
    assert "AccessDenied" in copies[blob]["detail"]
    assert client.get_object(Bucket=name, Key="u/1.png")["Body"].read() == b"a picture of ada's passport"

    # The desk gives the store a key that may delete, and tries again.
    prefix = secret_prefix(desk.tenant)
    monkeypatch.setenv(f"{prefix}BLOB_KEY", s3_service.access_key)
    monkeypatch.setenv(f"{prefix}BLOB_SECRET", s3_service.secret_key)
    desk.call("legal", "POST", f"{path}/retry")
    assert wait_for(lambda: desk.call("legal", "GET", path)["state"] == "completed", 60)
    listed = client.list_object_versions(Bucket=name)
    assert not listed.get("Versions")
    assert not listed.get("DeleteMarkers")
