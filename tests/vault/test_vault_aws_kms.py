"""The root in AWS KMS: called as moto answers, and refused as AWS refuses, which moto does not for deleted keys."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from moto import mock_aws

from vault.aws_kms import ATTEMPTS, AwsKmsRoot, kms_client, parse_address
from vault.errors import KekDestroyed, RootGone, RootRefused, RootUnavailable
from vault.keks import KekStore
from vault.providers import key_folder, open_root, root_version

TENANT = "7"
MAY = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
JUNE = datetime(2026, 6, 2, 12, 0, tzinfo=UTC)
REGION = "eu-central-1"
ACCOUNT = f"arn:aws:kms:{REGION}:111122223333:"


@dataclass
class Clock:
    now: datetime = MAY

    def __call__(self) -> datetime:
        return self.now


@dataclass
class StrictKms:
    """KMS in memory that refuses what AWS documents as refused: pending and disabled keys, empty plaintext, limits.

    Source: AWS KMS API Reference (errors of each operation); "Key states of AWS KMS keys".
    """

    clock: Clock
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    failures: list[Exception] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def create_key(self, **options: Any) -> dict[str, Any]:
        self._called("CreateKey")
        arn = f"{ACCOUNT}key/{len(self.keys) + 1:08}"
        self.keys[arn] = {
            "Arn": arn,
            "KeyState": "Enabled",
            "KeyUsage": options.get("KeyUsage", "ENCRYPT_DECRYPT"),
            "KeySpec": options.get("KeySpec", "SYMMETRIC_DEFAULT"),
            "KeyManager": "CUSTOMER",
            "Description": options.get("Description", ""),
            "bytes": AESGCM.generate_key(256),
            "policy": options.get("Policy", '{"Version":"2012-10-17","Statement":[]}'),
            "tags": options.get("Tags", []),
        }
        return {"KeyMetadata": self._shown(arn)}

    def encrypt(self, *, KeyId: str, Plaintext: bytes, EncryptionContext: dict[str, str]) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("Encrypt")
        if not 1 <= len(Plaintext) <= 4096:
            raise refusal("Encrypt", "ValidationException")
        key = self._usable("Encrypt", KeyId)
        nonce = len(self.calls).to_bytes(12, "big")
        sealed = AESGCM(key["bytes"]).encrypt(nonce, Plaintext, _aad(EncryptionContext))
        return {"CiphertextBlob": nonce + sealed, "KeyId": key["Arn"]}

    def decrypt(self, *, KeyId: str, CiphertextBlob: bytes, EncryptionContext: dict[str, str]) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("Decrypt")
        key = self._usable("Decrypt", KeyId)
        try:
            opened = AESGCM(key["bytes"]).decrypt(CiphertextBlob[:12], CiphertextBlob[12:], _aad(EncryptionContext))
        except (InvalidTag, ValueError):
            raise refusal("Decrypt", "InvalidCiphertextException") from None
        return {"Plaintext": opened, "KeyId": key["Arn"]}

    def describe_key(self, *, KeyId: str) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("DescribeKey")
        return {"KeyMetadata": self._shown(self._found("DescribeKey", KeyId)["Arn"])}

    def get_key_policy(self, *, KeyId: str, PolicyName: str) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("GetKeyPolicy")
        assert PolicyName == "default"
        return {"Policy": self._found("GetKeyPolicy", KeyId)["policy"]}

    def list_resource_tags(self, *, KeyId: str) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("ListResourceTags")
        return {"Tags": self._found("ListResourceTags", KeyId)["tags"]}

    def update_alias(self, *, AliasName: str, TargetKeyId: str) -> None:  # noqa: N803 - AWS's names
        self._called("UpdateAlias")
        if AliasName not in self.aliases:
            raise refusal("UpdateAlias", "NotFoundException")
        self._usable("UpdateAlias", TargetKeyId)
        self.aliases[AliasName] = TargetKeyId

    def schedule_key_deletion(self, *, KeyId: str, PendingWindowInDays: int) -> dict[str, Any]:  # noqa: N803 - AWS's names
        self._called("ScheduleKeyDeletion")
        if not 7 <= PendingWindowInDays <= 30:
            raise refusal("ScheduleKeyDeletion", "ValidationException")
        key = self._found("ScheduleKeyDeletion", KeyId)
        if key["KeyState"] == "PendingDeletion":
            raise refusal("ScheduleKeyDeletion", "KMSInvalidStateException")
        key["KeyState"] = "PendingDeletion"
        key["DeletionDate"] = self.clock.now + timedelta(days=PendingWindowInDays)
        return {"KeyId": key["Arn"], "KeyState": "PendingDeletion", "DeletionDate": key["DeletionDate"]}

    def cancel_key_deletion(self, arn: str) -> None:
        """An administrator takes it back; AWS leaves such a key disabled."""
        self.keys[arn]["KeyState"] = "Disabled"
        del self.keys[arn]["DeletionDate"]

    def enable_key(self, arn: str) -> None:
        self.keys[arn]["KeyState"] = "Enabled"

    def _called(self, operation: str) -> None:
        self.calls.append(operation)
        if self.failures:
            raise self.failures.pop(0)
        for arn, key in list(self.keys.items()):
            # AWS deletes up to a day after the date.
            if key.get("DeletionDate") is not None and key["DeletionDate"] + timedelta(hours=20) <= self.clock.now:
                del self.keys[arn]

    def _found(self, operation: str, key_id: str) -> dict[str, Any]:
        arn = self.aliases.get(key_id, key_id)
        arn = arn if arn.startswith("arn:") else f"{ACCOUNT}key/{arn}"
        if arn not in self.keys:
            raise refusal(operation, "NotFoundException")
        return self.keys[arn]

    def _usable(self, operation: str, key_id: str) -> dict[str, Any]:
        key = self._found(operation, key_id)
        if key["KeyState"] == "PendingDeletion":
            raise refusal(operation, "KMSInvalidStateException")
        if key["KeyState"] == "Disabled":
            raise refusal(operation, "DisabledException")
        return key

    def _shown(self, arn: str) -> dict[str, Any]:
        return {name: value for name, value in self.keys[arn].items() if name not in ("bytes", "policy", "tags")}


def refusal(operation: str, code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, operation)


def _aad(context: dict[str, str]) -> bytes:
    return repr(sorted(context.items())).encode()


@dataclass
class Place:
    """One deployment whose root is in KMS."""

    root: AwsKmsRoot
    client: Any
    key: str
    folder: Path
    clock: Clock
    pauses: list[float]

    def keks(self) -> KekStore:
        return KekStore(self.folder, self.root)


def _place(client: Any, key: str, folder: Path, clock: Clock) -> Place:
    pauses: list[float] = []
    root = AwsKmsRoot(client, key, folder, clock=clock, pause=pauses.append)
    return Place(root, client, key, folder, clock, pauses)


@pytest.fixture
def strict(tmp_path: Path) -> Place:
    clock = Clock()
    client = StrictKms(clock)
    arn = client.create_key(Description="muniment")["KeyMetadata"]["Arn"]
    client.aliases["alias/muniment"] = arn
    return _place(client, "alias/muniment", tmp_path / "data.keys", clock)


@pytest.fixture(params=["moto", "strict"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if request.param == "strict":
        yield request.getfixturevalue("strict")
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        client = kms_client(REGION)
        key = client.create_key(Description="muniment", Tags=[{"TagKey": "team", "TagValue": "records"}])
        client.create_alias(AliasName="alias/muniment", TargetKeyId=key["KeyMetadata"]["Arn"])
        yield _place(client, "alias/muniment", tmp_path / "data.keys", Clock())


def test_what_is_wrapped_opens_for_its_tenant_version_and_purpose_only(place: Place) -> None:
    wrapped = place.root.wrap(TENANT, b"k" * 32, b"tenant-kek/1")
    assert root_version(wrapped) == 1
    assert b"k" * 32 not in wrapped
    assert place.root.unwrap(TENANT, wrapped, b"tenant-kek/1") == b"k" * 32
    for tenant, aad, data in [
        ("8", b"tenant-kek/1", wrapped),
        (TENANT, b"tenant-kek/2", wrapped),
        (TENANT, b"tenant-kek/1", (2).to_bytes(4, "big") + wrapped[4:]),
        (TENANT, b"tenant-kek/1", wrapped[:-1] + bytes([wrapped[-1] ^ 1])),
    ]:
        with pytest.raises(RootGone):
            place.root.unwrap(tenant, data, aad)


def test_keys_under_kms_are_there_for_a_second_process(place: Place) -> None:
    keks = place.keks()
    keks.create(TENANT, 1, 1)
    first = keks.get(TENANT, 1, 1)
    other = KekStore(place.folder, AwsKmsRoot(place.client, place.key, place.folder, clock=place.clock))
    assert other.get(TENANT, 1, 1) == first
    assert other.root.kind == "kms"
    assert not [path for path in place.folder.rglob("*") if path.is_file() and first in path.read_bytes()]


def test_a_month_has_a_kms_key_of_its_own_made_like_the_one_before(place: Place) -> None:
    keks = place.keks()
    keks.create(TENANT, 1, 1)
    kek = keks.get(TENANT, 1, 1)
    first = place.client.describe_key(KeyId=place.key)["KeyMetadata"]["Arn"]
    assert keks.turn(MAY).version == 1
    report = keks.turn(JUNE)
    assert report.version == 2
    assert report.rewrapped == 1
    assert report.roots_destroyed == ()
    second = place.client.describe_key(KeyId=place.key)["KeyMetadata"]["Arn"]
    assert second != first
    assert place.client.describe_key(KeyId=second)["KeyMetadata"]["Description"] == "muniment"
    tags = {tag["TagKey"]: tag["TagValue"] for tag in place.client.list_resource_tags(KeyId=second)["Tags"]}
    assert tags["muniment-version"] == "2"
    assert tags["muniment-root"] == first.rpartition("/")[2]
    assert place.client.describe_key(KeyId=first)["KeyMetadata"]["KeyState"] == "PendingDeletion"
    assert keks.get(TENANT, 1, 1) == kek
    assert keks.turn(JUNE).version == 2


def test_a_deletion_that_is_pending_is_never_called_gone(strict: Place) -> None:
    keks = strict.keks()
    keks.create(TENANT, 1, 1)
    keks.destroy(TENANT, 1, 1, MAY)
    strict.clock.now = JUNE
    keks.turn(JUNE)
    assert strict.root.pending() == {1: JUNE + timedelta(days=7)}
    for days, gone in [(0, False), (6, False), (7, False), (8, True)]:
        strict.clock.now = JUNE + timedelta(days=days)
        assert (keks.final_at(TENANT, 1, 1) is not None) is gone, days
        assert (strict.root.versions()[1].destroyed_at is not None) is gone, days
    assert keks.final_at(TENANT, 1, 1) == JUNE + timedelta(days=8)
    strict.clock.now = JUNE + timedelta(days=20)
    assert keks.final_at(TENANT, 1, 1) == JUNE + timedelta(days=8)
    assert strict.root.pending() == {}


def test_a_deletion_that_somebody_cancelled_is_scheduled_again(strict: Place) -> None:
    keks = strict.keks()
    keks.create(TENANT, 1, 1)
    keks.destroy(TENANT, 1, 1, MAY)
    strict.clock.now = JUNE
    keks.turn(JUNE)
    (first, _) = strict.client.keys
    strict.client.cancel_key_deletion(first)
    strict.clock.now = JUNE + timedelta(days=10)
    assert keks.final_at(TENANT, 1, 1) is None
    keks.turn(strict.clock.now)
    assert strict.root.pending() == {1: JUNE + timedelta(days=17)}
    strict.clock.now = JUNE + timedelta(days=18)
    assert keks.turn(strict.clock.now).roots_destroyed == (1,)
    assert keks.final_at(TENANT, 1, 1) == strict.clock.now


def test_a_crash_between_scheduling_and_noting_it_is_healed(strict: Place) -> None:
    keks = strict.keks()
    keks.create(TENANT, 1, 1)
    (first,) = strict.client.keys
    strict.root.rotate(JUNE)
    strict.client.schedule_key_deletion(KeyId=first, PendingWindowInDays=9)
    keks.turn(JUNE)
    assert strict.root.pending() == {1: MAY + timedelta(days=9)}


def test_a_key_pending_deletion_opens_nothing_and_is_no_proof_either(strict: Place) -> None:
    wrapped = strict.root.wrap(TENANT, b"k" * 32, b"a")
    (first,) = strict.client.keys
    strict.client.schedule_key_deletion(KeyId=first, PendingWindowInDays=7)
    with pytest.raises(RootRefused) as refused:
        strict.root.unwrap(TENANT, wrapped, b"a")
    assert refused.value.code == "KMSInvalidStateException"
    assert not isinstance(refused.value, RootGone)
    strict.clock.now = MAY + timedelta(days=8)
    with pytest.raises(RootGone):
        strict.root.unwrap(TENANT, wrapped, b"a")


def test_an_outage_is_asked_again_a_few_times_and_proves_nothing(strict: Place) -> None:
    keks = strict.keks()
    keks.create(TENANT, 1, 1)
    throttled = refusal("Decrypt", "ThrottlingException")
    lost = ReadTimeoutError(endpoint_url="kms")
    strict.client.failures = [throttled, lost]
    keks.fresh().recover(TENANT, 1, 1)
    assert len(strict.pauses) == 2
    assert all(pause <= 2 for pause in strict.pauses)
    strict.client.failures = [EndpointConnectionError(endpoint_url="kms") for _ in range(ATTEMPTS)]
    before = len(strict.client.calls)
    with pytest.raises(RootUnavailable, match="no answer") as failed:
        keks.fresh().recover(TENANT, 1, 1)
    assert not isinstance(failed.value, RootGone)
    assert len(strict.client.calls) - before == ATTEMPTS


@pytest.mark.parametrize(
    "error",
    [refusal("Decrypt", "AccessDeniedException"), refusal("Decrypt", "DisabledException"), NoCredentialsError()],
)
def test_a_refusal_is_told_at_once_with_its_code(strict: Place, error: Exception) -> None:
    wrapped = strict.root.wrap(TENANT, b"k", b"a")
    strict.client.failures = [error]
    with pytest.raises(RootRefused):
        strict.root.unwrap(TENANT, wrapped, b"a")
    assert strict.pauses == []


def test_making_the_next_key_is_never_repeated_blindly(strict: Place) -> None:
    strict.root.wrap(TENANT, b"k", b"a")
    made = len(strict.client.keys)
    original = strict.client.create_key

    def lost(**options: Any) -> None:
        original(**options)
        raise ReadTimeoutError(endpoint_url="kms")

    strict.client.create_key = lost
    with pytest.raises(RootUnavailable):
        strict.root.rotate(JUNE)
    assert len(strict.client.keys) == made + 1
    assert max(strict.root.versions()) == 1


def test_a_destroyed_epoch_stays_destroyed_whatever_kms_says(strict: Place) -> None:
    keks = strict.keks()
    keks.create(TENANT, 1, 1)
    keks.destroy(TENANT, 1, 1, MAY)
    with pytest.raises(KekDestroyed):
        keks.get(TENANT, 1, 1)


@pytest.mark.parametrize("change", [{"KeySpec": "HMAC_256"}, {"KeySpec": "RSA_2048"}, {"KeyManager": "AWS"}])
def test_a_key_that_cannot_be_the_root_is_refused(strict: Place, change: dict[str, str]) -> None:
    (first,) = strict.client.keys
    strict.client.keys[first].update(change)
    with pytest.raises(RootUnavailable, match="root has to be"):
        strict.root.wrap(TENANT, b"k", b"a")


def test_the_address_names_key_region_window_and_folder(tmp_path: Path) -> None:
    address = parse_address(f"aws-kms://alias/muniment?region={REGION}&window=30&folder={tmp_path}/k")
    assert (address.key, address.region, address.window_days) == ("alias/muniment", REGION, 30)
    assert key_folder(f"aws-kms://alias/muniment?region={REGION}&folder={tmp_path}/k", tmp_path) == tmp_path / "k"
    assert parse_address(f"aws-kms://{ACCOUNT}key/1234?region={REGION}").key == f"{ACCOUNT}key/1234"
    for wrong in ["aws-kms://?region=x", "aws-kms://k?window=6", "aws-kms://k?window=x", "aws-kms://k?ttl=1"]:
        with pytest.raises(RootUnavailable):
            parse_address(wrong)


def test_a_root_in_kms_is_opened_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        with closing(boto3.client("kms", region_name=REGION)) as client:
            key = client.create_key()["KeyMetadata"]["Arn"]
        clock: Callable[[], datetime] = Clock()
        with closing(open_root(f"aws-kms://{key}?region={REGION}", clock=clock, folder=tmp_path / "keys")) as root:
            assert root.unwrap("7", root.wrap("7", b"x", b""), b"") == b"x"
