"""One run: makes the bed, has the oracle look, lets an eraser work, looks again and judges.

Guarantees: the oracle is another process; a place in which it finds nothing before the erasure is an error, since a
bed that holds nothing proves nothing; servers and folders of the run end with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from bench.forget.bed import Person, canary_in, people
from bench.forget.erasers import Eraser, Kept, Track
from bench.forget.places import Ground, Place
from bench.forget.places_governed import SealedThreads, ThreadFiles
from bench.forget.places_plain import Files, Redis
from bench.forget.places_rows import LangGraphPostgres, LangGraphSqlite, Pgvector, Postgres
from bench.forget.places_vectors import Chroma, Lance, Mem0, Qdrant
from bench.forget.score import Result, Seen, judged
from infra.services import postgres, redis

REPOSITORY = Path(__file__).resolve().parents[2]
PLACES: Mapping[str, type[Place]] = {
    each.name: each
    for each in (
        LangGraphSqlite, LangGraphPostgres, Chroma, Qdrant, Lance, Pgvector, Mem0, Postgres, Redis, Files,
    )
}  # fmt: skip

MORE_PLACES: Mapping[str, type[Place]] = {each.name: each for each in (ThreadFiles, SealedThreads)}
"""Shapes of storage that make erasure easy: beside the ten, on request, and in no score of theirs."""


class BedIsEmpty(Exception):
    """The oracle found nothing of the person before the erasure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the eraser itself keeps of the person after the erasure."""

    kept: Kept
    hits: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything a run found."""

    eraser: str
    track: Track
    seed: int
    results: Sequence[Result]
    notes: Sequence[str]
    record: Record | None


@contextmanager
def bed(seed: int, names: Sequence[str], *, empty: bool = False) -> Iterator[tuple[Path, list[Place], dict[str, Any]]]:
    """Yields the folder of a run, its places, filled unless `empty`, and the people of each."""
    with ExitStack() as stack:
        # Below the system's folder, where PostgreSQL's own user may enter.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forget-")))
        folder.chmod(0o711)
        ground = Ground(
            folder=folder / "stores" / "bench", seed=seed, postgres=_databases(stack, folder),
            redis=lambda: _redis(stack, folder),
        )  # fmt: skip
        places, who = [], {}
        for name in names:
            place = {**PLACES, **MORE_PLACES}[name](ground)
            who[name] = people(seed, name, texts=place.texts)
            place.fill([] if empty else who[name])
            places.append(place)
        yield folder, places, who


def _databases(stack: ExitStack, folder: Path) -> Any:
    servers: list[str] = []

    def make(name: str) -> str:
        if not servers:
            url = stack.enter_context(postgres.running(folder / "postgres"))
            servers.append(url.replace("postgresql+psycopg://", "postgresql://"))
        with psycopg.connect(servers[0], autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"{servers[0].rpartition('/')[0]}/{name}"

    return make


def _redis(stack: ExitStack, folder: Path) -> tuple[str, Path]:
    made = stack.enter_context(redis.running(folder / "redis-server"))
    return made.url, made.folder


def ask_oracle(questions: Mapping[str, Any]) -> dict[str, Any]:
    """What the oracle finds, by place. Raises: RuntimeError where it could not look everywhere."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.forget.oracle"], input=json.dumps(questions), capture_output=True, text=True,
        cwd=REPOSITORY, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        message = f"the oracle could not look: {done.stderr[-2000:]}"
        raise RuntimeError(message)
    found: dict[str, Any] = json.loads(done.stdout)
    unreadable = [line for one in found.values() for line in one["unreadable"]]
    if unreadable:
        message = f"the oracle could not read {unreadable}"
        raise RuntimeError(message)
    return found


def question(place: Place, person: Person) -> dict[str, Any]:
    """What to look for in a place and where; the joint text is asked for by itself, see `joint_left`."""
    texts = {f"canary of {each.name}": word for each in place.records if each.people == (person.id,)
             for word in each.canaries}  # fmt: skip
    if not place.records:
        texts = {f"canary of {said.name}": canary_in(said.text) for said in person.said}
    vectors = {f"vector of {each.name}": each.vectors[0] for each in place.records
               if each.people == (person.id,) and each.vectors}  # fmt: skip
    if not place.records:
        vectors = {f"vector of {said.name}": tuple(said.vector) for said in person.said}
    # The name stands in a text of two as well, and in the log of a server that several places share.
    named = {} if _joint(place) else {"name of the person": person.id}
    return {**place.question(), "texts": texts | named, "later_texts": texts, "vectors": vectors}


def _joint(place: Place) -> str | None:
    return next((each.canaries[0] for each in place.records if each.role == "joint"), None)


def one(eraser: Eraser, track: Track, *, seed: int, names: Sequence[str]) -> Run:
    """Runs an eraser on a new bed. Raises: BedIsEmpty."""
    with bed(seed, names) as (folder, places, who):
        person: Person = who[names[0]][0]
        questions = {place.name: question(place, who[place.name][0]) for place in places}
        before = ask_oracle(questions)
        read = {place.name: place.read() for place in places}
        empty = [name for name, found in before.items() if not found["own"]]
        if empty:
            message = f"nothing of the person was found before the erasure in {empty}"
            raise BedIsEmpty(message)
        work = folder / "work"
        work.mkdir(mode=0o700)
        claims = eraser.erase(places, person, track, work)
        after = ask_oracle(questions)
        results = []
        for place in places:
            name = place.name
            seen = _seen(place, person, (read[name], place.read()), (before[name], after[name]))
            results.append(judged(name, claims[name], seen))
        record = _record(eraser, questions, person)
        notes = [f"{place.name}: {place.note}" for place in places if place.note]
        for place in places:
            place.close()
        return Run(eraser=eraser.name, track=track, seed=seed, results=results, notes=notes, record=record)


def _seen(
    place: Place, person: Person, given: tuple[Mapping[str, str], Mapping[str, str]], found: tuple[Any, Any]
) -> Seen:
    (read, now), (before, after) = given, found
    own = {each.name for each in place.records if each.people == (person.id,)}
    others = {each.name for each in place.records if person.id not in each.people}
    joint = next((each.name for each in place.records if each.role == "joint"), None)
    return Seen(
        before=sum(hit[3] for hit in before["own"]),
        own=after["own"],
        later=after["later"],
        by_interface=len(own & now.keys()),
        harmed=sum(now.get(name) != read[name] for name in others),
        joint_left=None if joint is None else joint in now,
    )


def _record(eraser: Eraser, questions: Mapping[str, Any], person: Person) -> Record | None:
    kept = eraser.record()
    if kept is None:
        return None
    texts = {label: text for each in questions.values() for label, text in each["texts"].items()}
    vectors = {label: vector for each in questions.values() for label, vector in each["vectors"].items()}
    asked = {"files": [str(folder) for folder in kept.folders], "texts": texts | {"name of the person": person.id},
             "vectors": vectors}  # fmt: skip
    return Record(kept=kept, hits=ask_oracle({"record": asked})["record"]["own"])


def empty_bed(seed: int, names: Sequence[str]) -> dict[str, int]:
    """A control: the hits of somebody who was never there, by place."""
    with bed(seed, names, empty=True) as (_, places, who):
        asked = {place.name: question(place, who[place.name][0]) for place in places}
        return {name: len(found["own"]) + len(found["later"]) for name, found in ask_oracle(asked).items()}
