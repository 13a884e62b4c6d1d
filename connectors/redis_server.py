"""One Redis server behind kind `redis`: connections with a limit, its files, and how they are written anew.

Guarantees: every command ends within the time its caller has left; errors are told apart and never read as an absent
key. `rewrite` returns only after the server itself counted a new dump and a new append-only file and said that both
succeeded. Does not know of items.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.retry import Retry

from connectors.errors import BadConfig, StoreUnreachable, WrongCredentials
from connectors.own_files import files_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from connectors.base import Deadline
    from connectors.residue import Hits, Needles

_TIMEOUTS = (60.0, 15.0, 5.0, 1.0)
_LOOK_SECONDS = 0.02
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REFUSED = ("NOAUTH", "WRONGPASS")
_UNNAMED: dict[str, None] = (
    {"driver_info": None} if hasattr(redis, "DriverInfo") else {"lib_name": None, "lib_version": None}
)
"""The driver does not tell the server its version, for which it would read its package's metadata at each opening."""
_CLUSTER = (MovedError, ClusterCrossSlotError, ClusterDownError)


class KeysRefused(WrongCredentials):
    """The user is known and may not touch one of the keys, or not by this command; others may be his."""

    def __init__(self) -> None:
        super().__init__("redis", "the store refused the credentials for a key or a command")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """Whether the server's files hold nothing older than now, and what it counted."""

    is_done: bool
    detail: str
    counts: Mapping[str, str] = field(default_factory=dict)


class _Packer:
    """Writes a command as the protocol has it; the driver's own joins all that it has anew for every word of it."""

    @staticmethod
    def pack(*command: bytes | str | int) -> list[bytes]:
        """Return the bytes to send. Source: RESP specification, arrays of bulk strings."""
        if not any(type(word) is bytes for word in command):
            # The usual case: texts and numbers. One encoding does for all, and lengths are those of the texts.
            texts = [*str(command[0]).split(), *[word if type(word) is str else str(word) for word in command[1:]]]
            written = "".join([f"${len(word)}\r\n{word}\r\n" for word in texts])
            if written.isascii():
                return [f"*{len(texts)}\r\n{written}".encode("ascii")]
        verb = command[0] if isinstance(command[0], bytes) else str(command[0]).encode()
        # The driver writes some verbs of two words as one.
        words = [*verb.split(), *[each if type(each) is bytes else str(each).encode() for each in command[1:]]]
        return [b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])]


class Server:
    """One database of one server, by its address."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: dict[float, Any] = {}
        try:
            parse: Any = redis.connection.parse_url
            self._settings = parse(url)
        except ValueError:
            raise BadConfig("url is of redis://host:port/database or rediss://") from None

    def client(self, limit: Deadline) -> Any:
        """Return a client whose commands end within the limit. Raises: Timeout."""
        limit.check()
        left = limit.left()
        seconds = next((each for each in _TIMEOUTS if each <= left), max(round(left, 1), 0.1))
        if seconds not in self._clients:
            client = redis.Redis.from_url(
                self._url,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                max_connections=4,
                command_packer=_Packer(),
                **_UNNAMED,
            )
            # Replies as they were sent: what the driver makes of them differs between its versions.
            client.response_callbacks.clear()
            self._clients[seconds] = client
        return self._clients[seconds]

    @contextmanager
    def guard(self, limit: Deadline) -> Iterator[None]:
        """Turn the driver's errors into ours, without its words, which may hold keys. Raises: ConnectorError."""
        try:
            yield
        except NoPermissionError:
            raise KeysRefused from None
        except (AuthenticationError, AuthorizationError):
            raise WrongCredentials("redis") from None
        except redis.TimeoutError:
            raise (limit.error() if limit.left() < 1 else StoreUnreachable("redis")) from None
        except _CLUSTER:
            raise BadConfig("url leads to a node of a cluster, which this kind does not drive") from None
        except ReadOnlyError:
            raise StoreUnreachable("redis", "it is a replica, which refuses changes") from None
        except ResponseError as error:
            word = str(error).partition(" ")[0]
            if word == "NOPERM":
                raise KeysRefused from None
            if word in _REFUSED:
                raise WrongCredentials("redis") from None
            said = {"MISCONF": "it cannot write its files and refuses changes"}
            raise StoreUnreachable("redis", said.get(word, "the server refused a command")) from None
        except RedisError:
            raise StoreUnreachable("redis") from None

    def run(self, limit: Deadline, *command: Any) -> Any:
        """Run one command. Raises: ConnectorError."""
        with self.guard(limit):
            return self.client(limit).execute_command(*command)

    def run_all(self, limit: Deadline, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Run commands in one round trip; the answers in order. Raises: ConnectorError."""
        if not commands:
            return []
        with self.guard(limit):
            pipe = self.client(limit).pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            found: list[Any] = pipe.execute()
            return found

    def info(self, limit: Deadline, section: str) -> dict[str, str]:
        """Return one section of INFO. Raises: ConnectorError."""
        answer = self.run(limit, "INFO", section)
        lines = answer.decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def setting(self, limit: Deadline, name: str) -> str | None:
        """Return a setting, None where it may not be read."""
        try:
            answer = self.run(limit, "CONFIG", "GET", name)
        except (WrongCredentials, StoreUnreachable):
            return None
        texts = [_text(each) for each in answer]
        return dict(zip(texts[::2], texts[1::2], strict=False)).get(name)

    def folder(self, limit: Deadline) -> Path | None:
        """Return where the server's files lie, None where they are on another machine or may not be read."""
        if self._settings.get("host", "localhost") not in _LOOPBACK and "path" not in self._settings:
            return None
        names = [self.setting(limit, name) for name in ("dir", "dbfilename", "appenddirname", "appendfilename")]
        if not names[0]:
            return None
        folder = Path(names[0])
        try:
            here = {entry.name for entry in folder.iterdir()}
        except OSError:
            return None
        return folder if here & {name for name in names[1:] if name} else None

    @staticmethod
    def files(folder: Path) -> list[Path]:
        """Return the server's files: dumps, append-only files, and what crashed children left."""
        return [path for path in files_below("redis", folder) if not path.is_symlink()]

    def scan(self, folder: Path, wanted: Needles, limit: Deadline) -> list[tuple[str, Hits]]:
        """Count canaries in each of the server's files. Raises: Timeout, WrongCredentials."""
        found = []
        for path in self.files(folder):
            try:
                with path.open("rb") as stream:
                    found.append((f"{path.suffix or 'plain'} file {path.stat().st_ino}", wanted.count(stream, limit)))
            except FileNotFoundError:
                continue  # the server had written a newer one
            except OSError:
                raise WrongCredentials("redis", "a file of the server may not be read") from None
        return found

    def rewrite(self, limit: Deadline) -> Rewrite:
        """Have the server write its append-only file and its dump anew, and wait for both. Raises: ConnectorError."""
        self._await_idle(limit)
        before = self.info(limit, "persistence")
        done = []
        try:
            if before.get("aof_enabled") == "1":
                self._await_counted(limit, ("BGREWRITEAOF",), "aof_rewrites")
                done.append("append-only file")
            if self._keeps_dumps(limit):
                self._await_counted(limit, ("BGSAVE", "SCHEDULE"), "rdb_saves")
                done.append("dump")
        except (StoreUnreachable, WrongCredentials) as refused:
            return Rewrite(is_done=False, detail=f"not every file was written anew: {refused.detail}")
        after = self.info(limit, "persistence")
        bad = [
            name
            for name, status in (("append-only file", "aof_last_bgrewrite_status"), ("dump", "rdb_last_bgsave_status"))
            if name in done and after.get(status) != "ok"
        ]
        if bad:
            return Rewrite(is_done=False, detail=f"the server failed to write its {' and its '.join(bad)}")
        if not self._await_removed(limit):
            return Rewrite(is_done=False, detail="the server has not removed its former append-only files yet")
        counts: dict[str, str] = {name: after[name] for name in ("aof_rewrites", "rdb_saves") if name in after}
        counts["run_id"] = self.info(limit, "server").get("run_id", "")
        said = f"{' and '.join(done)} written anew" if done else "the server keeps no files"
        return Rewrite(is_done=True, detail=said, counts=counts)

    def has_not_lost(self, limit: Deadline, evidence: Mapping[str, str]) -> bool:
        """Tell whether the server still counts the rewrites of that evidence, or was started anew since."""
        if self.info(limit, "server").get("run_id") != evidence.get("run_id"):
            return True
        now = self.info(limit, "persistence")
        return all(int(now.get(name, 0)) >= int(count) for name, count in evidence.items() if name != "run_id")

    def _keeps_dumps(self, limit: Deadline) -> bool:
        """Tell whether there is a dump, or may be one: also an old one counts, of a server that saves no more."""
        if self.setting(limit, "save") != "":
            return True
        where, name = self.setting(limit, "dir"), self.setting(limit, "dbfilename")
        if self.folder(limit) is None or not where or not name:
            # Nothing can be seen: an append-only folder alone would also be one of the server's.
            return True
        return (Path(where) / name).exists()

    def _await_idle(self, limit: Deadline) -> dict[str, str]:
        """Wait until no child of the server writes. Raises: Timeout."""
        while True:
            now = self.info(limit, "persistence")
            if not any(
                now.get(name, "0") != "0"
                for name in ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")
            ):
                return now
            time.sleep(_LOOK_SECONDS)
            limit.check()

    def _await_counted(self, limit: Deadline, command: tuple[str, ...], counter: str) -> None:
        """Run a command in the background of the server and wait until it counted one more. Raises: Timeout."""
        before = self._await_idle(limit)
        last = before.get("rdb_last_save_time")
        self.run(limit, *command)
        while True:
            now = self._await_idle(limit)
            if counter in now:
                if int(now[counter]) > int(before[counter]):
                    return
            elif counter == "aof_rewrites" or now.get("rdb_last_save_time") != last:
                return  # before Redis 7 the end is told by its state and, for dumps, by its second
            if "fail" in (now.get("rdb_last_bgsave_status"), now.get("aof_last_bgrewrite_status")):
                return
            time.sleep(_LOOK_SECONDS)
            limit.check()

    def _await_removed(self, limit: Deadline) -> bool:
        """Wait until no append-only file lies there that the manifest does not name; True where none can be seen."""
        folder = self.folder(limit)
        name = self.setting(limit, "appenddirname")
        if folder is None or not name or not (folder / name).is_dir():
            return True
        while True:
            manifests = list((folder / name).glob("*.manifest"))
            named = {line.split()[1] for path in manifests for line in path.read_text("utf-8", "replace").splitlines()}
            files = {path.name for path in (folder / name).iterdir() if path not in manifests}
            if files <= named:
                return True
            if limit.left() < 1:
                return False
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
