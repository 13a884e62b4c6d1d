"""The judge: looks for canaries and vectors in every byte of a bed's files, in a process of its own.

It shares no code with what it judges. Run as `python -m bench.forget.oracle`, it reads JSON on standard input and
writes JSON on standard output: for each place the hits in the store's own files (`own`) and in its logs (`later`),
and what could not be read. It sees

- texts as UTF-8, UTF-16, lower and upper case, JSON and URL escapes, hexadecimal, base64 at three alignments, and as
  the compressors of PostgreSQL (pglz) and Redis (LZF) leave a word that came for the first time;
- vectors by their first numbers: float32 and float64, as given and at length one, big-endian doubles as pickles have
  them, and their decimals;
- the same inside gzip, zlib and zstd streams that begin anywhere in a file;
- names of files; every row that a PostgreSQL or Redis server still gives out; every column of every Lance data file,
  whichever version it belongs to.

It does not see what is encrypted, and no disk blocks that the file system freed.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
import urllib.parse
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEAD = 6
"""So many numbers of a vector are looked for: an index may cut or pad its end."""
MOST = 64 * 1024 * 1024
"""Bytes that one compressed stream may become."""
_MAGIC = {"gzip": b"\x1f\x8b\x08", "zstd": b"\x28\xb5\x2f\xfd", "zlib": b"\x78"}
_ZLIB_SECOND = b"\x01\x5e\x9c\xda"


class Needles:
    """Byte forms of what is looked for."""

    def __init__(self, texts: Mapping[str, str], vectors: Mapping[str, Sequence[float]]) -> None:
        self.plain: dict[bytes, tuple[str, str]] = {}
        self.broken: list[tuple[_Broken, str, str]] = []
        for label, text in texts.items():
            for form, needle in _of_text(text):
                self.plain.setdefault(needle, (label, form))
            self.broken += [(broken, label, form) for form, broken in _compressed(text)]
        for label, vector in vectors.items():
            for form, needle in _of_vector(vector):
                self.plain.setdefault(needle, (label, form))

    def hits(self, content: bytes) -> Counter[tuple[str, str]]:
        """How often each thing is found, by its label and form."""
        found: Counter[tuple[str, str]] = Counter()
        for needle, told in self.plain.items():
            if count := content.count(needle):
                found[told] += count
        for broken, label, form in self.broken:
            if count := broken.count(content):
                found[label, form] += count
        return found


def _of_text(text: str) -> Iterator[tuple[str, bytes]]:
    raw = text.encode()
    yield "utf-8", raw
    yield "lower", text.lower().encode()
    yield "upper", text.upper().encode()
    yield "utf-16-le", text.encode("utf-16-le")
    yield "utf-16-be", text.encode("utf-16-be")
    yield "json", json.dumps(text)[1:-1].encode()
    yield "url", urllib.parse.quote(text, safe="").encode()
    yield "hex", raw.hex().encode()
    yield "HEX", raw.hex().upper().encode()
    for shift in range(3):
        # Only whole groups of three bytes are the same whatever stands before and behind.
        begin = -shift % 3
        inner = raw[begin : begin + (len(raw) - begin) // 3 * 3]
        if len(inner) >= 9:
            whole = base64.b64encode(inner)
            yield f"base64+{shift}", whole
            yield f"base64url+{shift}", whole.translate(bytes.maketrans(b"+/", b"-_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Broken:
    """A word that a compressor left as literals, with one byte of its own between two pieces.

    `flags` are the values that each such byte may have.
    """

    pieces: tuple[bytes, ...]
    flags: tuple[range, ...]

    def count(self, content: bytes) -> int:
        """How often it stands in some bytes; the longest piece is looked for, then what stands around it."""
        longest = max(range(len(self.pieces)), key=lambda number: len(self.pieces[number]))
        before = sum(len(piece) + 1 for piece in self.pieces[:longest])
        found, at = 0, content.find(self.pieces[longest])
        while at >= 0:
            found += at >= before and self._stands(content, at - before)
            at = content.find(self.pieces[longest], at + 1)
        return found

    def _stands(self, content: bytes, at: int) -> bool:
        for number, piece in enumerate(self.pieces):
            if number:
                if at >= len(content) or content[at] not in self.flags[number - 1]:
                    return False
                at += 1
            if not content.startswith(piece, at):
                return False
            at += len(piece)
        return True


def _compressed(text: str) -> Iterator[tuple[str, _Broken]]:
    raw = text.encode()
    for first in range(1, 9):  # pglz puts a byte of flags before each eight items; eight literals make it zero
        pieces = (raw[:first], *(raw[at : at + 8] for at in range(first, len(raw), 8)))
        flags = tuple(range(1) if len(piece) == 8 else range(256) for piece in pieces[1:])
        yield "pglz", _Broken(pieces=pieces, flags=flags)
    for at in range(1, len(raw)):  # LZF puts a byte of less than 32 before each run of at most 32 literals
        yield "lzf", _Broken(pieces=(raw[:at], raw[at:]), flags=(range(32),))


def _of_vector(vector: Sequence[float]) -> Iterator[tuple[str, bytes]]:
    norm = math.sqrt(sum(number * number for number in vector)) or 1.0
    given, unit = list(vector[:HEAD]), [number / norm for number in vector[:HEAD]]
    single = [struct.unpack("<f", struct.pack("<f", number))[0] for number in unit]
    for form, numbers in (("given", given), ("unit", unit), ("unit, from float32", single)):
        yield f"float64, {form}", struct.pack(f"<{len(numbers)}d", *numbers)
        yield f"pickle, {form}", b"".join(b"G" + struct.pack(">d", number) for number in numbers)
        yield f"decimals, {form}", ",".join(repr(number) for number in numbers).encode()
        yield f"decimals with spaces, {form}", ", ".join(repr(number) for number in numbers).encode()
    yield "float32, given", struct.pack(f"<{len(given)}f", *given)
    yield "float32 big-endian, given", struct.pack(f">{len(given)}f", *given)
    # The last bit of a division differs between libraries, so one number less exact is found by its neighbours.
    for turn in (-1, 0, 1):
        yield f"float32, unit{turn:+d}", b"".join(_nudged(number, turn) for number in unit)
    for at in range(0, HEAD - 2, 3):
        yield f"float32, unit, numbers {at} to {at + 2}", struct.pack("<3f", *unit[at : at + 3])


def _nudged(number: float, turn: int) -> bytes:
    bits = struct.unpack("<i", struct.pack("<f", number))[0]
    return struct.pack("<i", bits + turn)


def inflated(content: bytes) -> Iterator[tuple[str, bytes]]:
    """What the compressed streams in some bytes hold, wherever they begin."""
    for form, magic in _MAGIC.items():
        at = content.find(magic)
        while at >= 0:
            if form != "zlib" or content[at + 1 : at + 2] in {bytes([one]) for one in _ZLIB_SECOND}:
                piece = _inflate(form, memoryview(content)[at:])
                if len(piece) > 3:
                    yield f"{form} at {at}", piece
            at = content.find(magic, at + 1)


def _inflate(form: str, content: memoryview) -> bytes:
    if form == "zstd":
        import zstandard

        try:
            return zstandard.ZstdDecompressor().decompressobj().decompress(content)[:MOST]
        except zstandard.ZstdError:
            return b""
    try:
        return zlib.decompressobj(31 if form == "gzip" else 15).decompress(content, MOST)
    except zlib.error:
        return b""


def _files(roots: Sequence[str]) -> Iterator[Path]:
    for root in roots:
        path = Path(root)
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
        elif path.exists():
            yield path


def _look_at_files(roots: Sequence[str], needles: Needles, unreadable: list[str]) -> Iterator[list[Any]]:
    for path in _files(roots):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            continue  # a server removed it meanwhile
        except OSError as error:
            unreadable.append(f"{path.name}: {error.strerror}")
            continue
        for told, count in needles.hits(path.name.encode()).items():
            yield [*told, f"name of {path.name[:8]}…", count]
        for told, count in needles.hits(content).items():
            yield [*told, path.name, count]
        for where, piece in inflated(content):
            for told, count in needles.hits(piece).items():
                yield [*told, f"{path.name}, {where}", count]


def _look_at_postgres(url: str, needles: Needles) -> Iterator[list[Any]]:
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CHECKPOINT")
        tables = db.execute(
            "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace::regnamespace::text NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        ).fetchall()
        for schema, table in tables:
            query = sql.SQL("SELECT each::text FROM {} AS each").format(sql.Identifier(schema, table))
            for (row,) in db.execute(query):
                for told, count in needles.hits(row.encode()).items():
                    yield [*told, f"a row of {table}", count]


def postgres_files(url: str) -> tuple[list[str], list[str]]:
    """The folders of a database's own files, and of the server's log."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute("SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname ="
                         " current_database()").fetchone()  # fmt: skip
        db.execute("CHECKPOINT")
    if row is None:
        return [], []
    return [f"{row[0]}/base/{row[1]}"], [f"{row[0]}/pg_wal"]


def _look_at_redis(url: str, needles: Needles) -> Iterator[list[Any]]:
    import redis

    client: Any = redis.Redis.from_url(url)
    for key in client.scan_iter():
        content = [key, client.dump(key) or b""]
        if client.type(key) == b"string":
            content.append(client.get(key) or b"")
        elif client.type(key) == b"hash":
            content += [part for pair in client.hgetall(key).items() for part in pair]
        for told, count in needles.hits(b"\n".join(content)).items():
            yield [*told, "a key of the server", count]
    client.close()


def _look_at_lance(root: str, needles: Needles) -> Iterator[list[Any]]:
    from lance.file import LanceFileReader

    for path in sorted(Path(root).rglob("data/*.lance")):
        table = LanceFileReader(str(path)).read_all().to_table()
        for name in table.column_names:
            column = table.column(name)
            values = column.to_pylist()
            for value in values:
                form = struct.pack(f"<{len(value)}f", *value) if isinstance(value, list) else str(value).encode()
                for told, count in needles.hits(form).items():
                    yield [*told, f"column {name} of a data file", count]


def judge(place: Mapping[str, Any]) -> dict[str, Any]:
    """The hits of one place. Raises: whatever a decoder raises; a bed that cannot be read is no clean bed."""
    needles = Needles(place["texts"], place["vectors"])
    logged = Needles(place.get("later_texts", place["texts"]), place["vectors"])
    own, later, unreadable = list(place.get("files", ())), list(place.get("later", ())), list[str]()
    hits: list[list[Any]] = []
    if url := place.get("postgres"):
        hits += _look_at_postgres(url, needles)
        more, logs = postgres_files(url)
        own, later = [*own, *more], [*later, *logs]
    if url := place.get("redis"):
        hits += _look_at_redis(url, needles)
    if root := place.get("lance"):
        hits += _look_at_lance(root, needles)
    hits += _look_at_files(own, needles, unreadable)
    return {
        "own": hits,
        "later": list(_look_at_files(later, logged, unreadable)),
        "files": sum(1 for _ in _files(own)),
        "unreadable": unreadable,
    }


def main() -> int:
    """Judges every place of the question."""
    asked = json.load(sys.stdin)
    json.dump({name: judge(place) for name, place in asked.items()}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
