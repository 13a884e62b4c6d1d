"""`python -m bench.forget`: see README.md beside it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.forget.erasers import Track, by_name
from bench.forget.run import MORE_PLACES, PLACES, Run, empty_bed, one
from bench.forget.score import total

TRACKS: tuple[Track, ...] = ("greenfield", "brownfield")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for and prints a table, or JSON; 1 where there was a false success or damage."""
    parser = argparse.ArgumentParser(prog="python -m bench.forget", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--places", nargs="+", choices=[*PLACES, *MORE_PLACES], default=list(PLACES), metavar="PLACE")
    parser.add_argument("--eraser", default="muniment", help="muniment, native, nothing, lying or module:Class")
    parser.add_argument("--track", choices=TRACKS, action="append", help="default: both")
    parser.add_argument("--empty", action="store_true", help="look for somebody who was never there")
    parser.add_argument("--hits", action="store_true", help="print what was found after the erasure, one by one")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.empty:
        hits = empty_bed(chosen.seed, chosen.places)
        print(json.dumps(hits))
        return 1 if any(hits.values()) else 0
    runs = [
        one(by_name(chosen.eraser), track, seed=chosen.seed, names=chosen.places) for track in chosen.track or TRACKS
    ]
    if chosen.json:
        print(json.dumps([as_json(run) for run in runs], indent=2))
    else:
        print("\n".join(line for run in runs for line in lines(run, hits=chosen.hits)))
    return 1 if any(result.verdict.isupper() for run in runs for result in run.results) else 0


def as_json(run: Run) -> dict[str, Any]:
    """A run as JSON; hits are given by what, form, where and number."""
    return {
        "eraser": run.eraser,
        "track": run.track,
        "seed": run.seed,
        "score": round(total(run.results), 1),
        "places": [
            {"place": result.place, "verdict": result.verdict, "because": result.because,
             "claim": asdict(result.claim), "before": result.seen.before, "own_hits": result.seen.own_hits,
             "log_hits": result.seen.later_hits, "by_interface": result.seen.by_interface,
             "harmed": result.seen.harmed, "joint_left": result.seen.joint_left,
             "hits": [*result.seen.own, *result.seen.later]}
            for result in run.results
        ],
        "record": None if run.record is None else {
            "sound": run.record.kept.sound, "notices_a_changed_byte": run.record.kept.notices,
            "missed": list(run.record.kept.missed),
            "note": run.record.kept.note, "hits": list(run.record.hits),
        },
        "notes": list(run.notes),
    }  # fmt: skip


def lines(run: Run, *, hits: bool = False) -> list[str]:
    """A run as a table, the worst first."""
    found = [f"{run.eraser}, {run.track}, seed {run.seed}: {total(run.results):.1f} of 100"]
    order = ("FALSE SUCCESS", "DAMAGE", "honestly not covered", "erased, L1", "erased, L2", "erased, L2, dated")
    ranked = sorted(run.results, key=lambda each: order.index(each.verdict) if each.verdict in order else len(order))
    for result in ranked:
        seen = result.seen
        joint = (
            ""
            if seen.joint_left is None
            else f"; joint text {'left' if seen.joint_left else 'gone'}, said: " + (result.claim.joint)
        )
        found.append(
            f"  {result.place:<20} {result.verdict:<21} hits {seen.before:>4} -> {seen.own_hits:>3}"
            f" (logs {seen.later_hits:>3})  {result.because}{joint}"
        )
        if hits:
            found += [f"      {label}: {form} in {where}, {count}×" for label, form, where, count in seen.own]
    if run.record is None:
        found.append("  record: none is kept")
    else:
        kept = run.record.kept
        found.append(
            f"  record: hits {sum(hit[3] for hit in run.record.hits)}, sound {kept.sound}, notices a changed byte"
            f" {kept.notices}{'; ' + kept.note if kept.note else ''}"
        )
        if hits:
            found += [f"      {label}: {form} in {where}, {count}×" for label, form, where, count in run.record.hits]
    return found + [f"  note: {note}" for note in run.notes]


if __name__ == "__main__":
    sys.exit(main())
