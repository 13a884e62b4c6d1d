"""Chroma's engine in a process of its own: the few calls that the connector needs of it.

Why a process: the engine brings its own SQLite. Two copies of SQLite in one process do not see each other's locks on a
file, and closing it in one takes the locks of the other away, so the database could be damaged. It also waits for
locks as long as it likes, which is ended here at the deadline by ending the process; and its memory, which it writes
into unused room of its index files, knows nothing of the erased.

The child is this file run as a script, with nothing of ours imported: frames of msgpack on its standard streams, each
after its length. It ends when its input ends, also when the parent was killed.
"""

from __future__ import annotations

import contextlib
import json
import select
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from connectors.base import Deadline

_LENGTH = struct.Struct(">Q")
_CHUNK = 1 << 16


class Engine:
    """The parent's side: one call at a time, each within the deadline."""

    def __init__(self, child: subprocess.Popen[bytes], limit: Deadline) -> None:
        self._child = child
        self._limit = limit

    def call(self, name: str, *arguments: Any) -> Any:
        """Return what the engine answers. Raises: Timeout, StoreUnreachable."""
        # Imported here, because the child runs this file without the package around it.
        from connectors.errors import StoreUnreachable

        assert self._child.stdin is not None  # noqa: S101 -- narrows for the type checker; started with pipes
        self._limit.check()
        with contextlib.suppress(BrokenPipeError):
            _put(self._child.stdin, [name, arguments])
        frame = self._read(_LENGTH.size)
        answer = msgspec.msgpack.decode(self._read(_LENGTH.unpack(frame)[0])) if frame else ["refused", None]
        if answer[0] != "done":
            raise StoreUnreachable("chroma", "the engine refused") from None
        return answer[1]

    def _read(self, size: int) -> bytes:
        assert self._child.stdout is not None  # noqa: S101 -- as above
        found = bytearray()
        while len(found) < size:
            ready, _, _ = select.select([self._child.stdout], [], [], self._limit.left())
            if not ready:
                self._child.kill()
                raise self._limit.error()
            piece = self._child.stdout.read1(min(_CHUNK, size - len(found)))  # type: ignore[attr-defined] # a buffered pipe
            if not piece:
                return b""
            found += piece
        return bytes(found)


@contextmanager
def engine(path: Path, limit: Deadline) -> Iterator[Engine]:
    """Run the engine on a folder, which it does not bring to another version. Raises: Timeout, StoreUnreachable."""
    limit.check()
    with subprocess.Popen(  # noqa: S603 -- this file, by this interpreter
        [sys.executable, "-I", str(Path(__file__)), str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        try:
            yield Engine(child, limit)
            # Its files are closed when it has ended, not before.
            assert child.stdin is not None  # noqa: S101 -- as above
            child.stdin.close()
            child.wait(max(0.1, limit.left()))
        except subprocess.TimeoutExpired:
            raise limit.error() from None
        finally:
            child.kill()


def _put(stream: Any, value: Any) -> None:
    frame = msgspec.msgpack.encode(value)
    stream.write(_LENGTH.pack(len(frame)) + frame)
    stream.flush()


class _Calls:
    """The child's side."""

    def __init__(self, path: str) -> None:
        import chromadb_rust_bindings as rust

        database = rust.SqliteDBConfig(
            hash_type=rust.MigrationHash.MD5, migration_mode=rust.MigrationMode.Validate, url=f"{path}/chroma.sqlite3"
        )
        self._run = rust.Bindings(allow_reset=False, sqlite_db_config=database, persist_path=path, hnsw_cache_size=16)

    def make(self, name: str, tenant: str, database: str) -> str:
        """Make an empty collection and return its inner id."""
        return str(self._run.create_collection(name, None, None, None, False, tenant, database).id)

    def make_like(self, old: str, name: str, tenant: str, database: str) -> str | None:
        """Make an empty collection of another one's settings; None where they cannot be given."""
        model = self._run.get_collection(old, tenant, database)
        settings = {key: value for key, value in model.configuration.items() if value is not None}
        made = self._run.create_collection(name, json.dumps(settings), None, model.metadata, False, tenant, database)
        return str(made.id) if made.configuration == model.configuration else None

    def count(self, uid: str, tenant: str, database: str) -> int:
        """Return the number of records; what waits in the queue is applied by that."""
        return int(self._run.count(uid, tenant, database))

    def add(self, uid: str, records: dict[str, Any], tenant: str, database: str) -> None:
        """Add records, given by columns."""
        columns = [records[name] for name in ("vectors", "metadatas", "documents", "uris")]
        self._run.add(records["ids"], uid, *columns, tenant, database)

    def update(self, uid: str, ids: list[str], metadatas: list[dict[str, Any]], tenant: str, database: str) -> None:
        """Give records other values under these keys; all else of them stays."""
        self._run.update(uid, ids, None, metadatas, None, None, tenant, database)

    def delete(self, uid: str, ids: list[str], where: str | None, tenant: str, database: str) -> None:
        """Delete records by id, where the condition holds."""
        self._run.delete(uid, ids, where, None, None, tenant, database)


def _serve(source: BinaryIO, sink: BinaryIO, path: str) -> None:
    calls: _Calls | None = None
    while len(head := source.read(_LENGTH.size)) == _LENGTH.size:
        name, arguments = msgspec.msgpack.decode(source.read(_LENGTH.unpack(head)[0]))
        try:
            calls = calls or _Calls(path)
            answer = ["done", getattr(calls, name)(*arguments)]
        except Exception:  # noqa: BLE001 -- whatever the engine said holds paths and values; it stays in this process
            answer = ["refused", None]
        _put(sink, answer)


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1])
