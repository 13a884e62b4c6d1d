"""Processes that read and seal for this one, so that a call of many entries is prepared on another core.

 1. This process hands over the bytes of a call. The other reads them and answers with a sheet (`registry.sheets`).
 2. This process looks up what the sheet says, in its own transaction, with its own caches and fences.
 3. It hands over the keys of this call with what is sealed under them. The other answers with ciphertexts and digests.
 4. This process sequences and stores them, with the checks that it makes of its own drafts.

Guarantees: what comes back is what `sheets.read_sheet` and `sheets.seal_sheet` return; where a process is not there,
busy for too long, silent or dead, nothing comes back and the caller does it itself: nothing was written. The other has
no database, no store, no settings, and no key but those of the order that it works on, of which it overwrites the
bytes that it was handed; like here, Python may leave copies in memory. It is started by nobody but its parent at the
first call worth it, writes no core, and ends when its parent does, however that ends.

Orders and answers lie in memory that the two share and no disk holds, and of which what was sent, who it names and keys
are overwritten once they are read; a pipe each way says that one is there. Without such memory (elsewhere than on
Linux) there is no other process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

import msgspec

from registry import sheets
from registry.entries import MalformedEntry
from registry.sheets import Content, SealedSheet, SealOrder, Sheet
from vault.cores import forbid_cores
from vault.errors import VaultError

LEAST_BYTES = 64 * 1024
"""Of a call that is worth the way: a smaller one is read and sealed where it is."""
PATIENCE_SECONDS = 20.0
"""How long a process that says nothing is waited for; the largest call takes a few seconds."""
AGAIN_SECONDS = 5.0
"""How long after one was given up no other is started in its place."""
KEPT_CALLS = 64
"""Calls between reading and sealing that a process keeps; whoever comes back too late does it again."""

_AREA_BYTES = 96 * 1024 * 1024
"""Of shared memory for each process, of which only what is used is there: six times the largest call."""
_FRAME = struct.Struct("<cQQ")
_JSON, _LINES, _SEAL, _DROP, _DONE, _NOT_DONE = b"j", b"l", b"s", b"d", b"y", b"n"
_READY = b"\x06"
_MAIN = "import sys; sys.path[:0] = {path!r}; from registry.preparing import main; main({area}, {most})"

_encode = msgspec.msgpack.Encoder().encode
_sheet = msgspec.msgpack.Decoder(Sheet)
_sealed = msgspec.msgpack.Decoder(SealedSheet)
_order = msgspec.msgpack.Decoder(SealOrder)
_Answers = msgspec.msgpack.Decoder[Sheet] | msgspec.msgpack.Decoder[SealedSheet]


class Taken:
    """A call that another process has read. Use it in a `with`: what is not sealed is forgotten there at its end."""

    def __init__(self, helper: _Helper, number: int, sheet: Sheet) -> None:
        self.sheet = sheet
        self._helper = helper
        self._number = number
        self._kept = True

    def seal(self, order: SealOrder) -> SealedSheet | None:
        """Return what is sealed of the call, once; None where the caller has to do it."""
        self._kept = False
        answer = self._helper.ask(_SEAL, self._number, _encode(order), _sealed)
        return answer if isinstance(answer, SealedSheet) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept:
            self._helper.ask(_DROP, self._number, b"", None)


class Preparing:
    """A few such processes. One instance a service; `close` ends them."""

    def __init__(
        self,
        *,
        count: int,
        most: int,
        told: Callable[[str], None] = lambda _: None,
        patience_seconds: float = PATIENCE_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        """`count` processes for calls of at most `most` items; `told` hears when one had to be given up."""
        count = count if hasattr(os, "memfd_create") else 0
        self._helpers = [_Helper(most, told, patience_seconds, again_seconds) for _ in range(count)]
        self._numbers = 0
        self._lock = threading.Lock()

    def take(self, data: bytes, *, lines: bool) -> Taken | None:
        """Return a call that another process has read; None where the caller has to do it."""
        if len(data) < LEAST_BYTES or not self._helpers:
            return None
        with self._lock:
            self._numbers += 1
            number = self._numbers
        # Of equally busy ones another each time.
        turned = number % len(self._helpers)
        helper = min((*self._helpers[turned:], *self._helpers[:turned]), key=_busy)
        sheet = helper.ask(_LINES if lines else _JSON, number, data, _sheet)
        return Taken(helper, number, sheet) if isinstance(sheet, Sheet) else None

    def start(self) -> None:
        """Start the processes now, so that the first call finds them ready."""
        for helper in self._helpers:
            helper.start()

    @property
    def pids(self) -> list[int]:
        """The processes that live."""
        return [pid for helper in self._helpers if (pid := helper.pid) is not None]

    def close(self) -> None:
        """End the processes; what comes after is prepared by the caller."""
        for helper in self._helpers:
            helper.close()


def _busy(helper: _Helper) -> int:
    return helper.waiting


class _Helper:
    """One process, asked by one thread at a time."""

    def __init__(self, most: int, told: Callable[[str], None], patience: float, again: float) -> None:
        self.waiting = 0
        """Orders that have no answer yet."""
        self._counting = threading.Lock()
        self._patience = patience
        self._again = again
        self._not_before = 0.0
        self._most = most
        self._told = told
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._area: mmap.mmap | None = None
        self._parent = os.getpid()
        self._ready = False
        self._closed = False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def ask(self, kind: bytes, number: int, data: bytes, answer: _Answers | None) -> Sheet | SealedSheet | None:
        """Return the answer to an order, None where there is none."""
        if len(data) > _AREA_BYTES:
            return None
        with self._counting:
            self.waiting += 1
        try:
            with self._asking:
                return self._ask(kind, number, data, answer)
        finally:
            with self._counting:
                self.waiting -= 1

    def _ask(self, kind: bytes, number: int, data: bytes, answer: _Answers | None) -> Sheet | SealedSheet | None:
        process, area = self._running(), self._area
        if process is None or area is None or process.stdin is None or process.stdout is None:
            return None
        try:
            area[: len(data)] = data
            os.write(process.stdin.fileno(), _FRAME.pack(kind, number, len(data)))
            state, said, size = _FRAME.unpack(_exactly(process.stdout.fileno(), _FRAME.size, self._patience))
            if said != number or size > _AREA_BYTES:
                raise EOFError  # noqa: TRY301 - it speaks of something else: nothing it says counts
            if state != _DONE or answer is None:
                return None
            with memoryview(area) as whole, whole[:size] as view:
                found = answer.decode(view)
            if kind != _SEAL:  # a sheet names people
                area[:size] = bytes(size)
            return found  # noqa: TRY300 - what is decoded in time
        except (OSError, EOFError, struct.error, msgspec.MsgspecError) as error:
            self._give_up(type(error).__name__)
            return None
        except BaseException:
            # An answer that nobody reads would be taken for that of the next order.
            self._drop()
            raise

    def start(self) -> None:
        """Start the process unless it runs; not waited for."""
        with self._asking:
            self._running()

    def close(self) -> None:
        """End the process."""
        with self._asking:
            self._closed = True
            self._drop()

    def _running(self) -> subprocess.Popen[bytes] | None:
        """Return the process once it is ready; started here, and not waited for."""
        if self._closed or os.getpid() != self._parent:  # a copy of the parent must not speak into its pipes
            return None
        if self._process is None and time.monotonic() >= self._not_before:
            try:
                self._start()
            except OSError as error:
                self._give_up(type(error).__name__)
        if not self._ready and self._process is not None and self._process.stdout is not None:
            said = self._process.stdout.fileno()
            if not _is_there(said, 0):
                return None
            self._ready = os.read(said, 1) == _READY
            if not self._ready:
                self._give_up("EOFError")
        return self._process

    def _start(self) -> None:
        area = os.memfd_create("muniment-preparing")
        try:
            os.ftruncate(area, _AREA_BYTES)
            self._area = mmap.mmap(area, _AREA_BYTES)
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, with code of ours
                [sys.executable, "-I", "-c", _MAIN.format(path=sys.path, area=area, most=self._most)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(area,),
                start_new_session=True,  # a signal to us is ours: it ends when its pipe is closed
                env={},  # where secrets may stand
            )
        finally:
            os.close(area)

    def _give_up(self, why: str) -> None:
        self._drop()
        self._not_before = time.monotonic() + self._again
        self._told(why)

    def _drop(self) -> None:
        process, self._process, self._ready = self._process, None, False
        area, self._area = self._area, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if area is not None:
            area.close()


def main(area_fd: int, most: int) -> None:
    """Be the other process: answer orders until the pipe is closed."""
    forbid_cores()
    area = mmap.mmap(area_fd, _AREA_BYTES)
    os.close(area_fd)
    kept: dict[int, list[Content]] = {}
    with contextlib.suppress(EOFError, OSError):
        os.write(1, _READY)
        while True:
            kind, number, size = _FRAME.unpack(_exactly(0, _FRAME.size, None))
            data = area[:size]
            area[:size] = bytes(size)
            answer = _answer(kind, number, data, kept, most)
            del data
            if answer is not None and len(answer) <= _AREA_BYTES:
                area[: len(answer)] = answer
                os.write(1, _FRAME.pack(_DONE, number, len(answer)))
            else:
                os.write(1, _FRAME.pack(_NOT_DONE, number, 0))
            del answer


def _answer(kind: bytes, number: int, data: bytes, kept: dict[int, list[Content]], most: int) -> bytes | None:
    try:
        if kind in (_JSON, _LINES):
            found = sheets.read_sheet(data, lines=kind == _LINES, most=most)
            if found is None:
                return None
            sheet, contents = found
            while len(kept) >= KEPT_CALLS:
                del kept[next(iter(kept))]
            kept[number] = contents
            return _encode(sheet)
        if kind == _DROP or number not in kept:
            return None
        return _encode(sheets.seal_sheet(kept[number], _order.decode(data)))
    except (MalformedEntry, VaultError, msgspec.MsgspecError, ValueError, RecursionError):
        # Whatever is odd is judged by the process that answers for it.
        return None
    finally:
        if kind not in (_JSON, _LINES):
            kept.pop(number, None)


def _is_there(pipe: int, seconds: float | None) -> bool:
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))


def _exactly(pipe: int, count: int, seconds: float | None) -> bytes:
    """Read so many bytes. Raises: EOFError at the end, TimeoutError (an OSError) after so many seconds of silence."""
    pieces: list[bytes] = []
    while count:
        if seconds is not None and not _is_there(pipe, seconds):
            raise TimeoutError
        pieces.append(os.read(pipe, count))
        if not pieces[-1]:
            raise EOFError
        count -= len(pieces[-1])
    return b"".join(pieces)


__all__ = ["LEAST_BYTES", "Preparing", "Taken", "main"]
