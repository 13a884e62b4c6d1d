"""What a certificate's paper shows, from its signed file and nothing else. Pure.

Guarantees: every line is a member of the certificate or counts such members; every field says whether the log proves it
or the operator states it, by `erasure.certificate.mark_of`. Times are UTC; the legal date is the local day that the
certificate names.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import chain
from typing import Any

from erasure.certificate import PREFIX, mark_of
from erasure.rendering import words
from erasure.rendering.blocks import (
    PROVEN,
    STATED,
    Block,
    Rows,
    code,
    column,
    day_text,
    field,
    fields,
    moment_text,
    note,
    section,
    short_moment,
    table,
    text,
    until_text,
)
from erasure.rendering.opened import document_of, numbered
from erasure.request import BROKEN, GONE
from erasure.signed_file import Readable

MOST_LISTED = 20_000
"""Rows of copies on a page: nobody reads more. «What was done» counts all."""
_KEY_LINE = 96
ABSENT = "already_absent"


def sheet_of(report: Readable, *, most: int = MOST_LISTED, elsewhere: str = "on a page") -> dict[str, Any]:
    """The paper of a signed certificate. The file is trusted here; `erasure.report_check` is what checks it.

    Copies are listed up to `most` of them; beyond, it says that they are too many `elsewhere` and stand in the file.
    """
    document = document_of(report)
    certificate = document["certificate"]
    copies = certificate["copies"]
    unlisted = text(f"Of more than {most:,} copies the rows are too many {elsewhere}. The signed file inside has each.")

    def fits(rows: Sequence[object]) -> bool:
        return len(rows) <= most

    return {
        "lang": "en",
        "title": words.TITLES[certificate["right"]],
        "version": certificate["version"],
        "version_note": words.VERSIONS[certificate["version"]],
        "reference": certificate["request"],
        "issuer": _issuer(certificate),
        "issued": moment_text(certificate["issued_at"]),
        "verdict": _verdict(certificate) + _limit(certificate),
        "tone": "good" if certificate["state"] == "completed" and certificate["version"] == "final" else "partly",
        "tiles": _tiles(certificate),
        "claim": certificate["claim"],
        "sections": [
            section("What was asked, by whom, of whom", _parties(certificate), _people(certificate)),
            section("When", _times(certificate)),
            section("What was done", *_done(copies)),
            section("What others lose by it", *_others(copies)),
            section("What stays, and why", *(_stays(certificate) if fits(certificate["retained"]) else [unlisted])),
            section("What may remain for a while", *_residuals(certificate)),
            section("Where was looked", *_coverage(certificate)),
            section("Who approved", *_approvals(certificate)),
            section("Who was told", *_recipients(certificate)),
            section("How independent the check was", _independence(certificate)),
            section("Check it yourself", *_how_to_check(document, report)),
            section("Annex A. Every copy", *(_annex(copies, certificate) if fits(copies) else [unlisted]), annex=True),
            section("Annex B. The events in the log", *_events(certificate), annex=True),
        ],
    }


def _issuer(certificate: Mapping[str, Any]) -> str:
    controller = certificate.get("controller") or {}
    return str(controller.get("name") or certificate["tenant"])


def _verdict(certificate: Mapping[str, Any]) -> str:
    """The headline; an interim one does not claim the second look that is still to come."""
    return (words.VERDICTS if certificate["version"] == "final" else words.SO_FAR)[certificate["state"]]


def _limit(certificate: Mapping[str, Any]) -> str:
    return "" if certificate["scope"]["of"] == "all" else f" This covers {_scope(certificate)}, and nothing else."


def _tiles(certificate: Mapping[str, Any]) -> list[dict[str, str]]:
    states = Counter(copy["state"] for copy in certificate["copies"])
    return [
        {"number": str(sum(states[state] for state in GONE - {ABSENT})), "label": "gone and verified"},
        {"number": str(states[ABSENT]), "label": "not there any more"},
        {"number": str(states["retained"]), "label": "kept, with ground"},
        {"number": str(sum(states[state] for state in BROKEN)), "label": "not erased"},
        {"number": str(len(certificate["not_covered"])), "label": "stores not covered"},
    ]


def _marked(certificate: Mapping[str, Any], label: str, name: str, value: object, *, exact: bool = False) -> Any:
    return field(label, value, mark_of((name,), certificate), exact=exact)


def _parties(certificate: Mapping[str, Any]) -> Block:
    controller = certificate.get("controller") or {}
    right = words.RIGHTS[certificate["regulation"]][certificate["right"]]
    lines = [
        _marked(certificate, "Right", "right", right),
        _marked(certificate, "Scope", "scope", _scope(certificate)),
        _marked(certificate, "Request", "request", certificate["request"], exact=True),
        _marked(certificate, "Controller", "controller", controller.get("name")),
        _marked(certificate, "Contact", "controller", controller.get("contact")),
    ]
    if controller.get("dpo"):
        lines.append(_marked(certificate, "Data protection officer", "controller", controller["dpo"]))
    lines += [
        _marked(certificate, "Tenant of the record", "tenant", certificate["tenant"]),
        _marked(certificate, "Plan (SHA-256)", "plan_hash", certificate["plan_hash"], exact=True),
    ]
    if certificate["supersedes"]:
        lines.append(_marked(certificate, "Supersedes", "supersedes", certificate["supersedes"], exact=True))
    return fields(*lines)


def _scope(certificate: Mapping[str, Any]) -> str:
    scope = certificate["scope"]
    return words.SCOPES[scope["of"]] + (": " + ", ".join(scope["data_classes"]) if "data_classes" in scope else "")


def _people(certificate: Mapping[str, Any]) -> Block:
    mark = mark_of(("subject_commitments", "0"), certificate)
    rows = [
        field(f"Person, name {number}", value, mark, exact=True)
        for number, value in enumerate(certificate["subject_commitments"], start=1)
    ]
    about = field(
        "",
        "The person appears as a salted commitment. Only the letter that goes to the person holds what opens it.",
    )
    return fields(*rows, about)


def _times(certificate: Mapping[str, Any]) -> Block:
    due = certificate.get("due_on")
    due_text = moment_text(certificate["due_at"]) if due is None else f"the end of {day_text(date.fromisoformat(due))}"
    answered = certificate["answered_at"]
    return fields(
        _marked(certificate, "Received", "received_at", moment_text(certificate["received_at"])),
        _marked(certificate, "Answer due by law", "due_at", due_text),
        *(
            field("Approved", moment_text(line["at"]), mark_of(("approvals", str(number), "at"), certificate))
            for number, line in enumerate(certificate["approvals"])
        ),
        _marked(certificate, "Completed", "completed_at", moment_text(certificate["completed_at"])),
        _marked(
            certificate,
            "Person told",
            "answered_at",
            moment_text(answered) if answered else "not before this was issued",
        ),
        _marked(certificate, "Issued", "issued_at", moment_text(certificate["issued_at"])),
    )


def _done(copies: Sequence[Mapping[str, Any]]) -> list[Block]:
    groups: Counter[tuple[str, str, str, str]] = Counter()
    ways: dict[tuple[str, str, str, str], tuple[set[str], set[str]]] = {}
    for copy in copies:
        if copy["state"] != "retained":
            group = copy["store"], copy["data_class"], copy["state"], _reached(copy)
            groups[group] += 1
            for name, found in zip(("method", "verified_how"), ways.setdefault(group, (set(), set())), strict=True):
                found.update([str(copy[name])] if copy[name] else [])
    rows = [
        [
            store,
            data_class,
            str(count),
            _outcome(state),
            reached,
            *map(_listed, ways[store, data_class, state, reached]),
        ]
        for (store, data_class, state, reached), count in sorted(groups.items())
    ]
    columns = [
        column("Store", 14, STATED),
        column("Class of data", 16, STATED),
        column("Copies", 9, STATED),
        column("Outcome", 15, PROVEN),
        column("Level", 12, PROVEN),
        column("How it was erased", 18, STATED),
        column("How it was looked for", 21, STATED),
    ]
    levels = "; ".join(f"{name}: {meaning}" for name, meaning in words.LEVELS)
    return [table(columns, rows), note(f"Levels. {levels}.")]


def _others(copies: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Collateral: what is gone, and what stays for now, that is about other people too."""
    gone, groups = 0, dict[tuple[str, str, str], tuple[int, int, int]]()
    for copy in copies:
        joint = copy["collateral"]
        if not joint:
            continue
        gone += copy["state"] in GONE
        group = copy["store"], copy["data_class"], _outcome(copy["state"])
        count, most, shared = groups.get(group, (0, 0, 0))
        groups[group] = count + 1, max(most, joint.get("subjects", 0)), shared + joint.get("parts", 0)
    if not groups:
        return [text("No copy of this request is about another person as far as is registered.")]
    rows = [
        [store, data_class, str(count), outcome, str(most), str(shared or "–")]
        for (store, data_class, outcome), (count, most, shared) in sorted(groups.items())
    ]
    names = (("Store", 18), ("Class of data", 22), ("Copies", 9), ("Outcome", 22), ("Others, at most per copy", 16),
             ("Shared parts of the record", 13))  # fmt: skip
    were = "was" if gone == 1 else "were"
    return [
        text(
            f"{gone} of what is gone {were} also about other people. The plan that was approved showed them, or "
            "somebody decided on them one by one."
        ),
        table([column(label, width, STATED) for label, width in names], rows),
    ]


def _outcome(state: str) -> str:
    """In words; of copies that are not gone it is stated, whatever the head of the column says."""
    return words.STATES.get(state, state) + ("" if state in GONE else " ○")


def _reached(copy: Mapping[str, Any]) -> str:
    """The level that was shown, and the one that the class requires."""
    if copy["state"] == "retained":
        return "–"
    shown = copy["key"] if copy["kind"] == "key" else copy["level"]
    required = "destroyed" if copy["required"] == "key" and copy["kind"] == "key" else copy["required"]
    if shown is None:
        return f"none of {required}"
    return str(shown) if shown == required else f"{shown}, required {required}"


def _listed(ways: set[str]) -> str:
    return "; ".join(sorted(ways)) or "–"


def _stays(certificate: Mapping[str, Any]) -> list[Block]:
    by_number = numbered(certificate["copies"], chain(certificate["retained"], certificate["exceptions"]))

    def row_of(line: Mapping[str, Any]) -> list[str]:
        copy, rule = by_number[line["copy"]], words.RULES.get(line["rule"], line["rule"])
        until = "no end date" if line["until"] is None else until_text(line["until"])
        return [str(line["copy"]), copy["data_class"], copy["store"], rule, "; ".join(line["ground"]) or "–", until]

    rows = Rows(certificate["retained"], row_of)
    blocks: list[Block] = []
    if rows:
        columns = [column("Copy", 6), column("Class of data", 18), column("Store", 14), column("Rule", 18),
                   column("Ground", 30), column("Until", 14)]  # fmt: skip
        blocks.append(table([{**one, "mark": STATED} for one in columns], rows))
    else:
        blocks.append(text("Nothing about the person is kept on a legal ground."))
    exceptions = [
        [str(line["copy"]), by_number[line["copy"]]["store"], words.STATES.get(line["state"], line["state"]),
         line["detail"] or "–", f"{line['accepted_by']}, {short_moment(line['accepted_at'])}"]
        for line in certificate["exceptions"]
    ]  # fmt: skip
    if exceptions:
        names = (("Copy", 6), ("Store", 16), ("State", 18), ("What happened", 36), ("Accepted by", 24))
        blocks += [
            text("Exceptions: what could not be erased, and who accepted that."),
            table([column(label, width, STATED) for label, width in names], exceptions),
        ]
    skeleton = certificate["skeleton"]
    blocks.append(
        text(
            f"Headers of the record that stay: {skeleton['headers']} ({skeleton['ground']}). They end "
            f"{skeleton['ends_at']}. What they sealed does not open any more."
        )
    )
    return blocks


def _residuals(certificate: Mapping[str, Any]) -> list[Block]:
    if not certificate["residuals"]:
        return [text("No place is known where bytes could remain.")]
    until: dict[str, dict[str, str]] = {}
    others = []
    for line in certificate["residuals"]:
        if line["what"] in words.WINDOWS:
            until.setdefault(line["store"], {})[line["what"]] = until_text(line["until"])
        else:
            others.append(field(f"{line['store']}: {line['what']}", f"until {until_text(line['until'])}", STATED))
    rows = [[store, *(lines.get(what, "–") for what in words.WINDOWS)] for store, lines in until.items()]
    columns = [column("Store", 24, STATED), *(column(what, 19, STATED) for what in words.WINDOWS.values())]
    blocks = [
        text("Bytes outside a store's own files are not claimed to be gone before these dates. «unknown» is printed "
             "where the operator declared none.")
    ]  # fmt: skip
    if rows:
        blocks.append(table(columns, rows))
    if others:
        blocks.append(fields(*others))
    return blocks


def _coverage(certificate: Mapping[str, Any]) -> list[Block]:
    stores = [line for line in certificate["coverage"] if line["kind"] == "store"]
    classes = [line for line in certificate["coverage"] if line["kind"] == "class"]
    rows = [[line["name"], "examined" if line["examined"] == "yes" else "not examined", line["why"]] for line in stores]
    columns = [column("Store", 24, STATED), column("Examined", 18, STATED), column("Why", 58, STATED)]
    found = [line["name"] for line in classes if line["why"] == "copies found"]
    empty = [line["name"] for line in classes if line["examined"] == "yes" and line["why"] != "copies found"]
    other = [f"{line['name']} ({line['why']})" for line in classes if line["examined"] != "yes"]
    lines = [
        field("Classes with copies", ", ".join(found), STATED),
        field("Classes without", ", ".join(empty), STATED),
    ]
    if other:
        lines.append(field("Classes not examined", "; ".join(other), STATED))
    missing = [f"{line['store']} ({line['why']})" for line in certificate["not_covered"]]
    lines.append(field("Stores not covered", "; ".join(missing) or "none that is registered", STATED))
    return [table(columns, rows), fields(*lines)]


def _approvals(certificate: Mapping[str, Any]) -> list[Block]:
    rows = [
        [line["by"], moment_text(line["at"]), line["entry"]]
        for line in certificate["approvals"]
    ]  # fmt: skip
    columns = [
        column("Approved by", 24, PROVEN),
        column("When", 36, PROVEN),
        column("Entry of the record", 40, PROVEN, exact=True),
    ]
    rule = {
        "dual": "Approval by a second person: who filed the request or checked the identity could not approve it.",
        "single": "Approval by one person: the operator allows that one person files and approves a request.",
        "subject": "Approval by the person: they asked to forget this memory; their word reaches nothing of others.",
    }[certificate["approval"]]
    return [table(columns, rows), text(rule)]


def _recipients(certificate: Mapping[str, Any]) -> list[Block]:
    rows = [
        [line["recipient"], line.get("country") or "–", line["store"],
         "not recorded" if line["told_at"] is None else moment_text(line["told_at"]),
         words.RECIPIENT_ANSWERS[line.get("answer")]]
        for line in certificate["recipients"]
    ]  # fmt: skip
    if not rows:
        return [text("The stores of this request name no other recipient.")]
    names = (("Recipient", 28), ("Country", 10), ("Store", 18), ("Told (GDPR Art. 19)", 24), ("Answer", 20))
    return [table([column(label, width, STATED) for label, width in names], rows), text(words.RECIPIENTS_FROM)]


def _independence(certificate: Mapping[str, Any]) -> Block:
    verifier = certificate["verifier"]
    names = {"code": "Code", "credentials": "Credentials", "process": "Process", "party": "Party"}
    lines = [field(names.get(name, name), value, STATED) for name, value in verifier["independence"].items()]
    kept = field("Keys are kept in", verifier["key_store"], STATED)
    return fields(*lines, kept, field("The record is seen by", verifier["anchor"], STATED))


def _how_to_check(document: Mapping[str, Any], report: Readable) -> list[Block]:
    certificate, signature = document["certificate"], document["signature"]
    checkpoint = certificate["log"]["checkpoint"].splitlines()
    size = checkpoint[1] if len(checkpoint) > 1 else "?"
    prefix = PREFIX.decode().replace("\n", "\\n")
    return [
        text(
            "The signed certificate is inside this file. One command reads it, checks the signature, every proof, and "
            "that these pages are exactly what that certificate renders to. It needs no server and no network:"
        ),
        code("muniment verify-report THIS-FILE --key <certificate key> --log-key <log key>"),
        text(
            "Take both keys from a source you trust, not from this paper. Without the tool: the signature is Ed25519 "
            f"over «{prefix}» and the RFC 8785 bytes of the member «certificate»; each proof is an RFC 9162 inclusion "
            "proof against the checkpoint, a C2SP signed note."
        ),
        fields(
            field("Signed by", signature["key"], PROVEN, exact=True),
            field("Signature", signature["ed25519"], PROVEN, exact=True),
            field("SHA-256 of the file", hashlib.sha256(report).hexdigest(), "", exact=True),
            field("Log", checkpoint[0] if checkpoint else "–", PROVEN, exact=True),
            field("Checkpoint", f"{size} entries", PROVEN),
            field("Events shown", f"{len(certificate['log']['proofs'])}, each with its inclusion proof", PROVEN),
        ),
        note(
            "● proven: said in an event that stands in the log under the signed checkpoint. "
            "○ stated: said by the operator, who signs for it. The log key pins one log; whether everybody is shown "
            "the same log is what witnesses and anchors are for. That no other event of the request stands in the log, "
            "such as a copy found again later, is stated: an auditor who reads the record can tell, this paper cannot."
        ),
    ]


def _annex(copies: Sequence[Mapping[str, Any]], certificate: Mapping[str, Any]) -> list[Block]:
    index = {proof["entry"]: str(proof["index"]) for proof in certificate["log"]["proofs"]}
    methods = _legend(copies, "method", "E")
    ways = _legend(copies, "verified_how", "V")

    def row_of(copy: Mapping[str, Any]) -> list[str]:
        path = copy["path"]
        came = "" if not path else f"from {path[-1]}" + (f" (+{len(path) - 1})" if len(path) > 1 else "")
        return [
            str(copy["copy"]),
            copy["id"] + (f"\n{came}" if came else ""),
            f"{copy['data_class']}\nin {copy['store']}",
            f"{_outcome(copy['state'])}\n{_reached(copy)}",
            _times_of(copy, methods),
            f"{short_moment(copy['verified_at'])} {ways.get(copy['verified_how'], '')}".strip(),
            ", ".join(index.get(entry, "?") for entry in copy["evidence"]) or "–",
        ]

    columns = [
        column("No.", 5, PROVEN),
        column("Copy, and what it was made from", 27, STATED, exact=True),
        column("Class and store", 18, STATED),
        column("Outcome, level", 18, PROVEN),
        column("Erased, attempts, how", 15, STATED),
        column("Seen absent, how", 13, STATED),
        column("Events", 9, PROVEN),
    ]
    legend = [field(short, way, STATED) for way, short in {**methods, **ways}.items()]
    about = note(
        "Times are UTC. Outcome and level are proven for copies that are gone, and so are the ids of keys; of copies "
        "that stay or failed they are stated (○). «Events» are positions in the log, see Annex B."
    )
    return [about, *([fields(*legend)] if legend else []), table(columns, Rows(copies, row_of), dense=True)]


def _times_of(copy: Mapping[str, Any], methods: Mapping[str, str]) -> str:
    if copy["finished_at"] is None:
        return copy["detail"] or "–"
    return f"{short_moment(copy['finished_at'])} {copy['attempts']}× {methods.get(copy['method'], '')}".strip()


def _legend(copies: Sequence[Mapping[str, Any]], name: str, letter: str) -> dict[str, str]:
    return {way: f"{letter}{n}" for n, way in enumerate(sorted({copy[name] for copy in copies if copy[name]}), start=1)}


def _events(certificate: Mapping[str, Any]) -> list[Block]:
    rows = []
    for proof in sorted(certificate["log"]["proofs"], key=lambda one: one["index"]):
        kind = str(json.loads(b64decode(proof["header"])).get("kind", "?"))
        rows.append([str(proof["index"]), kind, words.EVENTS.get(kind, "–"), proof["entry"]])
    columns = [
        column("Position", 11, PROVEN),
        column("Kind", 20, PROVEN),
        column("What it says", 37, PROVEN),
        column("Entry", 32, PROVEN, exact=True),
    ]
    about = note(
        certificate["log"]["checkpoint"].splitlines()[0] + " is the log; its key, as this certificate names it:"
    )
    lines = [
        certificate["log"]["key"][at : at + _KEY_LINE] for at in range(0, len(certificate["log"]["key"]), _KEY_LINE)
    ]
    return [about, code(*lines), table(columns, rows, dense=True)]
