"""Certificates and key changes in the locked store: whether each object there is what was signed, and none is gone.

Guarantees: reads only. Of a certificate: its bytes are those that its name stands for; its signature, its proofs and
counts hold (`erasure.report_check`) by a pinned key; the checkpoint that it proves itself under is the bucket's.
Of a key change: its note is signed by the keys before it, in order. No fewer certificates lie there than the record
says were issued, and none is missing that the database knows to be stored. Without a pinned key for certificates their
signatures are not checked, which the report says. Objects whose names this program does not write are told and not
judged. Does not judge the record: `audit` does, and what it named is not compared again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session, select

from audit.chain import RESTORE
from audit.findings import Findings, Report, Verdict, with_findings
from audit.keys import log_key, open_checkpoint
from audit.reader import Reader, uncovered, whole
from erasure.certificate_rows import CertificateCut, CertificateKey, digest_of
from erasure.certificate_store import NAME, PREFIX, name_of, pieces_of
from erasure.errors import ReportError
from erasure.models import CertificateRow
from erasure.report_check import check, document_in
from erasure.signed_file import SignedFile
from ledger.checkpoint import parse_checkpoint, parse_note
from ledger.entry import Kind
from ledger.errors import (
    BadSignature,
    LogForked,
    MalformedNote,
    ObjectHidden,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.keyring import CERTIFICATE, LOG, KeyWindow, keys_prefix, parse_change, windows
from ledger.payload_names import PREFIX as PAYLOAD
from ledger.payload_names import is_ours

_FOLDERS = frozenset({"anchor", "batch", "certificate", "checkpoint", "keys", "payload"})
Sessions = Callable[[int], AbstractContextManager[Session]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCertificate:
    """A certificate that the database has, by the name of its object below the log's prefix.

    Where the database has not all of its bytes any more, nobody knows the end of that name.
    """

    name: str
    is_stored: bool
    is_whole: bool = True


def known_certificates(sessions: Sessions, tenant_id: int) -> list[KnownCertificate]:
    """Returns what the database has of a tenant's certificates."""
    with sessions(tenant_id) as session:
        rows = session.exec(select(CertificateRow).where(CertificateRow.tenant_id == tenant_id)).all()
        keys = [CertificateKey(tenant_id, row.request_id, row.version, row.number) for row in rows]
        return [_known(session, key, is_stored=row.stored_at is not None) for key, row in zip(keys, rows, strict=True)]


def _known(session: Session, key: CertificateKey, *, is_stored: bool) -> KnownCertificate:
    try:
        return KnownCertificate(name=name_of(key, digest_of(session, key)), is_stored=is_stored)
    except CertificateCut:
        return KnownCertificate(name=name_of(key, "cut"), is_stored=is_stored, is_whole=False)


def check_kept(
    report: Report,
    *,
    bucket: Reader,
    hot: Reader,
    keys: Sequence[str],
    certificate_keys: Sequence[str],
    known: Sequence[KnownCertificate] = (),
) -> Report:
    """Returns the report with what is wrong about certificates and key changes, and what could not be checked of them.

    `keys` and `certificate_keys` are pinned vkeys with their windows. Raises: BadPin for a key of the log that is none.
    """
    work = _Kept(report, bucket, keys, certificate_keys)
    try:
        work.changes(hot)
        work.certificates(known)
        if report.sampled is None:
            work.strangers()
    except (StoreUnavailable, StoreDenied) as error:
        detail = f"certificates and key changes could not be listed: {error.detail}"
        work.found.add(Verdict.UNREADABLE, detail, object=f"{report.log_id}/")
    return with_findings(replace(report, notes=(*report.notes, *work.notes)), work.found)


class _Kept:
    def __init__(self, report: Report, bucket: Reader, keys: Sequence[str], certificate_keys: Sequence[str]) -> None:
        self.found = Findings()
        self.notes: list[str] = []
        self._report, self._bucket = report, bucket
        self._pins = keys
        self._keys = [log_key(key) for key in keys]
        self._certificate_keys = certificate_keys
        self._named = {finding.object for finding in report.findings}
        self._prefix = f"{report.log_id}/"
        self._list_key = f"{report.log_id}/keys"
        self._lost = False

    # ── key changes ──

    def changes(self, hot: Reader) -> None:
        """Check the notes of each use in their order, and the list made of them in the unlocked store.

        Behind a note that does not hold no other can be judged.
        """
        listed = self._listed(hot)
        count = 0
        for use, pins in ((LOG, self._pins), (CERTIFICATE, self._certificate_keys)):
            notes: list[bytes] = []
            for key in self._bucket.list(keys_prefix(self._report.log_id, use)):
                count += 1
                if not self._change(use, key, notes):
                    self._lose_keys(use)
                    return
            first = parse_change(notes[0]).old[0] if notes else next(iter(pins), "").partition(" ")[0]
            if first and listed is not None:
                now, before = windows(use, first, notes), windows(use, first, notes[:-1])
                self._list(use, (now, now[:-1], before), listed)
        told = self._report.made.get(Kind.KEY_ROTATED, 0)
        if count < told:
            self.notes.append(
                f"the record tells of {told} changes of a key, and {count} lie here: one was told twice, as an earlier "
                "version did after a crash, or one is gone that nothing was signed by"
            )

    def _lose_keys(self, use: str) -> None:
        """Judge no signature by keys that cannot be followed any more: it would be called wrong without being so."""
        self._lost, self._certificate_keys = True, ()
        if use == LOG:
            self._keys = []

    def _listed(self, hot: Reader) -> bytes | None:
        """Return the list of keys as it lies in the unlocked store; None where there is none."""
        try:
            return hot.get(self._list_key)
        except ObjectMissing:
            return None

    def _list(self, use: str, allowed: Sequence[Sequence[KeyWindow]], data: bytes) -> None:
        """Check what the list says of a use: the keys as they are, or as they were before the newest change."""
        try:
            listed = json.loads(data)
            holds = json.dumps(listed).encode() == data and any(_says(listed[use], known) for known in allowed)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            holds = False
        if not holds:
            detail = f"the list of {use} keys is not what their changes say; the next change writes it anew"
            self.found.add(Verdict.ALTERED, detail, object=self._list_key)

    def _change(self, use: str, key: str, notes: list[bytes]) -> bool:
        """Check the next note, and put it to those before it; whether it holds."""
        number = len(notes) + 1
        expected = f"{keys_prefix(self._report.log_id, use)}{number:06d}"
        if key > expected:
            detail = f"change {number} of the {use} key is missing, and a later one lies there; {RESTORE}"
            self.found.add(Verdict.MISSING, detail, object=expected)
            return False
        before = self.found.counts.total()
        with self._told(key):
            notes.append(whole(self._bucket, key))
            if key != expected or parse_change(notes[-1]).log_id != self._report.log_id:
                raise LogForked(f"this is not change {number} of this log")
            windows(use, parse_change(notes[0]).old[0], notes)
        return self.found.counts.total() == before

    # ── certificates ──

    def certificates(self, known: Sequence[KnownCertificate]) -> None:
        """Check every certificate that lies there, and that those that should do lie there."""
        there: set[str] = set()
        sound: set[str] = set()
        before = self.found.counts.total()
        for key in self._bucket.list(f"{self._prefix}{PREFIX}"):
            name = key.removeprefix(self._prefix)
            match = NAME.fullmatch(name)
            if match is None:
                self.found.add(Verdict.ALTERED, "an object that is no certificate lies among them", object=key)
                continue
            there.add(name)
            told = self.found.counts.total()
            with self._told(key):
                uncovered(self._bucket, key)
                with SignedFile.of(pieces_of(self._bucket, key)) as signed:
                    self._certificate(signed, match)
            if self.found.counts.total() == told:
                sound.add(name)
        for one in known:
            if not one.is_whole:
                self._cut(one, there, sound)
            elif one.is_stored and one.name not in there:
                self._gone(f"{self._prefix}{one.name}")
        if there and not self._certificate_keys:
            why = "a change of a key is damaged" if self._lost else "no pinned key (--certificate-key)"
            self.notes.append(f"the signatures of {len(there)} certificates were not checked: {why}")
        made = self._report.made.get(Kind.CERTIFICATE_ISSUED, 0) - sum(not one.is_stored for one in known)
        if len(there) < made and self.found.counts.total() == before:
            detail = (
                f"the record says that {made} certificates were issued, and {len(there)} lie here (one whose store was "
                f"away at the time follows within minutes); {RESTORE}"
            )
            self.found.add(Verdict.MISSING, detail, object=f"{self._prefix}{PREFIX}")

    def _certificate(self, signed: SignedFile, name: re.Match[str]) -> None:
        """Check one certificate. Raises: ReportError, and what reading its checkpoint raises."""
        if signed.sha256()[:16] != name[4]:
            raise ReportError("", "the bytes are not those that its name stands for")
        try:
            certificate = document_in(signed.view())["certificate"]
            request, version, note = certificate["request"], certificate["version"], certificate["log"]["checkpoint"]
        except (KeyError, TypeError) as error:
            raise ReportError("/certificate", "a member is missing") from error
        if (request, version) != (name[1], name[3]):
            raise ReportError("/certificate/request", "it is of another request or version than its name")
        if self._certificate_keys:
            check(signed.view(), self._certificate_keys)
        if self._keys:
            self._checkpoint(note)

    def _checkpoint(self, note: Any) -> None:
        """Check that a certificate's checkpoint is the log's, and is the one that lies in the bucket."""
        place = "/certificate/log/checkpoint"
        try:
            # A lone surrogate becomes bytes that are no UTF-8, and no note.
            said = open_checkpoint(str(note).encode(errors="surrogatepass"), self._keys, self._keys[0].name)
        except (MalformedNote, BadSignature) as error:
            raise ReportError(place, f"no checkpoint of this log: {error.reason}") from error
        key = f"{self._prefix}checkpoint/{said.size:020d}"
        if key in self._named:
            return
        try:
            stored = parse_checkpoint(parse_note(whole(self._bucket, key)).text)
        except ObjectMissing:
            end = self._report.size
            verdict = Verdict.ROLLED_BACK if said.size > end else Verdict.MISSING
            detail = f"a certificate shows this checkpoint, and it is missing; the bucket has {end} entries; {RESTORE}"
            self.found.add(verdict, detail, object=key, index=min(said.size, end))
        except (MalformedNote, ObjectHidden):
            return  # named by whoever looked at it first
        else:
            if stored.root != said.root:
                detail = f"a certificate shows another head of size {said.size} that the log signed: two histories"
                self.found.add(Verdict.FORKED, detail, object=key, index=said.size - 1)

    def _cut(self, one: KnownCertificate, there: Collection[str], sound: Collection[str]) -> None:
        """Name a certificate that the database has not whole, and say whether the store has it."""
        place = one.name.rpartition("-")[0]
        of_it = sorted(name for name in there if name.rpartition("-")[0] == place)
        verdict, key = Verdict.ALTERED, f"{self._prefix}{next(iter(of_it), one.name)}"
        if not of_it:
            verdict, store = Verdict.MISSING, "nor does the store"
        elif any(name in sound for name in of_it):
            store = "the object of it does"
        else:
            store = "the object of it does not hold either"
        detail = f"the database does not hold all bytes of this certificate any more; {store}"
        self.found.add(verdict, detail, object=key)

    def _gone(self, key: str) -> None:
        with self._told(key):
            whole(self._bucket, key)

    # ── what is not ours ──

    def strangers(self) -> None:
        """Tell of objects in the log's folder that nothing of this program would read or write."""
        count, first = 0, ""
        for key in self._strange():
            count, first = count + 1, first or key
        if count:
            self.notes.append(f"{count} objects bear names that this program does not write; the first is {first}")

    def _strange(self) -> Iterator[str]:
        for key in self._bucket.list(f"{self._prefix}{PAYLOAD}"):
            if not is_ours(key.removeprefix(self._prefix)):
                yield key
        after: str | None = None
        while (key := next(iter(self._bucket.list(self._prefix, after=after)), "")) > (after or ""):
            folder, slash, _ = key.removeprefix(self._prefix).partition("/")
            if folder in _FOLDERS and slash:
                after = f"{self._prefix}{folder}/~"  # "~" sorts after every character of a key
                continue
            yield key
            after = key

    # ── all of them ──

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Name the object in a finding, whatever is wrong with it."""
        try:
            yield
        except ObjectHidden:
            detail = "a delete marker or a second version lies over it; remove it, the first one is kept"
            self.found.add(Verdict.HIDDEN, detail, object=key)
        except ObjectMissing:
            detail = f"the database knows that it was stored, and it is missing; {RESTORE}"
            self.found.add(Verdict.MISSING, detail, object=key)
        except (StoreUnavailable, StoreDenied) as error:
            self.found.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key)
        except (MalformedNote, BadSignature, LogForked) as error:
            self.found.add(Verdict.ALTERED, f"not the key change that was signed ({error}); {RESTORE}", object=key)
        except ReportError as error:
            self.found.add(Verdict.ALTERED, f"not the certificate that was signed ({error}); {RESTORE}", object=key)


def _says(listed: Sequence[dict[str, Any]], known: Sequence[KeyWindow]) -> bool:
    """Whether a list says of each key what is known of it; an earlier version said less."""
    wanted = [window.as_json() for window in known]
    return len(listed) == len(wanted) and all(
        {"vkey", "generation"} <= said.keys() and all(want.get(name, said) == value for name, value in said.items())
        for said, want in zip(listed, wanted, strict=True)
    )
