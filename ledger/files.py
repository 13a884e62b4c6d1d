"""The object store on a local file system: create-only and locked by this program, durable by fsync.

Guarantees, against crashes and other processes of this program: an object appears whole or not at all,
under its lock from the first moment; nothing is overwritten; nothing locked is deleted before its date by
the injected clock; a method returns only after fsync of file and folder. It does not guard against
somebody who writes to the folder himself, nor against a wrong clock: only a checkpoint held elsewhere does.

The order of a `put`, and what is left if we crash after each step:

1. bytes go to `.incoming/` and are fsynced          an orphan there, removed at the next start
2. under the guard: the lock goes to `.lock/<key>`    a lock without an object; the next put replaces it
3. `os.link` gives the object its name                the whole object with its lock, perhaps not yet durable
4. the folder is fsynced                              done

An error of fsync says that the kernel may have dropped what we wrote, and a second fsync would call it
well. So the first one stops all further writes of this instance: only a restart goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from ledger.errors import (
    LedgerError,
    LockNotEnforced,
    ObjectExists,
    ObjectLocked,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from ledger.objects import ObjectInfo, check_key, check_lock, check_prefix

MODE = "FILE"
"""How these locks are named in reports: kept by this program, not by the storage."""

_LOCKS = ".lock"
_HOLDS = ".hold"
_INCOMING = ".incoming"
_GUARD = ".guard"
_TOGETHER = 8
"""Files that wait for the disk at the same time."""
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISPLACED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_ABSENT = _MISPLACED | {errno.ENOENT}


class FileStore:
    """A locked store below `root`, or with `locked=False` a hot one."""

    def __init__(
        self,
        root: Path,
        clock: Callable[[], datetime],
        *,
        locked: bool = True,
        fsync: Callable[[int], None] = os.fsync,
    ) -> None:
        """Open the folder, creating it when it is missing. Raises: StoreDenied, StoreUnavailable."""
        self._root = root
        self._clock = clock
        self._locked = locked
        self._sync = fsync
        self._poisoned = False
        with _translated():
            self._make_folder(root)
            self._make_folder(root / _INCOMING)
            self._make_folder(root / _LOCKS)
            self._sweep_incoming()

    def put(self, key: str, data: bytes | memoryview, *, lock_until: datetime | None) -> None:
        """Create the object. Raises: see `ObjectStore`."""
        target = self._path(key)
        check_lock(self._clock(), lock_until, locked=self._locked)
        with _translated(), self._written(data) as draft, self._guarded():
            if os.path.lexists(target):
                raise ObjectExists(key)
            self._make_folder(target.parent)
            self._write_lock(key, lock_until)
            try:
                os.link(draft, target)
            except FileExistsError as error:
                raise ObjectExists(key) from error
            try:
                self._fsync_folder(target.parent)
            except OSError:
                # Nobody was told yet, so it may go again; a retry must not find it and call it stored.
                with contextlib.suppress(OSError):
                    target.unlink()
                raise

    def put_together(self, objects: Sequence[tuple[str, bytes]]) -> None:
        """Create the objects, whose folders wait for the disk once. Raises: see `GatheringStore`."""
        targets = [(key, self._path(key)) for key, _ in objects]
        check_lock(self._clock(), None, locked=self._locked)
        with _translated(), self._all_written([data for _, data in objects]) as drafts, self._guarded():
            for key, target in targets:
                if os.path.lexists(target):
                    raise ObjectExists(key)
                self._make_folder(target.parent)
                self._write_lock(key, None)
            linked: list[Path] = []
            try:
                for draft, (_, target) in zip(drafts, targets, strict=True):
                    os.link(draft, target)
                    linked.append(target)
                for folder in sorted({target.parent for target in linked}):
                    self._fsync_folder(folder)
            except OSError:
                # Nobody was told yet: as in `put`.
                for target in linked:
                    with contextlib.suppress(OSError):
                        target.unlink()
                raise

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace the object. Raises: StoreDenied on a locked store."""
        target = self._path(key)
        if self._locked:
            detail = "a locked store replaces nothing"
            raise StoreDenied(detail)
        with _translated(), self._written(data) as draft, self._guarded():
            self._make_folder(target.parent)
            draft.replace(target)
            self._fsync_folder(target.parent)

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes or a range of them. Raises: see `ObjectStore`."""
        with _translated(key):
            handle = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                file.seek(offset)
                return file.read() if length is None else file.read(length)

    def head(self, key: str) -> ObjectInfo:
        """Return size and lock; a file has one version and cannot be hidden. Raises: ObjectMissing."""
        path = self._path(key)
        with _translated(key):
            size = path.stat(follow_symlinks=False).st_size
            if path.is_dir():
                raise ObjectMissing(key)
        until = self._read_lock(key)
        mode = None if until is None else MODE
        held = os.path.lexists(self._root / _HOLDS / key)
        return ObjectInfo(size=size, locked_until=until, mode=mode, hidden=False, versions=1, held=held)

    def list(self, prefix: str, after: str | None = None) -> Iterator[str]:
        """Yield keys in byte order. Raises: see `ObjectStore`."""
        check_prefix(prefix)
        folder, _, _ = prefix.rpartition("/")
        return self._walk(f"{folder}/" if folder else "", prefix, after or "")

    def delete(self, key: str) -> None:
        """Remove the object, then its lock. Raises: ObjectLocked."""
        path = self._path(key)
        with _translated(), self._guarded():
            until = self._read_lock(key)
            present = os.path.lexists(path) and not path.is_dir()
            if present and os.path.lexists(self._root / _HOLDS / key):
                raise ObjectLocked(key, None)
            if present and until is not None and self._clock() < until:
                raise ObjectLocked(key, until)
            if present:
                path.unlink()
                self._fsync_folder(path.parent)
            # A crash before this line leaves a lock that is over: it blocks nothing.
            lock = self._lock_path(key)
            if os.path.lexists(lock):
                lock.unlink()
                self._fsync_folder(lock.parent)

    # ── legal holds ──

    def hold(self, key: str, *, on: bool) -> None:
        """Set or lift the legal hold. Raises: see `HoldingStore`."""
        self.head(key)
        mark = self._root / _HOLDS / key
        with _translated(), self._guarded():
            if on and not os.path.lexists(mark):
                self._make_folder(mark.parent)
                self._write_draft(b"").replace(mark)
                self._fsync_folder(mark.parent)
            elif not on and os.path.lexists(mark):
                mark.unlink()
                self._fsync_folder(mark.parent)

    def prolong(self, key: str, until: datetime) -> None:
        """Move the end of the lock to a later date. Raises: see `HoldingStore`."""
        if self.head(key).locked_until is None:
            detail = f"object {key} was created without a lock"
            raise LockNotEnforced(detail)
        with _translated(), self._guarded():
            known = self._read_lock(key)
            if known is None or known < until:
                self._write_lock(key, until)

    # ── names ──

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _lock_path(self, key: str) -> Path:
        return self._root / _LOCKS / key

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Yield the keys below a folder; folders sort by their name with the slash, as keys do."""
        try:
            with _translated(folder), os.scandir(self._root / folder) as found:
                names = sorted(
                    f"{folder}{item.name}/" if item.is_dir(follow_symlinks=False) else f"{folder}{item.name}"
                    for item in found
                    if not item.name.startswith(".")
                )
        except ObjectMissing:
            return
        for name in names:
            if name.endswith("/"):
                # A folder is skipped when nothing in it can match; "~" sorts after every character of a key.
                if (name.startswith(prefix) or prefix.startswith(name)) and name + "~" > after:
                    yield from self._walk(name, prefix, after)
            elif name.startswith(prefix) and name > after:
                yield name

    # ── locks ──

    def _write_lock(self, key: str, until: datetime | None) -> None:
        path = self._lock_path(key)
        if until is None:
            if os.path.lexists(path):
                path.unlink()
                self._fsync_folder(path.parent)
            return
        self._make_folder(path.parent)
        draft = self._write_draft(until.astimezone(UTC).isoformat().encode())
        draft.replace(path)
        self._fsync_folder(path.parent)

    def _read_lock(self, key: str) -> datetime | None:
        """Return the end of the lock. Raises: StoreUnavailable for a lock that cannot be read."""
        try:
            with _translated(key):
                until = datetime.fromisoformat(self._lock_path(key).read_text("ascii"))
        except ObjectMissing:
            return None
        except ValueError as error:
            # Fail closed: what cannot be read must not count as "no lock".
            detail = f"the lock of {key} cannot be read"
            raise StoreUnavailable(detail) from error
        if until.utcoffset() is None:
            detail = f"the lock of {key} has no time zone"
            raise StoreUnavailable(detail)
        return until

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Hold the folder's guard, against other threads and processes alike."""
        # Each opening is a lock of its own, which is what makes flock hold between threads too.
        handle = os.open(self._root / _GUARD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._require_sound()
            yield
        finally:
            os.close(handle)

    # ── bytes ──

    @contextlib.contextmanager
    def _written(self, data: bytes | memoryview) -> Iterator[Path]:
        """Yield a durable file with these bytes that has no name among the objects yet."""
        self._require_sound()
        draft = self._write_draft(data)
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _all_written(self, datas: Sequence[bytes]) -> Iterator[Sequence[Path]]:
        """Do what `_written` does for many, several of which wait for the disk together."""
        self._require_sound()
        with ThreadPoolExecutor(_TOGETHER, "muniment-files") as pool:
            writing = [pool.submit(self._write_draft, data) for data in datas]
        written = [one.result() for one in writing if one.exception() is None]
        try:
            for one in writing:
                one.result()
            yield written
        finally:
            for draft in written:
                draft.unlink(missing_ok=True)

    def _write_draft(self, data: bytes | memoryview) -> Path:
        draft = self._root / _INCOMING / secrets.token_hex(16)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            # While we write, a starting process must not take the draft for an orphan.
            fcntl.flock(handle, fcntl.LOCK_EX)
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            self._fsync(handle)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return draft

    def _sweep_incoming(self) -> None:
        """Remove drafts whose writer is gone."""
        for orphan in (self._root / _INCOMING).iterdir():
            with contextlib.suppress(OSError):
                handle = os.open(orphan, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    orphan.unlink()
                finally:
                    os.close(handle)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, each durable in the one above it."""
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        self._fsync_folder(folder.parent)

    def _fsync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._fsync(handle)
        finally:
            os.close(handle)

    def _fsync(self, handle: int) -> None:
        try:
            self._sync(handle)
        except OSError:
            self._poisoned = True
            raise

    def _require_sound(self) -> None:
        if self._poisoned:
            detail = "an earlier fsync failed; nothing more is written until a restart"
            raise StoreUnavailable(detail)


@contextlib.contextmanager
def _translated(key: str | None = None) -> Iterator[None]:
    """Turn an error of the operating system into one of ours; its text may hold paths and is dropped.

    Absence is an answer only to a question about `key`.
    """
    try:
        yield
    except LedgerError:
        raise
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "an unknown error")
        if error.errno in _ABSENT and key is not None:
            raise ObjectMissing(key) from error
        # Written to a key that is a folder of another, or below one that is an object.
        if error.errno in _DENIED or error.errno in _MISPLACED:
            raise StoreDenied(name) from error
        raise StoreUnavailable(name) from error
