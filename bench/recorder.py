"""What `Recorder.record` costs a call, beside the least that a durable line could cost: encode and `os.write`.

Prints medians of rounds run in turn, and ratios: absolute figures do not carry over to another machine. A round whose
yardstick is over 1.5 times its own median is dropped. Run: `python bench/recorder.py [--calls N] [--rounds N]`.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from muniment import Recorder

BODY = {"role": "user", "content": "x" * 850, "turn": 7}


def timed(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """Return the p50 and p99 of one call in microseconds."""
    times = []
    for _ in range(calls):
        begun = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begun)
    times.sort()
    return times[len(times) // 2] / 1000, times[len(times) * 99 // 100] / 1000


def baseline_round(folder: Path, calls: int) -> tuple[float, float]:
    """Return p50 and p99 of encoding the body and appending it to a file."""
    fd = os.open(folder / "baseline", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    encode = msgspec.json.encode
    try:
        return timed(lambda: os.write(fd, encode(BODY)), calls)
    finally:
        os.close(fd)
        (folder / "baseline").unlink()


def recorder_round(folder: Path, calls: int) -> tuple[float, float]:
    """Return p50 and p99 of recording the body, with nobody to ship to."""
    recorder = Recorder("http://127.0.0.1:9", "t", spool=folder / "spool", max_bytes=1 << 30, linger=60)
    try:
        figures = timed(lambda: recorder.record(kind="turn.user", stream="c", body=BODY, subjects=("user:1",)), calls)
        if recorder.stats().dropped:
            raise SystemExit("records were dropped: fewer calls, please")
        return figures
    finally:
        recorder.close(0)
        for path in (folder / "spool").glob("seg-*"):
            path.unlink()


def under_load(round_of: Callable[[Path, int], tuple[float, float]], folder: Path, calls: int) -> tuple[float, float]:
    """Return the same with two other threads busy in Python, which is what an agent's process looks like."""
    done = threading.Event()

    def burn() -> None:
        while not done.is_set():
            sum(range(500))

    threads = [threading.Thread(target=burn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        return round_of(folder, calls)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def report(name: str, baseline: list[tuple[float, float]], recorder: list[tuple[float, float]]) -> None:
    """Print the medians of the rounds and their ratios."""
    middle = statistics.median(p50 for p50, _ in baseline)
    kept = [(a, b) for a, b in zip(baseline, recorder, strict=True) if a[0] <= 1.5 * middle]
    figures = [statistics.median(pair[side][which] for pair in kept) for side in (0, 1) for which in (0, 1)]
    print(
        f"{name}: os.write p50 {figures[0]:.2f} us p99 {figures[1]:.2f} us, "
        f"record() p50 {figures[2]:.2f} us p99 {figures[3]:.2f} us, "
        f"ratio p50 {figures[2] / figures[0]:.2f} p99 {figures[3] / figures[1]:.2f} ({len(kept)} rounds)"
    )


def main() -> None:
    """Run the rounds in turn and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        quiet = [(baseline_round(folder, options.calls), recorder_round(folder, options.calls))
                 for _ in range(options.rounds)]  # fmt: skip
        report("alone", [pair[0] for pair in quiet], [pair[1] for pair in quiet])
        busy = [(under_load(baseline_round, folder, 400), under_load(recorder_round, folder, 400))
                for _ in range(options.rounds)]  # fmt: skip
        report("2 busy threads", [pair[0] for pair in busy], [pair[1] for pair in busy])


if __name__ == "__main__":
    main()
