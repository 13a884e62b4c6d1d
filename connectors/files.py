"""Kind `files`: whole files below one root folder, and lines of shared JSON-lines files.

Config: `{"root": absolute folder, "owner_field"?: key in the file's or line's JSON object, "hard_links"?: "refuse" |
"erase_all"}`. Locators: `{"path"}`, `{"path", "lines": {"field", "value"}}`.

Guarantees: a file is erased when no name leads to it any more; a file with other names is refused, or all its names
below the root go. L2 means absent from the store's files. It does not overwrite disk blocks, which journals, SSDs and
snapshots would defeat, and does not look at them: that is L3 and `unknown`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from connectors.base import (
    Capabilities,
    CheckReport,
    Connector,
    Deadline,
    FenceReport,
    Finding,
    Item,
    Level,
    Locator,
    Outcome,
    Receipt,
    ReclaimReport,
    Residue,
    Selector,
    is_one_of,
    owner_forms,
)
from connectors.checking import check_report, try_out
from connectors.errors import (
    BadConfig,
    BadLocator,
    ReadOnlyConnector,
    StoreUnreachable,
    Timeout,
    WrongCredentials,
)
from connectors.file_lines import (
    LineKey,
    is_leftover,
    line_key,
    lines,
    lock,
    matching,
    named_values,
    parse,
    remove_leftovers,
    rewrite,
)
from connectors.file_tree import FileTree, Place, split
from connectors.residue import Needles, samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import BinaryIO

_JSON_LIMIT = 16 * 1024 * 1024
"""A whole file is parsed for its owner only up to this size; a larger one names no owner and is left alone."""

LINE_ENDS = (".jsonl", ".ndjson")
"""Files of JSON lines: each line names its owner."""

_DOUBTFUL = "a line that is no JSON, or has the value as another type, may be the item: repair or name it first"
_ABSENT = (Outcome.ALREADY_ABSENT, "no file of this name in the root")
Answer = tuple[Outcome, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesConfig:
    """What the store was registered with."""

    root: str
    owner_field: str | None
    all_names: bool


def open_store(config: Mapping[str, Any], *, read_only: bool) -> FilesConnector:
    """Return the connector of a folder. Raises: BadConfig."""
    unknown = set(config) - {"root", "owner_field", "hard_links"}
    if unknown:
        raise BadConfig(f"unknown setting {', '.join(sorted(unknown))}")
    root = config.get("root")
    if not isinstance(root, str) or not PurePosixPath(root).is_absolute():
        raise BadConfig("root is an absolute path")
    links = config.get("hard_links", "refuse")
    if links not in {"refuse", "erase_all"}:
        raise BadConfig('hard_links is "refuse" or "erase_all"')
    owner = config.get("owner_field")
    if owner is not None and (not isinstance(owner, str) or not owner):
        raise BadConfig("owner_field is a name")
    return FilesConnector(
        FilesConfig(root=root, owner_field=owner, all_names=links == "erase_all"), read_only=read_only
    )


class FilesConnector(Connector):
    """Drives the files below one root."""

    def __init__(self, config: FilesConfig, *, read_only: bool) -> None:
        self._config = config
        self._read_only = read_only
        self._tree = FileTree(config.root)

    @override
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="files",
            erase_level=Level.L1,
            reclaim_level=Level.L2,
            verify_level=Level.L2,
            batch_size=500,
            locks="nothing; a shared file is replaced by a rewritten one, so writers must reopen it by name",
            fence=False,
            search=False,
            owner_check=self._config.owner_field is not None,
            discover=self._config.owner_field is not None,
            read_only=self._read_only,
        )

    @override
    def check_locator(self, locator: Locator) -> None:
        split(locator.get("path"))
        line_key(locator)
        with self._tree.parent(locator["path"]) as place:
            if place is not None and place.stat() is not None:
                place.open().close()

    @override
    def discover(self, selector: Selector, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("discover", deadline)
        if self._config.owner_field is None:
            raise BadConfig("discover needs owner_field")
        forms = owner_forms(selector.identifiers)
        for path, _, place in self._tree.walk(limit):
            if path.endswith(LINE_ENDS):
                for value in self._line_owners(place, limit):
                    if str(value) in forms:
                        yield {"path": path, "lines": {"field": self._config.owner_field, "value": value}}
                continue
            with place.open() as stream:
                owner = self._file_owner(stream, path, limit)
            if owner in forms:
                yield {"path": path}

    @override
    def walk(self, *, deadline: float) -> Iterator[dict[str, Any]]:
        limit = Deadline("walk", deadline)
        for path, _, place in self._tree.walk(limit):
            yield {"path": path}
            if path.endswith(LINE_ENDS):
                with place.open() as stream:
                    for name, value in named_values(stream, limit):
                        yield {"path": path, "lines": {"field": name, "value": value}}

    def _line_owners(self, place: Place, limit: Deadline) -> list[str | int]:
        """Return whom the lines name, as they write it: a number names others than its digits as a text."""
        with place.open() as stream:
            documents = (parse(line) for line in lines(stream, limit))
            named = (each.get(self._config.owner_field) for each in documents if isinstance(each, dict))
            found = {
                each for each in named if isinstance(each, str | int) and not isinstance(each, bool) and each != ""
            }
        return sorted(found, key=str)

    def _file_owner(self, stream: BinaryIO, name: str, limit: Deadline) -> str | None:
        """Return whom a whole file names: its document, or of JSON lines every one."""
        content = stream.read(_JSON_LIMIT + 1)
        if len(content) > _JSON_LIMIT:
            return None
        owner = self._owner(parse(content))
        if owner is not None or not name.endswith(LINE_ENDS):
            return owner
        stream.seek(0)
        named = {self._owner(parse(line)) for line in lines(stream, limit) if line.strip()}
        return named.pop() if len(named) == 1 else None

    def _owner(self, document: object) -> str | None:
        value = document.get(self._config.owner_field) if isinstance(document, dict) else None
        return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None

    @override
    def capture(self, items: Sequence[Item], *, deadline: float) -> dict[str, list[bytes]]:
        limit = Deadline("capture", deadline)
        held: dict[str, list[bytes]] = {}
        inodes: dict[str, int] = {}
        for item in items:
            held[item.copy_id] = []
            with self._tree.parent(item.locator.get("path")) as place:
                found = place.stat() if place else None
                if place is None or found is None:
                    continue
                held[item.copy_id] = self._canaries(place, line_key(item.locator), limit)
                inodes[item.copy_id] = found.st_ino
        return self._distinctive(held, inodes, limit)

    def _canaries(self, place: Place, key: LineKey | None, limit: Deadline) -> list[bytes]:
        with place.open() as stream:
            if key is not None:
                documents = [document for _, document, _ in matching(stream, [key], limit)]
                texts = (text.encode() for document in documents for text in _texts(document))
                return list(dict.fromkeys(piece for text in texts for piece in samples(text)))
            size = os.fstat(stream.fileno()).st_size
            starts = sorted({0, max(0, size // 2 - 24), max(0, size - 48)})
            windows = []
            for start in starts:
                stream.seek(start)
                windows += samples(stream.read(48))
            return list(dict.fromkeys(windows))

    def _distinctive(
        self, held: dict[str, list[bytes]], inodes: dict[str, int], limit: Deadline
    ) -> dict[str, list[bytes]]:
        """Drop what other files hold as well (file headers, common fields), unless everything is: that is a copy."""
        pairs = [(copy_id, canary) for copy_id, canaries in held.items() for canary in canaries]
        if not pairs:
            return held
        wanted = Needles([canary for _, canary in pairs])
        shared: set[int] = set()
        for _, found, place in self._tree.walk(limit):
            with place.open() as stream:
                shared |= {
                    number for number, _ in wanted.count(stream, limit) if inodes.get(pairs[number][0]) != found.st_ino
                }
        own: dict[str, list[bytes]] = {copy_id: [] for copy_id in held}
        for number, (copy_id, canary) in enumerate(pairs):
            if number not in shared:
                own[copy_id].append(canary)
        return {copy_id: own[copy_id] or canaries for copy_id, canaries in held.items()}

    @override
    def export(self, items: Sequence[Item], *, deadline: float) -> Iterator[tuple[str, bytes | None]]:
        limit = Deadline("export", deadline)
        for item in items:
            limit.check()
            key = line_key(item.locator)
            with self._tree.parent(item.locator.get("path")) as place:
                if place is None or place.stat() is None:
                    yield item.copy_id, None
                    continue
                with place.open() as stream:
                    if key is None:
                        yield item.copy_id, stream.read()
                    else:
                        found = [line for _, document, line in matching(stream, [key], limit) if document is not None]
                        yield item.copy_id, b"".join(found) if found else None

    @override
    def fence(self, scope: Locator) -> FenceReport:
        return FenceReport(held=False, detail="a folder cannot refuse writes of a scope; late files must be looked for")

    @override
    def erase(
        self, items: Sequence[Item], *, owner_identifiers: Sequence[str], now: datetime, deadline: float
    ) -> list[Receipt]:
        if self._read_only:
            raise ReadOnlyConnector("erase")
        limit = Deadline("erase", deadline)
        limit.check()
        self._tree.root()
        forms = owner_forms(owner_identifiers)
        groups: defaultdict[object, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            shared = "lines" in item.locator or "line_field" in item.locator
            groups[(item.locator.get("path"), True) if shared else number].append(number)
        receipts: dict[int, Receipt] = {}
        for numbers in groups.values():
            answers = self._erase_group([items[number] for number in numbers], forms, limit)
            at = now + timedelta(seconds=limit.spent())
            for number, (outcome, detail) in zip(numbers, answers, strict=True):
                absent = outcome in {Outcome.ERASED, Outcome.ALREADY_ABSENT}
                receipts[number] = Receipt(
                    copy_id=items[number].copy_id,
                    outcome=outcome,
                    level=Level.L1 if absent else None,
                    method="rewrite without the lines"
                    if "path" in items[number].locator and len(items[number].locator) > 1
                    else "unlink",
                    detail=detail,
                    at=at,
                )
        return [receipts[number] for number in range(len(items))]

    def _erase_group(self, items: list[Item], forms: frozenset[str], limit: Deadline) -> list[Answer]:
        """Erase one file, or the lines of several items in one file by one rewrite."""
        if limit.is_over():
            return [(Outcome.FAILED, "not reached before the deadline")] * len(items)
        try:
            keys = [line_key(item.locator) for item in items]
            with self._tree.parent(items[0].locator.get("path")) as place:
                found = place.stat() if place else None
                if place is None or found is None:
                    return [_ABSENT] * len(items)
                named = [key for key in keys if key is not None]
                if named:
                    return self._erase_lines(place, found, named, forms, limit)
                return [self._erase_file(place, forms, limit)]
        except BadLocator as bad:
            return [(Outcome.FAILED, bad.detail)] * len(items)
        except Timeout:
            return [(Outcome.FAILED, "not finished before the deadline")] * len(items)
        except PermissionError:
            return [(Outcome.FAILED, "the file system refused")] * len(items)
        except OSError as problem:
            return [(Outcome.FAILED, f"the file system failed, errno {problem.errno}")] * len(items)

    def _erase_file(self, place: Place, forms: frozenset[str], limit: Deadline) -> Answer:
        """Remove every name of one file, and see through an open descriptor that none is left."""
        with place.open() as stream:
            before = os.fstat(stream.fileno())
            if self._config.owner_field is not None and self._file_owner(stream, place.name, limit) not in forms:
                return Outcome.OWNER_MISMATCH, "the file names another owner, or none"
            others = before.st_nlink - 1
            if others and not self._config.all_names:
                return Outcome.FAILED, f"the file has {others} other names; set hard_links to erase them all"
            if others:
                missing = others - self._unlink_others(place, before, limit, dry=True)
                if missing:
                    return Outcome.FAILED, f"{missing} of the file's other names are not below the root"
                self._unlink_others(place, before, limit, dry=False)
            now = place.stat()
            if now is None or _identity(now) != _identity(before):
                return Outcome.FAILED, "the file was replaced or written to while it was looked at"
            os.unlink(place.name, dir_fd=place.folder)
            os.fsync(place.folder)
            left = os.fstat(stream.fileno()).st_nlink
            if left or place.stat() is not None:
                return Outcome.FAILED, f"the name or {left} other names came back while erasing"
        return Outcome.ERASED, f"unlinked {others + 1} names, none left"

    def _unlink_others(self, own: Place, wanted: os.stat_result, limit: Deadline, *, dry: bool) -> int:
        """Return how many other names below the root lead to the same file; remove them unless `dry`."""
        folder = os.fstat(own.folder)
        found = 0
        for _, status, place in self._tree.walk(limit):
            here = os.fstat(place.folder)
            is_own = place.name == own.name and (here.st_dev, here.st_ino) == (folder.st_dev, folder.st_ino)
            if is_own or (status.st_dev, status.st_ino) != (wanted.st_dev, wanted.st_ino):
                continue
            found += 1
            if not dry:
                os.unlink(place.name, dir_fd=place.folder)
                os.fsync(place.folder)
        return found

    def _erase_lines(
        self, place: Place, found: os.stat_result, keys: list[LineKey], forms: frozenset[str], limit: Deadline
    ) -> list[Answer]:
        """Take the lines of several keys out by one rewrite; a key with a doubtful or foreign line keeps all."""
        if found.st_nlink > 1:
            others = found.st_nlink - 1
            return [(Outcome.FAILED, f"the shared file has {others} other names that a rewrite would leave")] * len(
                keys
            )
        lock(place, limit)
        counts = dict.fromkeys(keys, 0)
        refused: dict[LineKey, Answer] = {}
        with place.open() as stream:
            for key, document, _ in matching(stream, keys, limit):
                counts[key] += 1
                if document is None:
                    refused[key] = Outcome.FAILED, _DOUBTFUL
                elif self._config.owner_field is not None and self._owner(document) not in forms:
                    refused.setdefault(key, (Outcome.OWNER_MISMATCH, "a line names another owner, or none"))
        wanted = [key for key in keys if counts[key] and key not in refused]
        if wanted:
            rewrite(place, lambda line: _is_dropped(line, wanted, self._config.owner_field, forms), limit)
        with place.open() as stream:
            left = {key for key, _, _ in matching(stream, wanted, limit)}
        answers: list[Answer] = []
        for key in keys:
            if key in refused:
                answers.append(refused[key])
            elif not counts[key]:
                answers.append((Outcome.ALREADY_ABSENT, "no such line in the file"))
            elif key in left:
                answers.append((Outcome.FAILED, "lines came back while erasing"))
            else:
                answers.append((Outcome.ERASED, f"{counts[key]} lines removed, file replaced"))
        return answers

    @override
    def await_done(self, *, deadline: float) -> bool:
        return True

    @override
    def reclaim(self, level: Level, *, now: datetime, deadline: float) -> ReclaimReport:
        if self._read_only:
            raise ReadOnlyConnector("reclaim")
        limit = Deadline("reclaim", deadline)
        removed = 0
        for path, _, place in self._tree.walk(limit) if level >= Level.L2 else ():
            if is_leftover(path.rsplit("/", 1)[-1]):
                lock(place, limit)
                removed += remove_leftovers(place)
                os.fsync(place.folder)
        return ReclaimReport(
            level=Level.L2 if level >= Level.L2 else Level.L1,
            residual_until="unknown",
            detail=f"{removed} unfinished rewrites removed; freed disk blocks, snapshots, backups were not looked at",
            method="sync of the folders",
        )

    @override
    def verify(
        self, items: Sequence[Item], level: Level, *, deadline: float, reclaimed: ReclaimReport | None = None
    ) -> list[Finding]:
        limit = Deadline("verify", deadline)
        present = [self._is_present(item, limit) for item in items]
        dirty: set[int] = set()
        if level >= Level.L2:
            pairs = [(number, canary) for number, item in enumerate(items) for canary in item.canaries]
            dirty = {pairs[hit.canary][0] for hit in self._scan([canary for _, canary in pairs], limit)}
        return [
            _finding(item, level, reclaimed, is_present=present[number], is_dirty=number in dirty)
            for number, item in enumerate(items)
        ]

    def _is_present(self, item: Item, limit: Deadline) -> bool:
        key = line_key(item.locator)
        with self._tree.parent(item.locator.get("path")) as place:
            if place is None or place.stat() is None:
                return False
            if key is None:
                return True
            with place.open() as stream:
                return next(matching(stream, [key], limit), None) is not None

    @override
    def residue(self, canaries: Sequence[bytes], *, deadline: float) -> list[Residue]:
        return self._scan(canaries, Deadline("residue", deadline))

    def _scan(self, canaries: Sequence[bytes], limit: Deadline) -> list[Residue]:
        if not canaries:
            return []
        wanted = Needles(canaries)
        hits = []
        for path, found, place in self._tree.walk(limit):
            # Names are content too: a folder may be called after the person.
            named = wanted.count_chunks([path.encode(errors="surrogateescape")], limit)
            with place.open() as stream:
                counted = wanted.count(stream, limit)
            for where, counts in ((f"name of inode {found.st_ino}", named), (f"inode {found.st_ino}", counted)):
                for (number, encoding), count in counts.items():
                    hits.append(Residue(where=where, count=count, encoding=encoding, canary=number))
        return hits

    @override
    def check(self, *, now: datetime, deadline: float) -> CheckReport:
        limit = Deadline("check", deadline)
        name = f".muniment-check-{secrets.token_hex(8)}.json"
        owner_field = self._config.owner_field
        canary = f"muniment canary {secrets.token_hex(16)}"
        document = {"canary": canary} | ({owner_field: "check:self"} if owner_field else {})
        item = Item(copy_id="check", locator={"path": name}, canaries=(canary.encode(),))
        try:
            folder = self._tree.root()
            handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except (StoreUnreachable, WrongCredentials) as problem:
            return check_report(limit, now, reachable=False, problems=[str(problem)])
        except OSError as problem:
            return check_report(limit, now, reachable=True, problems=[f"no file can be written, errno {problem.errno}"])
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump(document, stream)
            return try_out(self, item, limit, now)
        finally:
            if (left := Place(folder=folder, name=name)).stat() is not None:
                os.unlink(left.name, dir_fd=folder)

    @override
    def close(self) -> None:
        self._tree.close()


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_size


def _texts(document: object) -> Iterator[str]:
    """Yield every text of a JSON document."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from _texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from _texts(value)


def _is_dropped(line: bytes, keys: Sequence[LineKey], owner_field: str | None, forms: frozenset[str]) -> bool:
    """Tell whether a line goes; one that was appended after the check is held to the same ownership."""
    document = parse(line)
    if not any(key.matches(document) for key in keys):
        return False
    if owner_field is None:
        return True
    return isinstance(document, dict) and is_one_of(document.get(owner_field), forms)


def _finding(item: Item, level: Level, reclaimed: ReclaimReport | None, *, is_present: bool, is_dirty: bool) -> Finding:
    copy_id = item.copy_id
    if is_present:
        return Finding(copy_id=copy_id, level=None, present=True, how="looked up by name")
    if level <= Level.L1:
        return Finding(copy_id=copy_id, level=Level.L1, present=False, how="looked up by name")
    how = "looked up by name, byte scan of every file and name below the root"
    if is_dirty:
        return Finding(copy_id=copy_id, level=Level.L1, present=True, how=how)
    if not item.canaries and reclaimed is not None and level is Level.L2:
        # Too short to be looked for. Its bytes lay under its name only, and leftovers of rewrites were removed.
        how = "looked up by name after reclaim; the content is too short to be looked for"
        return Finding(copy_id=copy_id, level=Level.L2, present=False, how=how)
    if not item.canaries:
        how, why = "looked up by name", "no canary was captured, so no bytes were looked for"
        return Finding(copy_id=copy_id, level=Level.L1, present=None, how=how, could_not_check=why)
    if level is Level.L3:
        why = "freed disk blocks, snapshots and backups cannot be read here"
        return Finding(copy_id=copy_id, level=Level.L2, present=None, how=how, could_not_check=why)
    return Finding(copy_id=copy_id, level=Level.L2, present=False, how=how)
