"""One changed byte anywhere in what a service wrote: every object, the index in the database, the lines for a rebuild.

126 changes in `make test` (and 500 in `test_audit_verify`), 10,000 at full length. Each must be noticed, name its
place, and be called nothing else.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.verification import logs_of, read_only, stores_of, verify_log
from audit.findings import Finding, Report, Verdict
from audit.verify import Options
from ledger.batches import decode_batch
from ledger.entry import decode_header
from tests.audit.test_audit_service import Kept, kept, record

__all__ = ["kept"]
_COLUMNS = (
    "entry_id", "batch_first", "stream_no", "position", "kind", "data_class", "class_version", "run_no", "set_id", "at",
    "received", "digest", "noncanonical",
)  # fmt: skip


@pytest.fixture
def written(kept: Kept) -> Kept:
    """A log with several batches, heads, payload objects and full tiles."""
    for number in range(4):
        record(kept, f"conv_{10 + number}", [f"text {number} {place}" for place in range(75)], subject=f"user:{number}")
        kept.services.log.publish(kept.acting.tenant_id, kept.services.clock.now() + timedelta(seconds=number))
    return kept


class Auditor:
    """`muniment verify` over one folder, without starting the command each time."""

    def __init__(self, made: Kept) -> None:
        self.settings = made.services.settings
        self.key = made.made.log_key
        self.certificate_key = made.made.certificate_key
        self.log_id = made.acting.log_id

    def look(self) -> Report:
        with stores_of(self.settings) as (bucket, hot), read_only(self.settings) as sessions:
            (log,) = logs_of(self.settings, sessions, bucket)
            options = Options(known_size=log.size)
            return verify_log(
                log, bucket=bucket, hot=hot, keys=[self.key], certificate_keys=[self.certificate_key],
                options=options, sessions=sessions, index=True,
            )  # fmt: skip


def spans(made: Kept) -> dict[str, tuple[int, int]]:
    found = {}
    for path in made.batches():
        batch = decode_batch(path.read_bytes())
        found[path.name] = (batch.first, batch.end)
    return found


def places(made: Kept) -> dict[str, list[int]]:
    """The entries whose parts lie in each payload object, by its name."""
    found: dict[str, list[int]] = {}
    for path in made.batches():
        batch = decode_batch(path.read_bytes())
        for number, raw in enumerate(batch.headers):
            for part in decode_header(raw).parts:
                found.setdefault(part.object, []).append(batch.first + number)
    return found


def changed(path: Path, chance: random.Random) -> bytes:
    """Change one byte of a file to another; returns what it was."""
    before = path.read_bytes()
    raw = bytearray(before)
    at = chance.randrange(len(raw))
    raw[at] ^= chance.randrange(1, 256)
    path.chmod(0o600)
    path.write_bytes(raw)
    return before


def is_named(findings: tuple[Finding, ...], kind: str, path: Path, made: Kept, known: dict[str, Any]) -> bool:
    """Whether the findings name this object, or an entry in it."""
    indexes = {finding.index for finding in findings}
    if kind == "batch":
        first, end = known["spans"][path.name]
        return any(index is not None and first <= index < end for index in indexes)
    if kind == "payload":
        wanted = known["places"]["/".join(path.parts[-3:])]
        return bool(indexes & set(wanted))
    return any(finding.object is not None and finding.object.endswith(path.name) for finding in findings)


@pytest.mark.scenario("L1")
@pytest.mark.timeout(3000)
def test_a_changed_byte_in_any_object_is_noticed_named_and_called_nothing_else(
    written: Kept, full_length: bool
) -> None:
    auditor = Auditor(written)
    assert auditor.look().verdict is Verdict.SOUND
    known = {"spans": spans(written), "places": places(written)}
    base = written.folder / "objects" / written.acting.log_id
    hot = written.folder / "hot" / written.acting.log_id
    groups = {
        "batch": written.batches(),
        "payload": written.payloads(),
        "checkpoint": sorted((base / "checkpoint").iterdir()),
        "index": sorted((hot / "index").iterdir()),
        "tile": sorted(path for path in (hot / "tile").rglob("*") if path.is_file()),
    }
    assert all(groups.values()), {kind: len(paths) for kind, paths in groups.items()}
    chance = random.Random(20261130)
    seen: Counter[str] = Counter()
    for number in range(6_000 if full_length else 100):
        kind = list(groups)[number % len(groups)]
        path = chance.choice(groups[kind])
        before = changed(path, chance)
        report = auditor.look()
        path.write_bytes(before)
        assert report.verdict is Verdict.ALTERED, (kind, path, report.verdict, report.findings[:3])
        assert is_named(report.findings, kind, path, written, known), (kind, path, report.findings[:3])
        assert {finding.verdict for finding in report.findings} == {Verdict.ALTERED}, (kind, report.findings[:3])
        seen[kind] += 1
    assert auditor.look().verdict is Verdict.SOUND
    print(dict(seen))


def other(value: Any, chance: random.Random) -> Any:
    """The value with one byte of it changed."""
    if value is None:
        return chance.randrange(1, 256)
    if isinstance(value, bool | int):
        return int(value) ^ (1 << chance.randrange(8))
    raw = bytearray(value if isinstance(value, bytes) else str(value).encode())
    raw[chance.randrange(len(raw))] ^= chance.randrange(1, 128)
    return bytes(raw) if isinstance(value, bytes) else raw.decode("latin-1")


@pytest.mark.timeout(3000)
def test_a_changed_byte_in_any_index_row_is_noticed_and_named_by_its_entry(written: Kept, full_length: bool) -> None:
    auditor = Auditor(written)
    engine = written.services.database.engine
    tenant = written.acting.tenant_id
    with engine.begin() as connection:
        rows = connection.execute(
            sa.text(f"SELECT idx, {', '.join(_COLUMNS)} FROM entry WHERE tenant_id = :t"), {"t": tenant}
        ).mappings()
        stored = {row["idx"]: dict(row) for row in rows}
    chance = random.Random(20261201)
    for number in range(4_000 if full_length else 26):
        column = _COLUMNS[number % len(_COLUMNS)]
        idx = chance.choice(sorted(stored))
        before = stored[idx][column]
        after = other(before, chance)
        write = sa.text(f"UPDATE entry SET {column} = :v WHERE tenant_id = :t AND idx = :i")
        with engine.begin() as connection:
            connection.execute(write, {"v": after, "t": tenant, "i": idx})
        report = auditor.look()
        with engine.begin() as connection:
            connection.execute(write, {"v": before, "t": tenant, "i": idx})
        assert [(one.verdict, one.object, one.index) for one in report.findings] == [(Verdict.ALTERED, "entry", idx)], (
            column,
            before,
            after,
            report.findings[:3],
        )
    assert auditor.look().verdict is Verdict.SOUND


@pytest.mark.timeout(3000)
def test_a_changed_byte_in_what_keys_seal_is_noticed_and_named_by_entries_of_the_row(
    written: Kept, full_length: bool
) -> None:
    auditor = Auditor(written)
    engine = written.services.database.engine
    names = ("tenant_id", "start", "key_id", "part", "places")
    row_is = " AND ".join(f"{name} = :{name}" for name in names[:4])
    with engine.begin() as connection:
        query = sa.text("SELECT * FROM part_places WHERE tenant_id = :t ORDER BY start, key_id, part")
        stored = [dict(row) for row in connection.execute(query, {"t": written.acting.tenant_id}).mappings()]
    chance = random.Random(20261202)
    for number in range(1_000 if full_length else 8):
        column = names[1 + number % 4]
        before = chance.choice(stored)
        after = {**before, column: other(before[column], chance)}
        with engine.begin() as connection:
            connection.execute(sa.text(f"DELETE FROM part_places WHERE {row_is}"), before)
            insert = sa.text(f"INSERT OR IGNORE INTO part_places VALUES ({', '.join(f':{name}' for name in names)})")
            connection.execute(insert, after)
        report = auditor.look()
        with engine.begin() as connection:
            # Where it met another row of the same key, nothing was written.
            if not any(row is not before and all(row[name] == after[name] for name in names[:4]) for row in stored):
                connection.execute(sa.text(f"DELETE FROM part_places WHERE {row_is}"), after)
            connection.execute(insert, before)
        inside = {before["start"] + place for place in json.loads(before["places"])}
        told = [(one.verdict, one.object) for one in report.findings]
        assert set(told) == {(Verdict.ALTERED, "entry")}, (column, before, after, report.findings[:3])
        assert inside & {one.index for one in report.findings}, (column, before, after)
    assert auditor.look().verdict is Verdict.SOUND


def test_a_row_that_was_added_is_noticed_wherever_it_stands_and_whatever_it_names(written: Kept) -> None:
    """One that named no entry of its own batch was passed over, although questions by key find what it names."""
    auditor = Auditor(written)
    engine, tenant = written.services.database.engine, written.acting.tenant_id
    end = written.services.log.head(tenant).size
    added = {"t": tenant, "k": "0" * 32}
    for start, places, named in (
        (5, f"[{end - 6}]", ("entry", 5)),
        (5, f"[{end}]", ("entry", 5)),
        (5, "[-5]", ("entry", 5)),
        (5, "[]", ("entry", 5)),
        (5, "[", ("entry", 5)),
        (-7, "[12]", ("part_places", -7)),
        (end, "[-5]", ("part_places", end)),
        ("x", "[0]", ("part_places", None)),
    ):
        with engine.begin() as connection:
            insert = "INSERT INTO part_places (tenant_id, start, key_id, part, places) VALUES (:t, :s, :k, 0, :p)"
            connection.execute(sa.text(insert), {**added, "s": start, "p": places})
        report = auditor.look()
        with engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM part_places WHERE tenant_id = :t AND key_id = :k"), added)
        assert [(one.verdict, one.object, one.index) for one in report.findings] == [(Verdict.ALTERED, *named)]
    assert auditor.look().verdict is Verdict.SOUND


def test_the_command_compares_the_index_with_all_and_says_when_it_did_not(written: Kept) -> None:
    with written.services.database.engine.begin() as connection:
        connection.execute(sa.text("UPDATE entry SET kind = 'note' WHERE idx = 7"))
    code, found = written.verify()
    assert (code, found["verdict"]) == (0, "sound")
    assert any("--all does" in note for log in found["logs"] for note in log["notes"])
    code, found = written.verify("--all")
    assert (code, found["verdict"]) == (1, "altered")
    assert [(one["verdict"], one["index"]) for one in found["findings"]] == [("altered", 7)]


def test_index_rows_and_lines_that_are_gone_or_another_s_are_named(written: Kept) -> None:
    auditor = Auditor(written)
    engine = written.services.database.engine
    tenant = written.acting.tenant_id
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM entry WHERE tenant_id = :t AND idx = 3"), {"t": tenant})
        connection.execute(
            sa.text("UPDATE part_places SET key_id = :k WHERE tenant_id = :t AND start = 5 AND part = 0"),
            {"k": "0" * 32, "t": tenant},
        )
        # The same place in another spelling, a place that is not there, and what nobody can read.
        starts = list(
            connection.scalars(
                sa.text("SELECT start FROM part_places WHERE tenant_id = :t AND start > 5 AND part = 1 LIMIT 3"),
                {"t": tenant},
            )
        )
        for start, places in zip(starts, ("[0 ]", "[0,1]", "["), strict=True):
            connection.execute(
                sa.text("UPDATE part_places SET places = :p WHERE tenant_id = :t AND start = :s AND part = 0"),
                {"p": places, "t": tenant, "s": start},
            )
    report = auditor.look()
    found = [(one.verdict, one.index) for one in report.findings]
    assert found[:2] == [(Verdict.MISSING, 3), (Verdict.ALTERED, 5)]
    # These rows tell of many entries each: all are named that one of them says something else of.
    assert {max(start for start in starts if start <= (index or 0)) for _, index in found[2:]} == set(starts)
    assert {verdict for verdict, _ in found[2:]} == {Verdict.ALTERED}
    assert report.exit_code == 1
    lines = sorted((written.folder / "hot" / written.acting.log_id / "index").iterdir())
    lines[2].unlink()
    lines[4].write_bytes(lines[3].read_bytes())
    named = {(one.verdict, one.object) for one in auditor.look().findings if one.object != "entry"}
    prefix = f"{written.acting.log_id}/index/"
    assert named == {(Verdict.MISSING, prefix + lines[2].name), (Verdict.ALTERED, prefix + lines[4].name)}
