"""What lies in a log's folder of anchors: cosigned notes and time stamps, each about a checkpoint of the bucket.

Guarantees: every object there is looked at, and one changed byte of it is found, because its name carries its digest
(an earlier version wrote none: there, what is under a signature). A token must be over exactly the bytes of the
checkpoint in its name; whether it leads to an authority is judged against the pinned certificates only, and without one
the report says that it was not checked. A note that a pinned witness cosigned is a head as well, which `audit.heads`
judges; of any other witness's the log's own signature is checked, and told as such.
An anchor that was taken away is seen only by an auditor who kept its name: nothing else says that it was there.

Source: RFC 3161, c2sp.org/tlog-cosignature.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

from audit.chain import RESTORE
from audit.errors import BadPin
from audit.findings import Findings, Verdict
from audit.keys import LogKey, open_checkpoint
from audit.reader import Reader, uncovered, whole
from ledger.checkpoint import parse_checkpoint, parse_note
from ledger.errors import BadSignature, MalformedNote, ObjectHidden, ObjectMissing, StoreDenied, StoreUnavailable
from ledger.tokens import check_answer

FOLDER = "anchor/"
LARGEST = 256 * 1024
"""More bytes than any anchor has, which come from one exchange of 64 KiB: what is larger is not read."""
_NAME = re.compile(r"([0-9]{20})-(?:([0-9a-f]{8})|([0-9a-f]{16}))(?:-([0-9a-f]{16}))?(\.tsr)?")
"""Tree size, key id of a witness or fingerprint of an authority, digest, and what ends the name of a time stamp."""
_Anchor = tuple[str, re.Match[str]]
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_NAMED = 16
"""So many digits of a fingerprint, or of a digest, stand in a name."""


def authority_pin(text: str) -> bytes:
    """Return the SHA-256 fingerprint of an authority's certificate, written in hexadecimal. Raises: BadPin."""
    digits = text.strip().replace(":", "").lower()
    if _FINGERPRINT.fullmatch(digits) is None:
        raise BadPin("an authority is pinned by the SHA-256 fingerprint of its certificate, 64 hexadecimal digits")
    return bytes.fromhex(digits)


def anchor_name(text: str) -> str:
    """Return the name of an anchor as a list that somebody kept has it: `<log id>/anchor/<name>`. Raises: BadPin."""
    log_id, found, name = text.strip().rpartition(f"/{FOLDER}")
    if not log_id or not found or _NAME.fullmatch(name) is None:
        raise BadPin("a list of anchors has one name a line, such as <log id>/anchor/<size>-<key id>-<digest>")
    return text.strip()


def _some(items: Iterable[_Anchor], count: int, source: random.Random) -> list[_Anchor]:
    """Return so many of the items, each as likely as any other, without keeping the rest."""
    chosen: list[_Anchor] = []
    for at, item in enumerate(items):
        if at < count:
            chosen.append(item)
        elif (place := source.randrange(at + 1)) < count:
            chosen[place] = item
    return chosen


@dataclass(slots=True, kw_only=True)
class AnchorCheck:
    """Checks the anchors of a bucket; `witnesses` are the key ids that `audit.heads` judges.

    `keys_are_known`: as in `audit.verify.Options`.
    """

    reader: Reader
    prefix: str
    keys: Sequence[LogKey]
    origin: str
    findings: Findings
    authorities: Sequence[bytes] = ()
    witnesses: Collection[bytes] = ()
    keys_are_known: bool = True
    kept: Sequence[str] = ()
    """Names of anchors that the auditor saw earlier, of any log."""
    _newest: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    _unpinned: int = 0
    _unjudged: int = 0
    _aside: int = 0
    _end: int = 0

    def run(self, end: int, *, sample: int | None, source: random.Random) -> None:
        """Look at every anchor, or at as many as the sample is large. `end`: how many entries the log has.

        Raises: StoreUnavailable, StoreDenied, when the folder cannot be listed.
        """
        self._end = end
        for key in dict.fromkeys(self.kept):
            if key.startswith(f"{self.prefix}{FOLDER}"):
                self._is_there(key)
        for key, name in self._named() if sample is None else _some(self._named(), sample, source):
            if any(one.object == key for one in self.findings.kept):
                continue
            try:
                if uncovered(self.reader, key).size > LARGEST:
                    self._altered(key, f"no anchor has more than {LARGEST} bytes")
                else:
                    self._check(key, self.reader.get(key), name)
            except ObjectHidden:
                self.findings.add(Verdict.HIDDEN, "a delete marker or a second version lies over it", object=key)
            except ObjectMissing:
                self.findings.add(Verdict.MISSING, f"the anchor went away while we read; {RESTORE}", object=key)
            except (StoreUnavailable, StoreDenied) as error:
                self.findings.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key)

    def _is_there(self, key: str) -> None:
        try:
            uncovered(self.reader, key)
        except ObjectMissing:
            detail = f"you saw this anchor earlier, and it is not there any more: somebody took it away; {RESTORE}"
            self.findings.add(Verdict.MISSING, detail, object=key)
        except ObjectHidden:
            self.findings.add(Verdict.HIDDEN, "a delete marker or a second version lies over it", object=key)
        except (StoreUnavailable, StoreDenied) as error:
            self.findings.add(Verdict.UNREADABLE, f"could not be read: {error.detail}", object=key)

    def _named(self) -> Iterator[_Anchor]:
        """Yield each anchor with what its name says; what is none is told."""
        for key in self.reader.list(f"{self.prefix}{FOLDER}"):
            name = _NAME.fullmatch(key.removeprefix(f"{self.prefix}{FOLDER}"))
            if name is None or (name[3] is None) != (name[5] is None):
                self.findings.add(Verdict.ALTERED, "an object that is no anchor lies among them", object=key)
            else:
                yield key, name

    def notes(self) -> list[str]:
        """Say who stamped how much of the log, and what nobody pinned could judge."""
        found = [
            f"time stamped: the authority {name}… says that the first {size} entries were there at {at.isoformat()}"
            for name, (size, at) in sorted(self._newest.items())
        ]
        if self._unpinned:
            found.append(f"the authorities of {self._unpinned} time stamps were not checked: no pinned TSA (--tsa)")
        if self._unjudged:
            found.append(f"{self._unjudged} cosignatures were not checked: no pinned witness of that key (--witness)")
        if self._aside:
            found.append(f"{self._aside} anchors could not be compared: their checkpoint is named above")
        return found

    def _check(self, key: str, data: bytes, name: re.Match[str]) -> None:
        if name[4] is not None and sha256(data).hexdigest()[:_NAMED] != name[4]:
            self._altered(key, "the bytes are not those that its name stands for")
        elif name[3] is not None:
            self._token(key, data, int(name[1]), name[3])
        elif bytes.fromhex(name[2]) not in self.witnesses:
            self._note(key, data, int(name[1]), name[2])

    def _token(self, key: str, data: bytes, size: int, authority: str) -> None:
        note = self._checkpoint(key, size, signed=False)
        if note is None:
            return
        pin = next((pin for pin in self.authorities if pin.hex().startswith(authority)), None)
        try:
            at = check_answer(data, note, pin)
        except BadSignature as error:
            self._altered(key, f"this is no time stamp over the checkpoint of size {size} ({error.reason})")
            return
        if pin is None:
            self._unpinned += 1
        else:
            self._newest[authority] = max(self._newest.get(authority, (0, at)), (size, at))

    def _note(self, key: str, data: bytes, size: int, witness: str) -> None:
        """Check what the log itself signed of a note that a witness cosigned, whose key nobody pinned."""
        try:
            note = parse_note(data)
            if not self.keys:
                self._unjudged += 1  # nothing is believed of anybody
                return
            said = open_checkpoint(data, self.keys, self.origin)
        except (MalformedNote, BadSignature) as error:
            if isinstance(error, BadSignature) and not error.name and not self.keys_are_known:
                self._unjudged += 1  # by a key that could not be followed, perhaps
            else:
                self._altered(key, f"this is no checkpoint of the log ({error.reason})")
            return
        if said.size != size or not any(signature.key_id.hex() == witness for signature in note.signatures):
            self._altered(key, f"its name stands for size {size} and another witness than the note inside")
            return
        stored = self._checkpoint(key, size, signed=True)
        if stored is None:
            return
        if parse_checkpoint(parse_note(stored).text).root != said.root:
            # Both are signed by the log's own key: the stored one was opened with it like every checkpoint.
            detail = f"the log signed another head of size {size} for a witness than it keeps: two histories"
            self.findings.add(Verdict.FORKED, detail, object=key, index=size - 1)
            return
        self._unjudged += 1

    def _checkpoint(self, anchor: str, size: int, *, signed: bool) -> bytes | None:
        """Return the checkpoint that an anchor is about; None where it cannot be compared, which is told.

        `signed`: the anchor itself shows that the log signed this size.
        """
        key = f"{self.prefix}checkpoint/{size:020d}"
        if any(one.object == key for one in self.findings.kept):
            self._aside += 1
            return None
        try:
            note = whole(self.reader, key)
            parse_checkpoint(parse_note(note).text)
        except ObjectMissing:
            what = anchor.removeprefix(self.prefix)
            if signed and size > self._end:
                detail = f"the log signed {size} entries, as {what} shows, and the bucket has {self._end}; {RESTORE}"
                self.findings.add(Verdict.ROLLED_BACK, detail, object=key, index=self._end)
            else:
                detail = f"the anchor {what} is about this checkpoint, and it is missing; {RESTORE}"
                self.findings.add(Verdict.MISSING, detail, object=key)
        except (ObjectHidden, MalformedNote):
            self._aside += 1  # the checkpoint is named by whoever looked at it first
        else:
            return note
        return None

    def _altered(self, key: str, why: str) -> None:
        self.findings.add(Verdict.ALTERED, f"{why}; {RESTORE}", object=key)
