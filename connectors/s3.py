"""Kind `s3`: objects of one bucket, with every version, delete marker and unfinished upload of their keys.

Config: `{"bucket", "endpoint_url"?, "region"?, "access_key"?, "secret_key"?, "owner_field"?: name of the object's user
metadata}`. Locator: `{"key"}`, one whole key.

Guarantees: an item is erased when no version, marker or upload of its key is listed any more; what a lock protects is
reported `locked` with its date, and never hidden behind a marker. Versions are deleted by id after their own owner was
read, so a version that comes meanwhile is not hit; in a bucket without versioning an object that is replaced between
the check and the delete goes with it. L2 means that nothing of the key is left in the bucket by any listing; what the
provider's disks, replicas of the bucket and inventories hold is L3 and `unknown`.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Held,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import BadConfig, BadLocator, ConnectorError, ReadOnlyConnector, Timeout, WrongCredentials
from connectors.residue import Needles, samples
from connectors.s3_bucket import THREADS, Bucket, Refused, Upload, Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

BATCH = 500
_REQUEST = 1000
"""Versions in one delete request. Source: S3 API, DeleteObjects."""
_KEY_BYTES = 1024
_WINDOW = 48
_SETTINGS = {"endpoint_url": "endpoint_url", "region": "region_name", "access_key": "aws_access_key_id",
             "secret_key": "aws_secret_access_key"}  # fmt: skip
_CAPTURED_VERSIONS = 8
_SHARED = "others set legal holds in this bucket, so nobody can tell whose this one is; lift it by hand"
_DOUBTED = "somebody lifted our hold while it was in force, so another may have been set; lift it by hand"
_BESIDE = "somebody else holds another version of the key, and may hold this one too; lift it by hand"
Answer = tuple[Outcome, str]
_BAD_CONFIG = "bucket is a name; endpoint_url, region, access_key, secret_key and owner_field are texts"
_LEGAL_HOLDS = ("ours", "shared")


def open_store(config: Mapping[str, Any], *, read_only: bool) -> S3Connector:
    """Return the connector of a bucket. Raises: BadConfig."""
    unknown = set(config) - {"bucket", "owner_field", "legal_holds", *_SETTINGS}
    if unknown:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    given = {name: value for name, value in config.items() if value is not None}
    if "bucket" not in given or not all(isinstance(value, str) and value for value in given.values()):
        raise BadConfig(_BAD_CONFIG)
    if ("access_key" in given) != ("secret_key" in given):
        raise BadConfig("access_key and secret_key are given together, or neither")
    if given.get("legal_holds", "ours") not in _LEGAL_HOLDS:
        raise BadConfig("legal_holds is ours (nobody else sets any in this bucket) or shared (none is lifted)")
    settings = {_SETTINGS[name]: value for name, value in given.items() if name in _SETTINGS}
    settings.setdefault("region_name", "us-east-1")
    return S3Connector(
        Bucket(given["bucket"], settings),
        owner_field=given.get("owner_field"),
        read_only=read_only,
        shared=given.get("legal_holds") == "shared",
    )


@dataclass(slots=True, kw_only=True)
class _Place:
    """What lies under one key now."""

    versions: list[Version]
    uploads: list[Upload]

    @property
    def is_empty(self) -> bool:
        return not self.versions and not self.uploads


class S3Connector(Connector):
    """Drives one bucket."""

    def __init__(self, bucket: Bucket, *, owner_field: str | None, read_only: bool, shared: bool = False) -> None:
        """`shared`: others set legal holds in the bucket too, so that none of ours can be told from theirs."""
        self._bucket, self._shared = bucket, shared
        self._owner_field = owner_field.lower() if owner_field else None
        self._read_only = read_only

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="s3",
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=BATCH,
            locks="nothing",
            fence=False,
            search=False,
            owner_check=self._owner_field is not None,
            discover=self._owner_field is not None,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        _key(locator)

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = owner_forms(selector.identifiers)
        given: str | None = None
        page: list[Version] = []
        for version in self._bucket.all_versions(limit):
            if not version.is_marker:
                page.append(version)
            if len(page) < _REQUEST:
                continue
            for key in self._owned(page, forms, limit):
                if key != given:
                    yield {"key": key}
                given = key
            page = []
        for key in self._owned(page, forms, limit):
            if key != given:
                yield {"key": key}

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        given: str | None = None
        for version in self._bucket.all_versions(limit):
            if not version.is_marker and version.key != given:
                given = version.key
                if _is_key(given):
                    yield {"key": given}
        for upload in self._bucket.uploads(limit):
            if _is_key(upload.key):
                yield {"key": upload.key}

    def _owned(self, versions: Sequence[Version], forms: frozenset[str], limit: Deadline) -> list[str]:
        """Return the keys, once each, of which one of these versions names an owner of the forms."""
        owners = self._map(lambda version: self._owner(version, limit), versions)
        mine = [version.key for version, owner in zip(versions, owners, strict=True) if owner in forms]
        return list(dict.fromkeys(mine))

    def _owner(self, version: Version, limit: Deadline) -> str | None:
        """Return whom a version names. Raises: WrongCredentials where that may not be read."""
        try:
            headers = self._bucket.head(version, limit)
        except Refused:
            raise WrongCredentials("s3", "the owner of an object may not be read") from None
        named = (headers or {}).get("Metadata", {}).get(self._owner_field or "")
        return str(named) if named else None

    @staticmethod
    def _map(do: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
        """Do something with several things at once; the first error is raised after all have ended."""
        if len(things) <= 1:
            return [do(thing) for thing in things]
        with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="s3") as pool:
            return list(pool.map(do, things))

    def _places(self, keys: Sequence[str], limit: Deadline) -> dict[str, _Place]:
        """Read what lies under each key, whole keys only. Raises: ConnectorError when anything may not be read."""
        wanted = list(dict.fromkeys(keys))
        uploads: defaultdict[str, list[Upload]] = defaultdict(list)
        for upload in self._bucket.uploads(limit, prefix=_common_start(wanted)) if wanted else ():
            uploads[upload.key].append(upload)
        listed = self._map(lambda key: self._bucket.versions(key, limit), wanted)
        return {
            key: _Place(versions=versions, uploads=uploads.get(key, []))
            for key, versions in zip(wanted, listed, strict=True)
        }

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        keys = [_key(item.locator) for item in items]

        def held(key: str) -> list[bytes]:
            found = [version for version in self._bucket.versions(key, limit) if not version.is_marker]
            pieces = (piece for version in found[:_CAPTURED_VERSIONS] for piece in self._windows(version, limit))
            return list(dict.fromkeys(pieces))

        return dict(zip((item.copy_id for item in items), self._map(held, keys), strict=True))

    def _windows(self, version: Version, limit: Deadline) -> list[bytes]:
        """Return head, middle and tail of a version, without fetching the rest."""
        headers = self._headers(version, limit)
        size = int((headers or {}).get("ContentLength", 0))
        if size <= 2 * _WINDOW:
            return samples(b"".join(self._content(version, limit))) if size else []
        windows: list[bytes] = []
        for start in (0, size // 2 - _WINDOW // 2, size - _WINDOW):
            windows += samples(b"".join(self._content(version, limit, span=f"bytes={start}-{start + _WINDOW - 1}")))
        return windows

    def _headers(self, version: Version, limit: Deadline) -> dict[str, Any] | None:
        try:
            return self._bucket.head(version, limit)
        except Refused:
            raise WrongCredentials("s3", "an object may not be read") from None

    def _content(self, version: Version, limit: Deadline, *, span: str | None = None) -> Iterator[bytes]:
        try:
            yield from self._bucket.read(version, limit, span=span)
        except Refused:
            raise WrongCredentials("s3", "an object may not be read") from None

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            limit.check()
            found = [version for version in self._bucket.versions(_key(item.locator), limit) if not version.is_marker]
            # A marker hides the content and keeps it: the person's copy is still there, so it is handed out.
            yield item.copy_id, b"".join(self._content(found[0], limit)) if found else None

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="a bucket cannot refuse one person's writes; late objects are looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        forms = owner_forms(owner_identifiers)
        answers: dict[str, Answer] = {}
        keys: list[str | BadLocator] = []
        for item in items:
            try:
                keys.append(_key(item.locator))
            except BadLocator as bad:
                keys.append(bad)
        good = [key for key in keys if isinstance(key, str)]
        for start in range(0, len(good), BATCH):
            answers |= self._erase_keys(good[start : start + BATCH], forms, limit)
        at = now + timedelta(seconds=limit.spent())
        return [
            _receipt(item, (Outcome.FAILED, key.detail) if isinstance(key, BadLocator) else answers[key], at)
            for item, key in zip(items, keys, strict=True)
        ]

    def _erase_keys(self, keys: Sequence[str], forms: frozenset[str], limit: Deadline) -> dict[str, Answer]:
        """Read, check, delete by version and read again; each key's failure is its own."""
        places = self._places(keys, limit)
        answers: dict[str, Answer] = {
            key: (Outcome.ALREADY_ABSENT, "no version, marker or upload of the key is listed")
            for key, place in places.items()
            if place.is_empty
        }
        if self._owner_field is not None:
            answers |= self._foreign({key: place for key, place in places.items() if not place.is_empty}, forms, limit)
        going = {key: place for key, place in places.items() if key not in answers}
        refused = self._delete(going, limit)
        try:
            left = self._places(list(going), limit)
        except Timeout:
            return answers | dict.fromkeys(going, (Outcome.FAILED, "not finished before the deadline"))
        for key, place in going.items():
            count = f"{len(place.versions)} versions and markers, {len(place.uploads)} unfinished uploads"
            if left[key].is_empty:
                answers[key] = Outcome.ERASED, f"{count} deleted, the key listed again"
            else:
                answers[key] = self._why_left(left[key], refused.get(key), limit)
        return answers

    def _foreign(self, places: Mapping[str, _Place], forms: frozenset[str], limit: Deadline) -> dict[str, Answer]:
        """Return the keys that are not to be touched: a version of another owner, of none, or no owner to read."""
        data = [version for place in places.values() for version in place.versions if not version.is_marker]

        def owner(version: Version) -> tuple[str | None, str | None]:
            try:
                headers = self._bucket.head(version, limit)
            except Refused as refused:
                return None, refused.code
            named = (headers or {}).get("Metadata", {}).get(self._owner_field or "")
            return (str(named) if named else None), None

        answers: dict[str, Answer] = {}
        for version, (named, code) in zip(data, self._map(owner, data), strict=True):
            if code is not None:
                answers[version.key] = Outcome.FAILED, f"the owner may not be read: {code}"
            elif named not in forms:
                answers.setdefault(version.key, (Outcome.OWNER_MISMATCH, "a version names another owner, or none"))
        for key, place in places.items():
            if place.uploads and all(version.is_marker for version in place.versions):
                answers.setdefault(key, (Outcome.OWNER_MISMATCH, "an unfinished upload names no owner"))
        return answers

    def _delete(self, places: Mapping[str, _Place], limit: Deadline) -> dict[str, str]:
        """Abort the uploads, then delete the versions by id; return the refused keys with S3's code.

        Uploads go first: they name no owner, so they must be gone before what shows whose the key is.
        """
        refused: dict[str, str] = {}
        try:
            uploads = [upload for place in places.values() for upload in place.uploads]
            codes = self._map(lambda upload: self._bucket.abort(upload, limit), uploads)
            refused |= {upload.key: code for upload, code in zip(uploads, codes, strict=True) if code}
            versions = [v for key, place in places.items() if key not in refused for v in place.versions]
            for start in range(0, len(versions), _REQUEST):
                found = self._bucket.delete(versions[start : start + _REQUEST], limit)
                refused |= {version.key: code for version, code in found.items()}
        except Timeout:
            for key in places:
                refused.setdefault(key, "not finished before the deadline")
        return refused

    def _why_left(self, place: _Place, code: str | None, limit: Deadline) -> Answer:
        """Return why something is left: a lock with its date, S3's refusal, or a new write."""
        data = [version for version in place.versions if not version.is_marker]
        try:
            locks = [_lock_of(self._bucket.head(version, limit) or {}) for version in data]
        except (Refused, ConnectorError):
            locks = []
        held = [lock for lock in locks if lock is not None]
        if held:
            dates = [until for until, _ in held if until is not None]
            until = f"until {max(dates).isoformat()}" if dates else "without a date"
            why = ", ".join(sorted({how for _, how in held}))
            return Outcome.LOCKED, f"{len(held)} versions locked {until}: {why}; the rest of the key is deleted"
        if code is not None:
            return Outcome.FAILED, code if " " in code else f"the store refused the delete: {code}"
        return Outcome.FAILED, "versions or uploads of the key are listed again after the delete"

    def hold(self, items: Sequence[Item], *, deadline: float) -> list[Held]:
        """Set a legal hold on every version that has none. Raises: as `erase`."""
        limit = self._writing("hold", deadline)
        if not self._keeps_locks(limit):
            why = "the bucket has no Object Lock, so a hold would hold nothing"
            return [_held(item, "refused", (), why) for item in items]
        return self._map(lambda item: self._hold(item, limit), items)

    def lift(
        self, items: Sequence[tuple[Item, Sequence[str]]], *, deadline: float, doubted: bool = False
    ) -> list[Held]:
        """Lift the legal hold from the named versions, unless it may be somebody else's too. Raises: as `erase`."""
        limit = self._writing("lift", deadline)
        why = _SHARED if self._shared else _DOUBTED if doubted else None
        return self._map(lambda pair: self._lift(pair[0], frozenset(pair[1]), why, limit), items)

    def _writing(self, verb: str, deadline: float) -> Deadline:
        if self._read_only:
            raise ReadOnlyConnector(verb)
        return Deadline(verb, deadline)

    def _keeps_locks(self, limit: Deadline) -> bool:
        try:
            with self._bucket.guard(limit, about_item=True):
                answer = self._bucket.client(limit).get_object_lock_configuration(Bucket=self._bucket.name)
        except Refused:
            return False
        return bool(answer.get("ObjectLockConfiguration", {}).get("ObjectLockEnabled") == "Enabled")

    def _hold(self, item: Item, limit: Deadline) -> Held:
        done: list[str] = []
        try:
            found = [one for one in self._bucket.versions(_key(item.locator), limit) if not one.is_marker]
            for version in found:
                # A hold that somebody else set stays theirs: it is not ours to lift later.
                if not _is_held(self._bucket.head(version, limit)):
                    self._bucket.set_hold(version, limit, on=True)
                    done.append(version.version_id)
        except (Refused, BadLocator) as error:
            return _held(item, "refused", done, f"the store refused the hold: {error}")
        if not found:
            return _held(item, "absent", done, "no version of the key is listed")
        return _held(item, "set", done, f"a legal hold lies on {len(found)} versions")

    def _lift(self, item: Item, ours: frozenset[str], why: str | None, limit: Deadline) -> Held:
        done: list[str] = []
        try:
            found = [one for one in self._bucket.versions(_key(item.locator), limit) if not one.is_marker]
            held = [version for version in found if ours and _is_held(self._bucket.head(version, limit))]
            mine = [version for version in held if version.version_id in ours]
            if mine and (why is not None or len(held) > len(mine)):
                return _held(item, "left", (), why or _BESIDE)
            for version in mine:
                self._bucket.set_hold(version, limit, on=False)
                done.append(version.version_id)
        except (Refused, BadLocator) as error:
            return _held(item, "refused", done, f"the store refused to lift the hold: {error}")
        return _held(item, "lifted", sorted(ours), f"lifted from {len(done)} versions")

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        limit = Deadline("reclaim", deadline)
        notes = ["versions and uploads were deleted for good; what the provider's disks hold cannot be seen"]
        replicated = self._is_replicated(limit)
        if replicated:
            notes.append("the bucket is replicated, and replicas keep versions that are deleted by id")
        elif replicated is None:
            notes.append("whether the bucket is replicated could not be read")
        return ReclaimReport(
            level=Level.L2 if level >= Level.L2 else Level.L1,
            residual_until="unknown",
            detail="; ".join(notes),
            method="permanent delete of each version",
        )

    def _is_replicated(self, limit: Deadline) -> bool | None:
        """Return whether the bucket copies itself elsewhere, None when that cannot be read."""
        try:
            with self._bucket.guard(limit, about_item=True):
                self._bucket.client(limit).get_bucket_replication(Bucket=self._bucket.name)
        except Refused as refused:
            return False if refused.code == "ReplicationConfigurationNotFoundError" else None
        except ConnectorError:
            return None
        return True

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        keys: dict[int, str] = {}
        findings: dict[int, Finding] = {}
        for number, item in enumerate(items):
            try:
                keys[number] = _key(item.locator)
            except BadLocator as bad:
                findings[number] = Finding(
                    copy_id=item.copy_id, level=None, present=None, how="none", could_not_check=bad.detail
                )
        places = self._places(list(keys.values()), limit)
        for number, key in keys.items():
            findings[number] = _finding(items[number], level, places[key])
        return [findings[number] for number in range(len(items))]

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        limit = Deadline("residue", deadline)
        if not canaries:
            return []
        wanted = Needles(canaries)
        hits: list[Residue] = []
        for place, version in enumerate(self._bucket.all_versions(limit)):
            # Keys are content too: an object may be called after the person.
            counted = {"name": wanted.count_chunks([version.key.encode()], limit)}
            if not version.is_marker:
                counted["content"] = wanted.count_chunks(self._content(version, limit), limit)
            for what, counts in counted.items():
                for (number, encoding), count in counts.items():
                    where = f"{what} of version {place} in the bucket's listing"
                    hits.append(Residue(where=where, count=count, encoding=encoding, canary=number))
        return hits

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        key = f".muniment-check-{secrets.token_hex(8)}"
        canary = f"muniment canary {secrets.token_hex(16)}".encode()
        metadata = {self._owner_field: "check:self"} if self._owner_field else {}
        try:
            if (default := self._default_lock(limit)) is not None:
                return check_report(limit, now, reachable=True, problems=[default])
            with self._bucket.guard(limit, about_item=True):
                self._bucket.client(limit).put_object(Bucket=self._bucket.name, Key=key, Body=canary, Metadata=metadata)
        except Refused as refused:
            return check_report(limit, now, reachable=True, problems=[f"no object can be written: {refused.code}"])
        except ConnectorError as problem:
            return check_report(limit, now, reachable=isinstance(problem, WrongCredentials), problems=[str(problem)])
        item = Item(copy_id="check", locator={"key": key}, canaries=(canary,))
        try:
            return try_out(self, item, limit, now)
        except ConnectorError as problem:
            return check_report(limit, now, reachable=True, problems=[str(problem)])

    def _default_lock(self, limit: Deadline) -> str | None:
        """Return why a canary would stay: a lock that the bucket puts on every new object."""
        try:
            with self._bucket.guard(limit, about_item=True):
                answer = self._bucket.client(limit).get_object_lock_configuration(Bucket=self._bucket.name)
        except Refused:
            return None
        rule = answer.get("ObjectLockConfiguration", {}).get("Rule", {}).get("DefaultRetention")
        if not rule:
            return None
        term = f"{rule['Days']} days" if rule.get("Days") else f"{rule.get('Years')} years"
        return f"the bucket locks every new object for {term} ({rule.get('Mode')}), so no canary was written"

    @override
    def close(self) -> None:
        self._bucket.close()


def _key(locator: Locator) -> str:
    """Return the whole key. Raises: BadLocator for what names none, several, or a place that clients rewrite."""
    key = locator.get("key")
    if set(locator) != {"key"} or not isinstance(key, str) or not key:
        raise BadLocator("an s3 locator is {key: text}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise BadLocator("the key is not valid Unicode") from None
    if size > _KEY_BYTES or "\0" in key:
        raise BadLocator("the key is longer than 1024 bytes or holds a zero byte")
    if key.endswith("/"):
        raise BadLocator("the key names a folder")
    if {".", ".."} & set(key.split("/")):
        raise BadLocator("the key has a part . or .., which HTTP clients rewrite")
    return key


def _is_key(key: str) -> bool:
    """Tell whether an item can be registered under that key."""
    try:
        _key({"key": key})
    except BadLocator:
        return False
    return True


def _common_start(keys: Sequence[str]) -> str:
    """Return the longest start that all keys share."""
    first, last = min(keys), max(keys)
    size = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:size]


def _lock_of(headers: Mapping[str, Any]) -> tuple[datetime | None, str] | None:
    """Return until when and why a version is protected."""
    until, mode = headers.get("ObjectLockRetainUntilDate"), headers.get("ObjectLockMode")
    held = headers.get("ObjectLockLegalHoldStatus") == "ON"
    is_kept = isinstance(until, datetime) and until > datetime.now(until.tzinfo)
    if not is_kept and not held:
        return None
    why = [f"{str(mode).lower()} retention"] if is_kept else []
    return (until if is_kept and not held else None), " and ".join([*why, "legal hold"] if held else why)


def _is_held(headers: Mapping[str, Any] | None) -> bool:
    return (headers or {}).get("ObjectLockLegalHoldStatus") == "ON"


def _held(
    item: Item, state: Literal["set", "lifted", "left", "absent", "refused"], done: Sequence[str], detail: str
) -> Held:
    return Held(copy_id=item.copy_id, state=state, versions=tuple(done), detail=detail)


def _receipt(item: Item, answer: Answer, at: datetime) -> Receipt:
    outcome, detail = answer
    reached = Level.L1 if outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT} else None
    return Receipt(
        copy_id=item.copy_id, outcome=outcome, level=reached, method="DeleteObjects by version", detail=detail, at=at
    )


def _finding(item: Item, level: Level, place: _Place) -> Finding:
    how = "every version, marker and unfinished upload of the key listed"
    if not place.is_empty:
        return Finding(copy_id=item.copy_id, level=None, present=True, how=how)
    if level <= Level.L1:
        return Finding(copy_id=item.copy_id, level=Level.L1, present=False, how=how)
    if level is Level.L3:
        why = "the provider's disks, replicas and backups cannot be read here"
        return Finding(copy_id=item.copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
    return Finding(copy_id=item.copy_id, level=Level.L2, present=False, how=how)
