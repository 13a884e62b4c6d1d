"""The controls of the public benchmark `bench/forget`: what a score is worth rests on them."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path

import psycopg
import pytest
import redis as client_of_redis
import zstandard

from bench.forget import __main__ as program
from bench.forget.bed import DIMENSIONS, people, vector_of
from bench.forget.erasers import Claim, Lying, Native, Nothing, by_name
from bench.forget.oracle import HEAD, judge
from bench.forget.peers import Lethe, Peer, PeerMissing, VectorForget
from bench.forget.places import Ground
from bench.forget.places_rows import Postgres
from bench.forget.run import MORE_PLACES, PLACES, BedIsEmpty, empty_bed, one
from bench.forget.score import CAP, Seen, judged, total
from infra.services import redis as redis_service

CHEAP = ("files", "qdrant")
WORD = "K7QXW2MZP4RTVB"


def judge_file(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return len(judge({"files": [str(path)], "texts": {"word": WORD}, "vectors": {}})["own"])


def test_an_eraser_that_does_nothing_scores_nothing_and_is_not_called_a_liar() -> None:
    run = one(Nothing(), "greenfield", seed=7, names=CHEAP)
    assert {result.verdict for result in run.results} == {"honestly not covered"}
    assert total(run.results) == 0
    assert all(result.seen.own_hits == result.seen.before > 0 for result in run.results)


def test_an_eraser_that_lies_is_a_false_success_in_every_place() -> None:
    run = one(Lying(), "greenfield", seed=7, names=CHEAP)
    assert {result.verdict for result in run.results} == {"FALSE SUCCESS"}
    assert total(run.results) == 0


def test_nobody_is_found_in_a_bed_without_people() -> None:
    assert empty_bed(7, CHEAP) == {"files": 0, "qdrant": 0}


def test_the_stores_own_deletes_leave_a_shared_file_and_get_no_more_than_l1(capsys: pytest.CaptureFixture[str]) -> None:
    code = program.main(["--eraser", "native", "--track", "greenfield", "--places", "files", "--seed", "7", "--json"])
    [run] = json.loads(capsys.readouterr().out)
    [place] = run["places"]
    assert (code, place["verdict"]) == (1, "FALSE SUCCESS"), "the lines of the export are still given out"
    assert place["by_interface"] == 6
    assert run["record"] is None


def test_the_same_seed_writes_the_same_and_another_one_something_else() -> None:
    assert people(7, "files") == people(7, "files")
    texts = {said.text for seed in (7, 8) for person in people(seed, "files") for said in person.said}
    assert len(texts) == 16


def test_a_place_that_holds_nothing_of_the_person_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLACES["files"], "fill", lambda self, _: (self.folder / self.shared).write_text(""))
    with pytest.raises(BedIsEmpty, match="files"):
        one(Nothing(), "greenfield", seed=7, names=["files"])


@pytest.mark.parametrize(
    "content",
    [
        WORD.encode(), WORD.lower().encode(), WORD.encode("utf-16-le"), WORD.encode().hex().encode(),
        b"--" + gzip.compress(f"so said {WORD}".encode()),
        b"head" + zstandard.ZstdCompressor().compress(f"and {WORD} again".encode() * 3),
    ],
    ids=["plain", "lower", "utf-16", "hex", "gzip", "zstd"],
)  # fmt: skip
def test_the_oracle_sees_a_word_in_what_files_make_of_it(tmp_path: Path, content: bytes) -> None:
    assert judge_file(tmp_path / "f", b"\0\1" + content + b"\2") > 0
    assert judge_file(tmp_path / "g", b"\0\1 nothing of it \2") == 0


def test_the_oracle_sees_vectors_as_given_at_length_one_and_as_decimals(tmp_path: Path) -> None:
    vector = vector_of("a text")
    norm = sum(number * number for number in vector) ** 0.5
    forms = [
        struct.pack(f"<{DIMENSIONS}f", *vector),
        struct.pack(f"<{DIMENSIONS}f", *(number / norm for number in vector)),
        struct.pack(f"<{DIMENSIONS}d", *vector),
        json.dumps(vector).encode(),
    ]
    asked = {"files": [str(tmp_path)], "texts": {}, "vectors": {"v": vector}}
    for content in forms:
        (tmp_path / "f").write_bytes(b"xy" + content)
        assert judge(asked)["own"], content[:HEAD]
    (tmp_path / "f").write_bytes(struct.pack(f"<{DIMENSIONS}f", *vector_of("another")))
    assert judge(asked)["own"] == []


@pytest.mark.postgres
@pytest.mark.slow
def test_the_oracle_sees_a_word_that_postgresql_compressed_in_a_row_that_is_deleted(postgres_url: str) -> None:
    url = postgres_url.replace("postgresql+psycopg://", "postgresql://")
    said = people(7, "postgres")[0].said[0]
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE forget_oracle (id int, body text)")
        db.execute("INSERT INTO forget_oracle VALUES (1, %s)", (said.long,))
        row = db.execute("SELECT pg_column_compression(body), pg_column_size(body) FROM forget_oracle").fetchone()
        assert row is not None
        assert row[0] == "pglz"
        assert 2_000 < row[1] < 19_000
        db.execute("DELETE FROM forget_oracle")
        word = next(each for each in said.text.split() if each.isupper() and len(each) == 14)
        found = judge({"postgres": url, "texts": {"word": word}, "vectors": {}})["own"]
        assert [hit[1] for hit in found] == ["pglz"]
        db.execute("VACUUM FULL forget_oracle")
        assert judge({"postgres": url, "texts": {"word": word}, "vectors": {}})["own"] == []
        db.execute("DROP TABLE forget_oracle")


def test_the_oracle_sees_a_word_that_redis_compressed_in_its_dump(tmp_path: Path) -> None:
    with redis_service.running(tmp_path, settings={"appendonly": "no"}) as server:
        client = client_of_redis.Redis.from_url(server.url)
        filling = "the same words again and again, " * 40
        for begin in range(40):
            client.set(f"k{begin}", f"{'-' * begin}{filling[:begin]}{WORD}{filling}")
        client.save()
        client.close()
        found = judge({"files": [str(server.folder)], "texts": {"word": WORD}, "vectors": {}})["own"]
    assert sum(hit[3] for hit in found) >= 40
    assert {hit[1] for hit in found} >= {"lzf"}


@pytest.mark.parametrize(
    ("claim", "own", "later", "verdict"),
    [
        (Claim(outcome="erased", level="L3"), 0, 0, "erased, L3"),
        (Claim(outcome="erased", level="L3"), 0, 1, "FALSE SUCCESS"),
        (Claim(outcome="erased", level="L2", residual_until="2027-01-01T00:00:00Z"), 0, 9, "erased, L2, dated"),
        (Claim(outcome="erased", level="L2", residual_until="unknown"), 0, 9, "erased, L2"),
        (Claim(outcome="erased", level="L2"), 1, 0, "FALSE SUCCESS"),
        (Claim(outcome="erased"), 1, 0, "FALSE SUCCESS"),
        (Claim(outcome="erased", level="L1"), 5, 5, "erased, L1"),
        (Claim(outcome="failed"), 5, 5, "honestly not covered"),
    ],
)
def test_a_claim_is_worth_what_the_bytes_allow(claim: Claim, own: int, later: int, verdict: str) -> None:
    def hits(count: int) -> list[list[object]]:
        return [["word", "utf-8", "f", count]] if count else []

    seen = Seen(before=9, own=hits(own), later=hits(later), by_interface=0, harmed=0)
    assert judged("p", claim, seen).verdict == verdict


def test_one_false_success_or_one_harmed_neighbour_caps_the_score() -> None:
    good = judged("a", Claim(outcome="erased", level="L3"), Seen(before=1, own=[], later=[], by_interface=0, harmed=0))
    given_out = Seen(before=1, own=[], later=[], by_interface=1, harmed=0)
    false = judged("b", Claim(outcome="erased", level="L1"), given_out)
    harm = judged("c", Claim(outcome="erased", level="L3"), Seen(before=1, own=[], later=[], by_interface=0, harmed=1))
    assert total([good] * 9) == 100
    assert total([*[good] * 9, false]) == total([*[good] * 9, harm]) == CAP
    joint = Seen(before=1, own=[], later=[], by_interface=0, harmed=0, joint_left=True)
    assert judged("d", Claim(outcome="erased", level="L2", joint="erased"), joint).verdict == "FALSE SUCCESS"


def test_an_eraser_of_somebody_else_is_named_by_its_module() -> None:
    assert isinstance(by_name("bench.forget.erasers:Native"), Native)
    with pytest.raises(LookupError, match="module:Class"):
        by_name("best")


def test_a_product_whose_interpreter_nobody_named_is_an_error_and_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(Lethe.python, raising=False)
    ground = Ground(
        folder=tmp_path, seed=7, postgres=lambda name: f"postgresql:///{name}", redis=lambda: ("", tmp_path)
    )
    place, person = Postgres(ground), people(7, "postgres")[0]
    with pytest.raises(PeerMissing, match="lethe-delete"):
        Lethe().erase([place], person, "greenfield", tmp_path)
    # It knows only what was tagged when it was written, so nobody asks it here.
    assert Lethe().erase([place], person, "brownfield", tmp_path) == {"postgres": Claim(outcome="not_covered")}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("peer", [VectorForget, Lethe])
def test_another_product_is_driven_in_its_own_interpreter_and_judged_alike(peer: type[Peer]) -> None:
    if not os.environ.get(peer.python):
        pytest.skip(f"{peer.python} names no interpreter with {peer.name}")
    [result] = one(peer(), "greenfield", seed=7, names=("pgvector",)).results
    assert (result.verdict, result.seen.by_interface, result.seen.harmed) == ("erased, L1", 0, 0)
    assert 0 < result.seen.own_hits < result.seen.before


@pytest.mark.slow
def test_threads_in_a_file_each_and_sealed_ones_are_free_of_the_person_after_their_own_delete() -> None:
    run = one(by_name("native"), "greenfield", seed=7, names=list(MORE_PLACES))
    assert {result.place: result.verdict for result in run.results} == dict.fromkeys(MORE_PLACES, "erased, L1")
    assert all(result.seen.own_hits == 0 < result.seen.before for result in run.results)
    assert all(result.seen.harmed == 0 for result in run.results)
    assert empty_bed(7, list(MORE_PLACES)) == dict.fromkeys(MORE_PLACES, 0)


@pytest.mark.slow
@pytest.mark.parametrize("track", ["greenfield", "brownfield"])
def test_muniment_reaches_l2_in_shapes_that_make_erasure_easy_or_says_that_it_does_not_cover_them(track: str) -> None:
    run = one(
        by_name("muniment"), "greenfield" if track == "greenfield" else "brownfield", seed=7, names=list(MORE_PLACES)
    )
    told = {result.place: result.verdict for result in run.results}
    sealed = "erased, L2" if track == "greenfield" else "honestly not covered"
    assert told == {"langgraph-files": "erased, L2", "langgraph-sealed": sealed}
    assert {result.seen.own_hits for result in run.results if result.verdict.startswith("erased")} == {0}


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(900)
@pytest.mark.parametrize("track", ["greenfield", "brownfield"])
def test_muniment_has_no_false_success_in_any_place_and_its_own_record_forgets(track: str) -> None:
    run = one(by_name("muniment"), "greenfield" if track == "greenfield" else "brownfield", seed=7, names=list(PLACES))
    told = {result.place: (result.verdict, result.because) for result in run.results}
    assert {place for place, (verdict, _) in told.items() if verdict.startswith("erased, L2")} == set(PLACES), told
    assert all(result.seen.own_hits == 0 for result in run.results), told
    assert run.record is not None
    assert (list(run.record.hits), run.record.kept.sound) == ([], True)
    assert run.record.kept.missed == ()
