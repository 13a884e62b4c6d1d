"""The folder in which an agent keeps files of each thread, as the SDK's `govern` makes it.

Layout, shared with `muniment/thread_folder.py` of the SDK (change both or neither): `secret` holds 32 bytes; NAME is
the head of HMAC-SHA256(secret, thread id), 32 hexadecimal digits; `locks/` has a flock file for the first two digits of
names, held shared while a thread is used, and a `.turn` beside it that whoever uses one passes before; `NAME.db` is a
thread's own SQLite database, `NAME.key` its key, `NAME.gone` says that it was erased and, as JSON, whether all of it
was sealed, `NAME.told` that the service was told of it. A sealed value is `muniment1` | place 16 | nonce 12 |
AES-256-GCM(type, a zero byte, payload; the place as associated data).

Guarantees: a thread is erased only while nobody uses it, `.gone` is on disk before its files go, and files are gone
from the folder before `close` returns; copies that others made in the folder or below are found by `scan`. A folder
without a secret is no such folder and proves no absence.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import re
import stat
import time
from base64 import b64decode
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials
from connectors.residue import Hits, Needles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connectors.base import Deadline

DATABASE, KEY = ".db", ".key"
DRAFT = ".key.new"
ENDS = (KEY, DRAFT, DATABASE, ".db-wal", ".db-shm", ".db-journal", ".told")
"""What a thread may have here."""
METADATA = "muniment_sealed"
"""The member of a checkpoint's metadata that holds, as base64, the sealed members."""
OPEN = frozenset({"source", "step", "parents", "run_id", "counters_since_delta_snapshot"})
"""Members of the metadata that LangGraph itself writes and reads, and that are not sealed."""
_MAGIC, _PLACE, _NONCE = b"muniment1", 16, 12
_SECRET_BYTES, _NAME = 32, 32
_NAMED = re.compile(r"[0-9a-f]{32}\..*")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A thread's key, and whose thread it is."""

    thread: str = field(repr=False)
    owners: tuple[str, ...] = field(repr=False)
    key: bytes = field(repr=False)
    from_the_start: bool
    """Whether nothing of the thread was stored before the key was made."""


def folder_of(config: Mapping[str, object], name: str) -> Path:
    """Return the folder that a setting names. Raises: BadConfig."""
    path = config.get(name)
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise BadConfig(f"{name} names a folder by its absolute path")
    return Path(path)


def key_names(thread: str) -> bytes:
    """Return the bytes by which every copy of a thread's key in the folder can be found, as the SDK writes them."""
    return b'"thread": ' + json.dumps(thread).encode()


def is_sealed(value: object) -> bool:
    """Tell whether a value says that it is sealed, under whatever key."""
    return isinstance(value, bytes) and value.startswith(_MAGIC)


def unsealed(key: bytes, value: object) -> tuple[str, bytes] | None:
    """Return the type and the bytes of a sealed value; None for one that is not sealed or under another key."""
    start = len(_MAGIC) + _PLACE
    if not isinstance(value, bytes) or not value.startswith(_MAGIC):
        return None
    try:
        place, nonce = value[len(_MAGIC) : start], value[start : start + _NONCE]
        kind, _, payload = AESGCM(key).decrypt(nonce, value[start + _NONCE :], place).partition(b"\0")
    except (InvalidTag, ValueError):
        return None
    return kind.decode(errors="replace"), payload


class ThreadFolder:
    """One folder; nothing is opened before it is asked for."""

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self._path = path
        self._read_only = read_only
        self._secret: bytes | None = None

    def check(self) -> None:
        """Pass where the folder is there and is one of these. Raises: StoreUnreachable, WrongCredentials."""
        # Read again each time: a folder that went away meanwhile proves no absence either.
        try:
            found = (self._path / "secret").read_bytes()
        except PermissionError:
            raise WrongCredentials("langgraph", "the folder of threads may not be read") from None
        except OSError:
            raise StoreUnreachable("langgraph", "there is no folder of threads") from None
        if len(found) != _SECRET_BYTES or (self._secret is not None and found != self._secret):
            raise StoreUnreachable("langgraph", "the folder of threads is another one, or damaged")
        self._secret = found

    def path(self, thread: str, end: str) -> Path:
        """Return where a file of a thread lies. Raises: as `check`."""
        self.check()
        secret = self._secret or b""
        name = hmac.digest(secret, thread.encode(errors="surrogatepass"), hashlib.sha256).hex()[:_NAME]
        return self._path / f"{name}{end}"

    def files(self, end: str) -> list[Path]:
        """Return the files of one kind of all threads. Raises: as `check`."""
        self.check()
        return sorted(each for each in self._path.iterdir() if each.suffix == end and not each.is_symlink())

    @contextmanager
    def alone(self, paths: Sequence[Path], limit: Deadline) -> Iterator[None]:
        """Keep everybody from these files' threads within the block. Raises: Timeout, StoreUnreachable."""
        with ExitStack() as held:
            # In order, so that two of us never wait for each other.
            for stripe in sorted({path.name[:2] for path in paths}):
                self._lock(stripe, limit, held)
            yield

    def _lock(self, stripe: str, limit: Deadline, held: ExitStack) -> None:
        with ExitStack() as turn:
            # With it, only those who use a thread now are waited for, and not whoever comes meanwhile.
            self._flock(f"{stripe}.turn", limit, turn)
            self._flock(stripe, limit, held)

    def _flock(self, name: str, limit: Deadline, held: ExitStack) -> None:
        try:
            # A reader makes no file; where there is none nobody can use the thread.
            flags = os.O_RDONLY if self._read_only else os.O_RDWR | os.O_CREAT
            descriptor = os.open(self._path / "locks" / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            if self._read_only:
                return
            raise StoreUnreachable("langgraph", "there is no folder of threads") from None
        except OSError:
            raise WrongCredentials("langgraph", "the locks of the folder of threads may not be used") from None
        held.callback(os.close, descriptor)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                limit.check()
                time.sleep(min(_LOOK_SECONDS, limit.left()))
            else:
                return

    def key(self, path: Path) -> Key | None:
        """Return the key in a file, None where there is none. Raises: StoreUnreachable where it cannot be read."""
        try:
            told = json.loads(path.read_bytes())
            return Key(
                thread=str(told["thread"]),
                owners=tuple(str(each) for each in told["owners"]),
                key=b64decode(told["key"], validate=True),
                from_the_start=told["from_the_start"] is True,
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise StoreUnreachable("langgraph", "a key in the folder cannot be read") from None

    def elsewhere(self, thread: str) -> str | None:
        """Say why unlinking what a thread has here would leave it elsewhere; None where it would not."""
        gone = self.path(thread, ".gone")
        for end in ENDS:
            try:
                found = gone.with_suffix(end).lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                return "a file of the thread is a symbolic link, and would stay where it leads"
            if found.st_nlink > 1:
                return "a file of the thread has another name (a hard link), under which it would stay"
        return None

    def was_sealed(self, thread: str) -> bool | None:
        """Tell of an erased thread whether everything of it was sealed; None where it was not erased."""
        try:
            return json.loads(self.path(thread, ".gone").read_bytes()).get("sealed") is True
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError):
            return False

    def close(self, thread: str, *, sealed: bool | None, keep: bool = False) -> int:
        """End a thread: refuse it from now on, then, unless `keep`, unlink what it has; return the bytes that went.

        `sealed` tells whether everything of it was sealed, None where that can be seen no longer. A crash in between
        leaves files of a thread that is refused; calling again ends the same. Raises: OSError.
        """
        gone = self.path(thread, ".gone")
        draft = gone.with_suffix(".gone.new")
        # A second call may see less of the thread, so it can take back that all was sealed and never say it anew.
        said = self.was_sealed(thread)
        if said is None or (said and sealed is False):
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
                stream.write(json.dumps({"sealed": sealed is True}).encode())
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(gone)
            self._sync()
        freed = 0
        for end in () if keep else ENDS:
            path = gone.with_suffix(end)
            if os.path.lexists(path):
                freed += 0 if end == ".db-shm" else path.lstat().st_size  # which SQLite makes of the others
                path.unlink()
        self._sync()
        return freed

    def forget(self, thread: str) -> None:
        """Take away what is known of a thread that we made ourselves. Raises: OSError, as `check`."""
        self.close(thread, sealed=False)
        self.path(thread, ".gone").unlink()

    def has_files(self, thread: str) -> bool:
        """Tell whether anything of a thread lies here, but for the word that it was erased."""
        gone = self.path(thread, ".gone")
        return any(os.path.lexists(gone.with_suffix(end)) for end in ENDS)

    def scan(self, canaries: Sequence[bytes], limit: Deadline, *, without: Sequence[Path] = ()) -> Hits:
        """Count canaries in every file here and below but these, each read while nobody uses its thread.

        Raises: Timeout, StoreUnreachable where something cannot be read.
        """
        self.check()
        left_out = {path.with_suffix("") for path in without}
        wanted, found = Needles(canaries), Hits()
        for path in self._every_file():
            if path.parent / path.name.partition(".")[0] in left_out:
                continue
            # SQLite's own locks fall when a process closes any other handle of the file.
            is_threads = path.parent == self._path and _NAMED.fullmatch(path.name) is not None
            with self.alone([path] if is_threads else [], limit):
                try:
                    with path.open("rb") as stream:
                        found += wanted.count(stream, limit)
                except FileNotFoundError:
                    continue
                except OSError:
                    raise StoreUnreachable("langgraph", "a file in the folder of threads cannot be read") from None
        return found

    def _every_file(self) -> Iterator[Path]:
        """Yield every file here and below, whoever put it there, but for locks. Raises: StoreUnreachable."""

        def refuse(_: OSError) -> None:
            raise StoreUnreachable("langgraph", "a folder in the folder of threads cannot be read")

        for where, inside, names in os.walk(self._path, onerror=refuse):
            if Path(where) == self._path and "locks" in inside:
                inside.remove("locks")
            inside.sort()
            yield from (
                path for name in sorted(names) if not (path := Path(where) / name).is_symlink() and path.is_file()
            )

    def _sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
