"""The certificate offline: what it proves, and that nothing in it can be changed, also by who holds the signing key."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import subprocess
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rfc8785

from erasure.certificate import Lines, Listed, LogEvidence, build, commitment, sign
from erasure.errors import NotVerified, ReportError
from erasure.report_check import check
from ledger.entry import Kind, decode_header
from ledger.signing import Ed25519Signer

ROOT = Path(__file__).resolve().parents[2]
MARKS = "305f10ae1cc06a5f32a23370756cb75a257cd239cada7017f60d3153ab2f673f"
"""The digest of what is proven and what is stated in every certificate of this schema."""


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One certificate, and the keys to check and to forge it."""
    from importlib import util

    spec = util.spec_from_file_location("erasure_conftest", Path(__file__).parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    world = module.World(tmp_path_factory.mktemp("issued"))
    source = world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    world.file("ada.txt", "Summary: Ada Lovelace complains about a rash", subjects=(), sources=(source,))
    world.say("my address is 12 Byron Lane, Nottingham")
    world.services.log.publish(world.tenant.tenant_id, world.now)
    request = world.erase()
    world.report = world.reader.certificate(world.acting(), request)
    world.document = json.loads(world.report)
    yield world
    world.close()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from leaves(member, (*path, name))
    elif isinstance(value, list) and value:
        for number, member in enumerate(value):
            yield from leaves(member, (*path, number))
    else:
        yield path


def mutated(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return "x"
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("A" if value[-1:] != "A" else "B") if value else "x"
    return ["x"]


def put(document: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    made = copy.deepcopy(document)
    place = made
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = change(place[path[-1]])
    return made


def test_every_leaf_mutated_once_is_detected(issued: Any) -> None:
    paths = list(leaves(issued.document))
    assert len(paths) > 100
    for path in paths:
        changed = put(issued.document, path, mutated)
        for forged in (rfc8785.dumps(changed), json.dumps(changed, indent=1).encode()):
            with pytest.raises(ReportError):
                check(forged, issued.certificate_key, issued.log_key)


def resigned(issued: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> bytes:
    """What the operator itself could hand out: the certificate key is its own."""
    document = put(issued.document, ("certificate", *path), change)
    with sign(document["certificate"], issued.services.certificate_signer(issued.tenant.log_id)) as signed:
        return signed.read()


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (("plan_hash",), lambda _: "0" * 64),
        (("received_at",), lambda _: "2026-05-01T00:00:00.000000Z"),
        (("right",), lambda _: "access"),
        (("approvals", 0, "by"), lambda _: "somebody"),
        (("approvals",), lambda _: []),
        (("copies", 0, "level"), lambda _: "L3"),
        (("copies", 0, "state"), lambda _: "already_absent"),
        (("copies", 0, "evidence"), lambda _: []),
        (("copies",), lambda lines: lines[1:]),
        (("copies",), lambda lines: [*lines, lines[0]]),
        (("log", "proofs"), lambda proofs: proofs[:-1]),
        (("log", "proofs"), lambda proofs: [*proofs, proofs[0]]),
        (("log", "proofs", 0, "index"), lambda index: index + 1),
        (("log", "proofs", 0, "inclusion"), lambda nodes: nodes[1:]),
        (("marks", "proven"), lambda names: [*names, "/coverage"]),
        (("state",), lambda _: "completed_with_retained"),
        (("copies", 0), lambda _: "nothing"),
        (("log",), lambda _: None),
    ],
)
def test_a_certificate_that_its_own_issuer_changed_and_signed_again_is_detected(
    issued: Any, path: tuple[Any, ...], change: Callable[[Any], Any]
) -> None:
    with pytest.raises(ReportError):
        check(resigned(issued, path, change), issued.certificate_key, issued.log_key)


def test_a_final_certificate_proves_which_one_it_supersedes(world: Any) -> None:
    world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    request = world.erase()
    interim = world.reader.certificate(world.acting(), request)
    world.now += timedelta(days=2)
    world.services.keks.turn(world.now, force=True)
    world.work()
    world.report = world.reader.certificate(world.acting(), request, version="final")
    world.document = json.loads(world.report)
    said = world.document["certificate"]
    assert said["supersedes"] == hashlib.sha256(interim).hexdigest()
    # A checker of an earlier version accepts this division alone, and takes the event for one more of the request.
    assert hashlib.sha256(rfc8785.dumps(said["marks"])).hexdigest() == MARKS
    assert "supersedes" in check(world.report, world.certificate_key, world.log_key)[-1]
    for change in (lambda _: "0" * 64, lambda _: None):
        with pytest.raises(ReportError, match="/certificate/supersedes"):
            check(resigned(world, ("supersedes",), change), world.certificate_key, world.log_key)
    # As it was before: only stated, and checked as then.
    without = [proof for proof in said["log"]["proofs"] if not is_issuing(proof)]
    assert len(without) == len(said["log"]["proofs"]) - 1
    older = resigned(world, ("log", "proofs"), lambda _: without)
    assert "supersedes" not in " ".join(check(older, world.certificate_key, world.log_key))


def is_issuing(proof: dict[str, Any]) -> bool:
    return decode_header(b64decode(proof["header"])).kind == Kind.CERTIFICATE_ISSUED


def test_a_key_that_the_record_does_not_name_cannot_be_claimed(issued: Any) -> None:
    number = next(n for n, line in enumerate(issued.document["certificate"]["copies"]) if line["kind"] == "key")
    with pytest.raises(ReportError, match="no such key"):
        check(resigned(issued, ("copies", number, "id"), lambda _: "ef" * 16), issued.certificate_key, issued.log_key)


def test_an_earlier_checkpoint_of_the_same_log_is_refused_as_truncated(issued: Any) -> None:
    notes = sorted((issued.base / "data" / "objects").rglob("checkpoint/*"))
    texts = [note.read_text() for note in notes if note.is_file()]
    newest = issued.document["certificate"]["log"]["checkpoint"]
    sizes = {text: int(text.splitlines()[1]) for text in texts if text.startswith(newest.splitlines()[0] + "\n")}
    earlier = [text for text, size in sizes.items() if size < int(newest.splitlines()[1])]
    assert earlier, "the log signed a checkpoint before the erasure ended"
    for note in earlier:
        forged = resigned(issued, ("log",), partial(dict[str, Any], checkpoint=note))
        with pytest.raises(ReportError, match="/certificate/log/proofs"):
            check(forged, issued.certificate_key, issued.log_key)


def test_another_certificate_key_another_log_key_and_loose_bytes_are_refused(issued: Any) -> None:
    other = Ed25519Signer.from_seed("someone/else", b"\x07" * 32)
    with pytest.raises(ReportError, match="/signature"):
        check(issued.report, other.vkey, issued.log_key)
    with pytest.raises(ReportError, match="/certificate/log/key"):
        check(issued.report, issued.certificate_key, other.vkey)
    for loose in (
        b"",
        b"[]",
        issued.report[:-1],
        b"\xff",
        issued.report + b"{}",
    ):
        with pytest.raises(ReportError):
            check(loose, issued.certificate_key, issued.log_key)


def test_a_certificate_written_out_again_by_a_json_library_is_still_genuine(issued: Any) -> None:
    """White space, the order of members and escapes are not signed."""
    turned = {name: dict(reversed(issued.document[name].items())) for name in ("signature", "certificate")}
    again = [
        json.dumps(issued.document),
        json.dumps(issued.document, indent=2, ensure_ascii=False) + "\n",
        json.dumps(issued.document, sort_keys=True, separators=(",", ":")),
        json.dumps(turned, indent="\t"),
    ]
    proven = check(issued.report, issued.certificate_key, issued.log_key)
    for text in again:
        assert check(text.encode(), issued.certificate_key, issued.log_key) == proven


def test_what_two_readers_could_take_differently_is_refused(issued: Any) -> None:
    plain = issued.report
    number = plain.index(b'"attempts":') + len(b'"attempts":')
    assert plain[number : number + 1].isdigit()
    ambiguous = {
        "twice at the top": plain.replace(b'{"certificate":', b'{"certificate":{"x":1},"certificate":', 1),
        "twice inside": plain.replace(b'"approval":"dual"', b'"approval":"single","approval":"dual"', 1),
        "twice, alike": plain.replace(b'"approval":"dual"', b'"approval":"dual","approval":"dual"', 1),
        "escaped twice": plain.replace(b'"approval":"dual"', b'"\\u0061pproval":"single","approval":"dual"', 1),
        "fraction": plain[: number + 1] + b".0" + plain[number + 1 :],
        "exponent": plain[: number + 1] + b"e0" + plain[number + 1 :],
        "not a number": plain[:number] + b"NaN" + plain[number + 1 :],
        "endless": plain[:number] + b"Infinity" + plain[number + 1 :],
        "huge": plain[: number + 1] + b"0" * 5000 + plain[number + 1 :],
        "surrogate": plain.replace(b'"approval":"dual"', b'"approval":"\\ud800"', 1),
        "mark": b"\xef\xbb\xbf" + plain,
        "another encoding": plain.decode().encode("utf-16"),
        "something behind": plain + b" {}",
        "nested": b"[" * 100_000,
    }
    for name, file in ambiguous.items():
        assert file != plain, name
        with pytest.raises(ReportError):
            check(file, issued.certificate_key, issued.log_key)


def test_a_log_key_that_is_not_pinned_is_said_so(issued: Any) -> None:
    assert any("not pinned" in line for line in check(issued.report, issued.certificate_key))


def test_no_name_place_or_content_is_inside_and_the_letter_opens_the_commitment(issued: Any) -> None:
    text = issued.report.decode()
    for needle in ("ada@", "Ada Lovelace", "Lovelace", 'n1"', "ada.txt", "Byron", "conv_1"):
        assert needle not in text
    from erasure.history import load
    from erasure.issue import opening_of

    request = issued.document["certificate"]["request"]
    with issued.parts.transactions(issued.tenant.tenant_id, write=False) as session:
        row = load(session, issued.tenant.tenant_id, request)
        [opening] = opening_of(session, issued.parts, row)
    assert opening["subject"] == "email:ada@example.org"
    shown = commitment(bytes.fromhex(opening["salt"]), opening["subject"])
    assert issued.document["certificate"]["subject_commitments"] == [shown]


class Asked(Exception):
    """A signature was asked for."""


class Unasked:
    """A signer that never signs."""

    name, key_id = "nobody", b"\x00\x00\x00\x00"

    def sign(self, message: bytes | memoryview) -> bytes:
        raise Asked(message)


def test_it_is_never_built_from_anything_but_verification_records() -> None:
    line = {"copy": 1, "state": "erased_physical", "verified_at": None, "evidence": []}
    with Lines() as lines, Lines() as seen, Listed() as proofs:
        said = build({}, LogEvidence(checkpoint="", key="", proofs=proofs), version="interim")
        lines.add([line])
        with pytest.raises(NotVerified):
            sign({**said, "copies": lines}, Unasked())
        seen.add([{**line, "verified_at": "2026-01-01T00:00:00.000000Z"}])
        with pytest.raises(Asked):
            sign({**said, "copies": seen}, Unasked())


def test_the_check_needs_no_database_and_no_network() -> None:
    program = (
        "import sys; import erasure.report_check; "
        "print([name for name in ('sqlalchemy', 'sqlmodel', 'httpx', 'fastapi', 'boto3') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


REPLAY = {"registry/decided.py"}
"""Repeats what the record says was destroyed, and destroys nothing else."""
DOORS = {
    "erase": {"erasure/dispatch.py"},
    "reclaim": {"erasure/dispatch.py"},
    "delete_wrapped": {"erasure/execute.py", *REPLAY},
    "mark_destroying": {"erasure/execute.py", *REPLAY},
    "drop_parts": {"erasure/execute.py", *REPLAY},
    "destroy_due_keks": {"erasure/execute.py", "erasure/worker.py"},
    "bury": {"erasure/execute.py", "erasure/revived.py", *REPLAY},
}
"""What destroys, and the only files that may call it: all of them behind `retention.decide`.

`erasure.revived` buries rows of copies that were decided and planned, and a whole walk of their store did not show.
"""


def calls(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            found.add(name)
    return found


def test_nothing_but_execution_calls_what_destroys() -> None:
    outside = {}
    for folder in ("api", "audit", "erasure", "registry", "retention"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if through := {door for door in calls(path.read_text()) & DOORS.keys() if name not in DOORS[door]}:
                outside[name] = through
    assert outside == {}


def test_the_search_for_such_calls_finds_them() -> None:
    assert "erase" in calls("connector.erase(items)")
    assert "delete_wrapped" in calls("self._vault.delete_wrapped(session, 1, ids, now=now, request=r)")


def test_an_earlier_certificate_key_counts_up_to_the_size_at_which_it_ended(issued: Any) -> None:
    size = int(issued.document["certificate"]["log"]["checkpoint"].split("\n")[1])
    newer = Ed25519Signer.from_seed("someone/else", b"\x07" * 32).vkey
    for window in ("", f" 0-{size}", f" {size}-", " 0-"):
        assert check(issued.report, [newer, issued.certificate_key + window], issued.log_key)
    for window in (f" 0-{size - 1}", f" {size + 1}-"):
        with pytest.raises(ReportError, match="it was revoked"):
            check(issued.report, [newer, issued.certificate_key + window], issued.log_key)
    with pytest.raises(ReportError, match="/signature/key"):
        check(issued.report, [newer], issued.log_key)
    with pytest.raises(ReportError, match="window"):
        check(issued.report, [f"{issued.certificate_key} forever"], issued.log_key)


def test_a_certificate_says_where_keys_are_kept_and_who_outside_has_seen_the_log(issued: Any) -> None:
    verifier = issued.document["certificate"]["verifier"]
    assert verifier["key_store"] == issued.services.keks.root.kind
    assert verifier["anchor"] == "unanchored: trusts the operator"


def test_an_earlier_log_key_counts_up_to_the_size_at_which_it_ended(issued: Any) -> None:
    # One key could be pinned, and a stolen one that was revoked counted for ever.
    size = int(issued.document["certificate"]["log"]["checkpoint"].split("\n")[1])
    newer = Ed25519Signer.from_seed("someone/else", b"\x07" * 32).vkey
    for window in ("", f" 0-{size}", f" {size}-"):
        found = check(issued.report, issued.certificate_key, [newer, issued.log_key + window])
        assert "signed by the pinned log key" in found[1]
    for window in (f" 0-{size - 1}", f" {size + 1}-"):
        with pytest.raises(ReportError, match="it was revoked"):
            check(issued.report, issued.certificate_key, [newer, issued.log_key + window])
    with pytest.raises(ReportError, match="/certificate/log/key: the log key inside is none of those"):
        check(issued.report, issued.certificate_key, [newer, Ed25519Signer.from_seed("other", b"\x08" * 32).vkey])
