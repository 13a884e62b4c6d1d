"""What the record costs once it is written: its size, its full verification, a key rotation, a checkpoint.

One embedded log is filled through the product's own write path, everything on (sealing, dictionary compression,
skeletons, index, file store with fsync). Then, in one run:

- storage       bytes on disk (payload, batches, tiles, checkpoints, database, unlocked store) beside the same bodies
                compressed by zstd alone; the aim is ≤ 1.35 × that + 450 bytes an entry
- verification  `muniment verify` over every byte, beside `openssl dgst -sha256` over the same files of the bucket, in
                turn; the aim is ≥ 0.30 ×
- rotation      `Vault.rotate_groups` of full groups: keys wrapped anew a second; the aim is ≥ 100,000
- checkpoint    from the acknowledgement to a signed checkpoint that covers it; the aim is ≤ 1.5 s

Medians; absolute figures do not carry over to another machine. Run: `python bench/record.py [--entries N]`.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import zstandard

# The programs beside this one are named like our packages; the repository comes first.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlmodel import select  # noqa: E402

from api import administration, folder, migrate  # noqa: E402
from api.settings import load  # noqa: E402
from api.wiring import Services, build  # noqa: E402
from bench.ingest import entries_of  # noqa: E402
from ledger.entry import Kind  # noqa: E402
from registry.acting import Acting  # noqa: E402
from vault.models import KeyGroup  # noqa: E402
from vault.wrapping import KeySpec  # noqa: E402

ROUNDS = 5
GROUPS = 100
KEYS_A_GROUP = 1_000


def size_of(*places: Path) -> int:
    """Return the bytes of all files below these places, as the disk counts them for their length."""
    return sum(file.stat().st_size for place in places for file in place.rglob("*") if file.is_file())


def fill(services: Services, acting: Acting, entries: int, call: int) -> tuple[float, list[bytes]]:
    """Append entries; return the seconds and the bodies."""
    generator = random.Random(1)
    bodies: list[bytes] = []
    took = 0.0
    for _ in range(entries // call):
        made = entries_of(call, generator)
        bodies += [msgspec.json.encode(one["body"]) for one in made]
        raw = [msgspec.json.encode(one) for one in made]
        begun = time.perf_counter()
        services.record.append(acting, raw, services.clock.now())
        took += time.perf_counter() - begun
    services.log.publish(acting.tenant_id, services.clock.now())
    return took, bodies


def storage(data: Path, log_id: str, bodies: Sequence[bytes]) -> None:
    """Print what is on disk beside what zstd makes of the bodies."""
    plain = sum(map(len, bodies))
    alone = zstandard.ZstdCompressor(level=3)
    packed = sum(len(alone.compress(body)) for body in bodies)
    count = len(bodies)
    parts = {name: size_of(data / "objects" / log_id / name) for name in ("payload", "batch", "checkpoint", "keys")}
    parts["index objects"] = size_of(data / "objects" / log_id) - sum(parts.values())
    parts["database"] = sum(file.stat().st_size for file in data.glob("muniment.db*"))
    parts["unlocked store"] = size_of(data / "hot")
    whole = sum(parts.values())
    aim = 1.35 * packed + 450 * count
    print(
        f"storage: {whole / count:,.0f} bytes an entry; bodies {plain / count:,.0f}, zstd alone {packed / count:,.0f}"
    )
    print("  " + ", ".join(f"{name} {size / count:,.0f}" for name, size in parts.items()))
    over = (whole - 1.35 * packed) / count
    print(f"  {whole / aim:.2f} × the aim of 1.35 × zstd + 450 ({over:,.0f} bytes an entry beside 1.35 × zstd)")


def verification(data: Path, log_id: str, vkey: str) -> None:
    """Print the rate of a full verification beside openssl's over the same files, by the clock and by processor time.

    One log is one chain of batches and is verified by one process; openssl gets one too, so cores compare with cores.
    """
    bucket = data / "objects" / log_id
    files = sorted(str(file) for file in bucket.rglob("*") if file.is_file())
    size = sum(Path(file).stat().st_size for file in files)
    program = str(Path(sys.executable).with_name("muniment"))
    commands = {
        "openssl": ["openssl", "dgst", "-sha256", *files],
        "verify": [program, "verify", "--data", str(data), "--key", vkey, "--json"],
        "start": [program, "verify", "--data", str(data / "nothing"), "--json"],
    }
    wall: dict[str, list[float]] = {name: [] for name in commands}
    used: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):
        for name, command in commands.items():
            before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if name == "verify" and '"sound"' not in done.stdout:
                message = f"verify: {done.stdout[:500]} {done.stderr[:500]}"
                raise SystemExit(message)
            wall[name].append(time.perf_counter() - begun)
            used[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    for shown, found in (("by the clock", wall), ("by processor time", used)):
        middle = {name: statistics.median(values) for name, values in found.items()}
        mine = size / max(middle["verify"] - middle["start"], 1e-9)
        theirs = size / middle["openssl"]
        rates = f"{mine / 1e6:,.0f} MB/s without the start of the program, openssl {theirs / 1e6:,.0f} MB/s"
        print(f"verification {shown}: {rates}, {size / 1e6:,.0f} MB: {mine / theirs:.2f} × openssl dgst (aim 0.30)")


def rotation(services: Services, tenant_id: int) -> None:
    """Print how many keys a second are wrapped anew."""
    with services.database.transaction(tenant_id) as session:
        for group in range(GROUPS):
            first = 10_000 + group * KEYS_A_GROUP
            people = range(first, first + KEYS_A_GROUP)
            specs = [KeySpec(subject_id=person, data_class="transcript", month="2026-05") for person in people]
            services.vault.keys_for(session, tenant_id, specs)
    rates = []
    for _ in range(3):
        begun = time.perf_counter()
        with services.database.transaction(tenant_id) as session:
            now = services.clock.now()
            groups = session.exec(select(KeyGroup.group_no).where(KeyGroup.tenant_id == tenant_id)).all()
            report = services.vault.rotate_groups(session, tenant_id, groups, now, timedelta(days=7), force=True)
        rates.append(sum(group.rewrapped for group in report.rotated) / (time.perf_counter() - begun))
    print(f"rotation: {statistics.median(rates):,.0f} keys/s wrapped anew and committed (aim 100,000)")


def checkpoint(services: Services, acting: Acting) -> None:
    """Print how long after its acknowledgement an entry is under a signed checkpoint, by the job's own tick."""
    waits = []
    for number in range(5):
        services.record.event(acting.tenant_id, Kind.TOKEN_MINTED, {"number": number}, services.clock.now())
        begun = time.perf_counter()
        services.log.publish(acting.tenant_id, services.clock.now())
        waits.append(time.perf_counter() - begun)
    print(f"checkpoint: signed {statistics.median(waits) * 1000:.0f} ms after it is asked for")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--entries", type=int, default=40_000)
    parser.add_argument("--call", type=int, default=1_000)
    chosen = parser.parse_args()
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="muniment-bench-") as name:
        data = Path(name) / "data"
        folder.make(data)
        services = build(load(data))
        migrate.upgrade(services.database)
        services.lease.take(services.clock.now(), force=True)
        made = administration.create_tenant(services, "default")
        folder.mark_initialised(data)
        (acting,) = services.tenants()
        took, bodies = fill(services, acting, chosen.entries, chosen.call)
        print(
            f"{chosen.entries} entries of 1 KB, load {os.getloadavg()[0]:.1f}: {chosen.entries / took:,.0f} entries/s"
        )
        services.database.truncate_wal()
        storage(data, acting.log_id, bodies)
        verification(data, acting.log_id, made.log_key)
        checkpoint(services, acting)
        rotation(services, acting.tenant_id)
        services.close()


if __name__ == "__main__":
    main()
