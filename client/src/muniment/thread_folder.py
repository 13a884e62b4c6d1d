"""A folder in which each thread of an agent has files of its own, so that erasing it is unlinking them.

Layout, shared with `connectors/thread_folder.py` of the service, which erases (change both or neither)::

    secret        32 random bytes; names are HMAC-SHA256(secret, thread id), 32 hexadecimal digits
    locks/        flock files. By the first two digits of a name: shared while a thread of it is used, alone while one
                  is erased. `NN.turn`: passed, shared, before that, and held alone by an erasure that waits, so that
                  those who come later do not keep it waiting. `keys`: alone while a key is made or changed
    NAME.db       the thread's own SQLite database, of `storage="one-file-a-thread"`
    NAME.key      JSON: the thread's key, of `storage="sealed"`; see `Key`
    NAME.gone     the thread was erased and is not written again
    NAME.told     the service was told of the thread; see `thread_register`. Names nobody

Guarantees: a thread is read and written only while its lock is held and no `.gone` stands there, so what was erased
does not come back, by whatever process; a key is on disk before anything is sealed with it. Files are for their owner
alone. Does not overwrite disk blocks: use an encrypted disk. Not for network file systems without `flock`.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from muniment.errors import KeyMissing, ThreadErased

TOLD = ".told"
SECRET_BYTES = 32
KEY_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A thread's key, and whose thread it is. `from_the_start`: nothing of the thread was stored before the key."""

    thread: str = field(repr=False)
    owners: tuple[str, ...] = field(repr=False)
    key: bytes = field(repr=False)
    from_the_start: bool


class ThreadFolder:
    """The folder, made on first use."""

    def __init__(self, path: Path) -> None:
        """Open or make the folder. Raises: OSError."""
        self._path = path.absolute()
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._path / "locks").mkdir(mode=0o700, exist_ok=True)
        secret = self._path / "secret"
        with self._alone():
            if not secret.exists():
                self._write(secret, secrets.token_bytes(SECRET_BYTES))
        self._secret = secret.read_bytes()
        if len(self._secret) != SECRET_BYTES:
            raise KeyMissing

    def threads(self, end: str) -> list[Path]:
        """Return the files of all threads of one kind, `.db` or `.key`."""
        return sorted(path for path in self._path.iterdir() if path.suffix == end)

    def path(self, thread: str, end: str) -> Path:
        """Return where a file of a thread lies."""
        name = hmac.digest(self._secret, thread.encode(errors="surrogatepass"), hashlib.sha256).hex()[:32]
        return self._path / f"{name}{end}"

    @contextmanager
    def using(self, thread: str, *, wait: bool = True, alone: bool = False) -> Iterator[None]:
        """Keep the thread from being erased within the block; `alone`, from being used by anybody else too.

        Raises: ThreadErased; BlockingIOError where it is being erased and nobody wants to wait.
        """
        with self.using_file(self.path(thread, ".gone"), wait=wait, alone=alone):
            yield

    @contextmanager
    def using_file(self, path: Path, *, wait: bool = True, alone: bool = False) -> Iterator[None]:
        """Do so by one of the thread's files. Raises: as `using`."""
        stripe = path.name[:2]
        if not alone:
            turnstile = self._lock(f"{stripe}.turn", fcntl.LOCK_SH, wait=wait)
            os.close(turnstile)
        descriptor = self._lock(stripe, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, wait=wait)
        try:
            if path.with_suffix(".gone").exists():
                raise ThreadErased
            yield
        finally:
            os.close(descriptor)

    def _lock(self, name: str, how: int, *, wait: bool = True) -> int:
        """Return a descriptor that holds a lock. Raises: BlockingIOError where nobody wants to wait."""
        descriptor = os.open(self._path / "locks" / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, how | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def forget(self, thread: str) -> None:
        """Unlink what the thread has here, when its application deletes it. It may begin anew."""
        for end in (".key", ".key.new", ".db", ".db-wal", ".db-shm", ".db-journal", TOLD):
            self.path(thread, end).unlink(missing_ok=True)
        self._sync()

    def key(self, thread: str) -> Key | None:
        """Return the thread's key, None where it has none. Raises: KeyMissing where it cannot be read."""
        found = self.key_at(self.path(thread, ".key"))
        if found is not None and found.thread != thread:
            raise KeyMissing
        return found

    def key_at(self, path: Path) -> Key | None:
        """Return the key in a file, None where there is none. Raises: KeyMissing where it cannot be read."""
        try:
            told = json.loads(path.read_bytes())
            found = Key(
                thread=told["thread"],
                owners=tuple(told["owners"]),
                key=b64decode(told["key"], validate=True),
                from_the_start=told["from_the_start"],
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise KeyMissing from None
        if len(found.key) != KEY_BYTES:
            raise KeyMissing
        return found

    def told(self, path: Path) -> str | None:
        """Return the mark that the service was told of a file's thread, None where there is none."""
        try:
            return path.with_suffix(TOLD).read_text(errors="replace")
        except OSError:
            return None

    def tell(self, path: Path, mark: str) -> None:
        """Mark that the service was told of a file's thread, where it is still there. Raises: ThreadErased, OSError.

        Lost in a power cut, the service is told once more.
        """
        with self.using_file(path):
            if path.exists():
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
                with os.fdopen(os.open(path.with_suffix(TOLD), flags, 0o600), "w") as stream:
                    stream.write(mark)

    def make_key(self, thread: str, owners: tuple[str, ...], *, from_the_start: bool) -> Key:
        """Return the thread's key, made and on disk; that of another process where it was quicker."""
        with self._alone():
            if self.key(thread) is None:
                fresh = secrets.token_bytes(KEY_BYTES)
                self._keep(Key(thread=thread, owners=owners, key=fresh, from_the_start=from_the_start))
        return self.add_owners(thread, owners)

    def add_owners(self, thread: str, owners: tuple[str, ...]) -> Key:
        """Return the key with these owners among its own, on disk as well: a thread of two people names both.

        Raises: KeyMissing.
        """
        with self._alone():
            found = self.key(thread)
            if found is None:
                raise KeyMissing
            if set(owners) <= set(found.owners):
                return found
            more = replace(found, owners=tuple(dict.fromkeys((*found.owners, *owners))))
            self._keep(more)
        return more

    def _keep(self, key: Key) -> None:
        told = {
            "thread": key.thread,
            "owners": list(key.owners),
            "key": b64encode(key.key).decode(),
            "from_the_start": key.from_the_start,
        }
        self._write(self.path(key.thread, ".key"), json.dumps(told).encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one writer at a time make or change a key."""
        descriptor = os.open(self._path / "locks" / "keys", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file whole and durably. A crash leaves at most `NAME.key.new`, which goes with the thread."""
        draft = path.with_name(f"{path.name}.new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
        self._sync()

    def _sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
