"""The documents say what the code says: links lead somewhere, fragments have their form, states are drawn."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.entry import SYSTEM_KINDS, USER_KINDS, Kind

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FRAGMENT = re.compile(
    r"\Akind: (added|changed|fixed|removed|security)\nfor: (operators|agents|legal|auditors|developers)\n\n\S"
)
STATES = {
    *("received", "identity_pending", "verified", "planned", "approved", "executing", "verifying", "completed"),
    *("completed_with_retained", "completed_with_exceptions", "partially_failed", "no_match", "refused", "cancelled"),
    "duplicate",
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (document.parent / target).exists()]
    assert broken == []


def test_every_changelog_fragment_has_its_form() -> None:
    fragments = sorted((REPOSITORY / "docs" / "changelog").glob("[0-9]*.md"))
    assert fragments
    assert [file.name for file in fragments if not FRAGMENT.match(file.read_text(encoding="utf-8"))] == []


def test_every_decision_is_listed_and_has_its_four_parts() -> None:
    index = (REPOSITORY / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    files = sorted((REPOSITORY / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [file.name[:4] for file in files]
    assert len(set(numbers)) == len(numbers), "two decisions of one number"
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert f"({file.name})" in index
        assert text.startswith(f"# {int(file.name[:4])}. ")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Options", "Decision", "Cost"], file.name


def test_the_state_diagram_shows_every_state_of_a_request_and_no_other() -> None:
    flows = (REPOSITORY / "docs" / "flows.md").read_text(encoding="utf-8")
    diagram = flows.partition("stateDiagram-v2")[2].partition("```")[0]
    drawn = set(re.findall(r"^\s+(\w+) -->", diagram, re.MULTILINE)) | set(re.findall(r"--> (\w+)", diagram))
    assert drawn == STATES


def test_the_glossary_is_sorted_and_names_each_word_once() -> None:
    rows = (REPOSITORY / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [row.split("|")[1].strip().lower() for row in rows if row.startswith("| ")][1:]
    keys = [re.sub(r" \(.*\)|,.*", "", word) for word in words]
    assert keys == sorted(set(keys))


def test_no_document_promises_compliance() -> None:
    promise = re.compile(r"\b(makes? you compliant|(fully|is) compliant|guarantees? compliance)\b", re.IGNORECASE)
    assert [path.name for path in DOCUMENTS if promise.search(path.read_text(encoding="utf-8"))] == []


def binding_kinds() -> Iterator[str]:
    """The kinds that some code appends to the log by itself, before anything takes effect, not through the outbox."""
    for folder in ("api", "erasure", "registry", "retention", "vault"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "event":
                    named = (
                        one.attr for one in node.args if isinstance(one, ast.Attribute) and one.attr in Kind.__members__
                    )
                    yield from (Kind[name].value for name in named)


def test_every_kind_of_entry_is_documented_and_the_binding_ones_say_so() -> None:
    agents, _, ours = (REPOSITORY / "docs" / "kinds.md").read_text(encoding="utf-8").partition("## What the service")
    rows = re.findall(r"^\| `([a-z._]+)` \| (binding: )?", ours, re.MULTILINE)
    assert sorted(re.findall(r"^\| `([a-z._]+)` \|", agents, re.MULTILINE)) == sorted(USER_KINDS)
    assert sorted(kind for kind, _ in rows) == sorted(SYSTEM_KINDS)
    assert {kind for kind, binding in rows if binding} == set(binding_kinds())


S3_RIGHTS: dict[str, set[str]] = {
    "close": set(),  # of the connection; nothing is sent
    "copy_object": {"s3:GetObject", "s3:GetObjectVersion", "s3:PutObject"},
    "delete_object": {"s3:DeleteObject", "s3:DeleteObjectVersion"},
    "delete_objects": {"s3:DeleteObject", "s3:DeleteObjectVersion"},
    "get_bucket_versioning": {"s3:GetBucketVersioning"},
    "get_object": {"s3:GetObject", "s3:GetObjectVersion"},
    "get_object_lock_configuration": {"s3:GetBucketObjectLockConfiguration"},
    "head_object": {"s3:GetObject", "s3:GetObjectRetention", "s3:GetObjectLegalHold"},
    "list_object_versions": {"s3:ListBucketVersions"},
    "put_bucket_versioning": set(),  # an attack, which the policy of the bucket refuses
    "put_object": {"s3:PutObject", "s3:PutObjectRetention"},
    "put_object_legal_hold": {"s3:PutObjectLegalHold"},
    "put_object_retention": {"s3:PutObjectRetention"},
}
"""What each call needs. Source: Amazon S3 API Reference, and "Actions, resources, and condition keys for Amazon S3"."""


def test_the_servers_role_has_the_rights_that_its_calls_need() -> None:
    # It could neither place a legal hold nor turn the root: no key was ever final.
    role = (REPOSITORY / "infra" / "terraform" / "roles.tf").read_text(encoding="utf-8")
    given = set(re.findall(r'"((?:s3|kms):\w+)"', role.partition('"auditor" {\n  statement')[0]))
    sources = [(REPOSITORY / "ledger" / name).read_text(encoding="utf-8") for name in ("s3.py", "s3_attacks.py")]
    calls = set(re.findall(r"client\.([a-z_]+)\(", "".join(sources)))
    assert calls <= S3_RIGHTS.keys()
    assert set().union(*(S3_RIGHTS[call] for call in calls)) <= given
    kms = (REPOSITORY / "docs" / "kms.md").read_text(encoding="utf-8").partition("**Rights.**")[2].partition("Deny")[0]
    assert set(re.findall(r"`(kms:\w+)`", kms)) <= given
