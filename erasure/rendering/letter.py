"""What a letter to the person says: a function of facts, in the language asked for. Pure.

Guarantees: an answer about an erasure says what the certificate says and counts what it lists; it alone carries the
salts that open the commitments. What nobody knows is said to be unknown. Refusals and extensions name the remedies.
Source: GDPR Art. 12(3), 12(4), 18(3), 77, 79; 11 CCR 7021, 7022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from erasure.certificate import commitment
from erasure.rendering.blocks import Block, code, day_text, fields, items, section, text, until_text
from erasure.rendering.blocks import field as line
from erasure.rendering.wording import WORDS
from erasure.request import BROKEN, GONE

KINDS = ("acknowledgement", "extension", "refusal", "no_match", "restriction_lifting", "answer")
_COMMITMENT_PREFIX = "muniment-subject-commitment/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFacts:
    """Everything a letter may speak of. `names` are the person's own words; dates are local days."""

    kind: str
    lang: str
    request: str
    right: str
    regulation: str
    at: datetime
    today: date
    received: date
    due: date
    controller: Mapping[str, Any]
    tenant: str
    names: Sequence[str] = field(repr=False)
    scope: Mapping[str, Any] = field(default_factory=lambda: {"of": "all"})
    verified: bool = False
    first_due: date | None = None
    ground: str | None = None
    reason: str | None = field(default=None, repr=False)
    statement: Mapping[str, Any] | None = None
    certificate: Mapping[str, Any] | None = None
    openings: Sequence[Mapping[str, str]] = field(default=(), repr=False)
    final_due: date | None = None
    has_export: bool = False


def letter_of(facts: LetterFacts) -> dict[str, Any]:
    """The letter's paper: head, sections, and the opening as data where there is one."""
    words = WORDS[facts.lang]
    controller = facts.controller
    name = str(controller.get("name") or facts.tenant)
    sections = [section("", *_body(facts, words)), *_more(facts, words)]
    if facts.kind != "acknowledgement":
        sections.append(_remedies(facts, words))
    subject = "subject_answer_erasure" if facts.kind == "answer" and facts.certificate else f"subject_{facts.kind}"
    return {
        "lang": facts.lang,
        "at": facts.at,
        "reference": facts.request,
        "sender": [name, *(str(controller[key]) for key in ("contact",) if controller.get(key))],
        "recipient": [words["to"], *facts.names],
        "about": _about(facts, words),
        "subject": words[subject],
        "greeting": words["greeting"],
        "sections": sections,
        "farewell": words["farewell"],
        "signed": [name],
        "enclosure_word": words["enclosures"],
        "enclosures": _enclosures(facts, words),
        "opening": _opening(facts),
    }


def plain(letter: Mapping[str, Any]) -> str:
    """The letter as plain text, for mail."""
    lines = [*letter["sender"], "", *letter["recipient"], ""]
    lines += [f"{one['label']}: {one['value']}" for one in letter["about"]]
    lines += ["", letter["subject"], "", letter["greeting"], ""]
    for part in letter["sections"]:
        if part["title"]:
            lines += [part["title"], ""]
        for block in part["blocks"]:
            lines += [*_plain_block(block), ""]
    lines += [letter["farewell"], "", *letter["signed"]]
    if letter["enclosures"]:
        lines += ["", f"{letter['enclosure_word']}: {'; '.join(letter['enclosures'])}"]
    return "\n".join(lines) + "\n"


def _plain_block(block: Block) -> list[str]:
    if block["type"] == "items":
        return [f"- {one}" for one in block["items"]]
    if block["type"] == "code":
        return [f"    {one}" for one in block["lines"]]
    if block["type"] == "fields":
        return [f"{one['label']}: {one['value']}" for one in block["fields"]]
    found: list[str] = block["paragraphs"]
    return found


def _about(facts: LetterFacts, words: Mapping[str, str]) -> list[dict[str, Any]]:
    lines = [
        line(words["label_date"], day_text(facts.today, facts.lang)),
        line(words["label_reference"], facts.request, exact=True),
        line(words["label_received"], day_text(facts.received, facts.lang)),
    ]
    if facts.kind in ("acknowledgement", "extension"):
        lines.append(line(words["label_due"], day_text(facts.due, facts.lang)))
    if facts.controller.get("dpo"):
        lines.append(line(words["label_dpo"], facts.controller["dpo"]))
    return lines


def _body(facts: LetterFacts, words: Mapping[str, str]) -> list[Block]:
    lang = facts.lang
    asked = words["asked"].format(received=day_text(facts.received, lang), right=words[f"right_{facts.right}"])
    limit = facts.scope["of"]
    if limit != "all":
        asked += " " + words[f"only_{limit}"].format(classes=", ".join(facts.scope.get("data_classes", ())))
    if facts.kind == "acknowledgement":
        then = words["ack_nothing"] if facts.verified else words["ack_identity"]
        return [text(asked, words["ack_due"].format(due=day_text(facts.due, lang)), then)]
    if facts.kind == "extension":
        first = day_text(facts.first_due or facts.due, lang)
        until = words["ext_until"].format(due=first, extended=day_text(facts.due, lang))
        reason = [words["ext_reason"].format(reason=facts.reason)] if facts.reason else []
        return [text(asked, until, *reason)]
    if facts.kind == "refusal":
        return [text(asked, words["ref_ground"].format(ground=words[f"ground_{facts.ground}"]))]
    if facts.kind == "no_match":
        return _no_match(facts, words, asked)
    if facts.kind == "restriction_lifting":
        return [text(asked, words["lift"])]
    return _answer(facts, words, asked)


def _no_match(facts: LetterFacts, words: Mapping[str, str], asked: str) -> list[Block]:
    statement = facts.statement or {"stores": [], "data_classes": []}
    where = words["nom_where"].format(
        stores=", ".join(statement["stores"]) or "–", classes=", ".join(statement["data_classes"]) or "–"
    )
    day = day_text(datetime.fromisoformat(statement["at"]).date() if "at" in statement else facts.today, facts.lang)
    return [
        text(asked, words["nom_none"].format(day=day)),
        items(*facts.names),
        text(where, words["nom_more"], words["nom_no_certificate"]),
    ]


def _answer(facts: LetterFacts, words: Mapping[str, str], asked: str) -> list[Block]:
    certificate = facts.certificate
    if certificate is None:
        return [text(asked, words["ans_done"], *([words["ans_export"]] if facts.has_export else []))]
    copies = certificate["copies"]
    gone = sum(copy["state"] in GONE for copy in copies)
    kept = sum(copy["state"] == "retained" for copy in copies)
    failed = sum(copy["state"] in BROKEN for copy in copies)
    name = "ans_exceptions" if failed else "ans_retained" if kept else "ans_completed"
    done = words[name].format(
        count=len(copies), stores=len({copy["store"] for copy in copies}), gone=gone, kept=kept, failed=failed
    )
    later = []
    if certificate["version"] == "interim" and facts.final_due is not None:
        later.append(words["ans_interim"].format(final=day_text(facts.final_due, facts.lang)))
    return [text(asked, done, *later)]


def _more(facts: LetterFacts, words: Mapping[str, str]) -> list[dict[str, Any]]:
    certificate = facts.certificate
    if facts.kind != "answer" or certificate is None:
        return []
    parts = []
    by_number = {copy["copy"]: copy for copy in certificate["copies"]}
    stays = sorted({_stays(by_number[one["copy"]], one, facts.lang, words) for one in certificate["retained"]})
    if stays:
        parts.append(section(words["head_stays"], items(*stays), text(words["stays_restricted"])))
    broken = [copy for copy in certificate["copies"] if copy["state"] in BROKEN]
    failed = sorted(
        {words["failed_line"].format(data_class=copy["data_class"], store=copy["store"]) for copy in broken}
    )
    if failed:
        parts.append(section(words["head_failed"], items(*failed)))
    residual = _residuals(certificate["residuals"], facts.lang, words)
    if residual:
        parts.append(section(words["head_residual"], text(words["residual"]), items(*residual)))
    if facts.openings:
        parts.append(section(words["head_opening"], *_how_to_open(facts, words)))
    return parts


def _stays(copy: Mapping[str, Any], one: Mapping[str, Any], lang: str, words: Mapping[str, str]) -> str:
    until = words["stays_no_end"] if one["until"] is None else until_text(one["until"], lang=lang)
    ground = "; ".join(one["ground"]) or one["rule"]
    return words["stays_line"].format(data_class=copy["data_class"], ground=ground, until=until)


def _residuals(lines: Sequence[Mapping[str, str]], lang: str, words: Mapping[str, str]) -> list[str]:
    """One line for all systems whose windows are alike."""
    by_store: dict[str, list[str]] = {}
    for one in lines:
        what = words.get(f"what_{one['what']}", words["what_keys"])
        unknown = one["until"] in (None, "unknown")
        name = "residual_unknown" if unknown else "residual_until"
        window = words[name].format(what=what, until=until_text(one["until"], lang=lang))
        by_store.setdefault(one["store"], []).append(window)
    alike: dict[str, list[str]] = {}
    for store, windows in by_store.items():
        alike.setdefault(", ".join(windows), []).append(store)
    return [f"{', '.join(stores)}: {windows}" for windows, stores in alike.items()]


def _how_to_open(facts: LetterFacts, words: Mapping[str, str]) -> list[Block]:
    blocks: list[Block] = [text(words["opening"])]
    for one in facts.openings:
        number = commitment(bytes.fromhex(one["salt"]), one["subject"])
        blocks.append(
            fields(
                line(words["opening_name"], one["subject"], exact=True),
                line(words["opening_salt"], one["salt"], exact=True),
                line(words["opening_number"], number, exact=True),
            )
        )
    first = facts.openings[0]
    blocks += [text(words["opening_how"]), code(*shell_lines(first["salt"], first["subject"])),
               text(words["opening_tool"])]  # fmt: skip
    return blocks


def shell_lines(salt: str, subject: str) -> list[str]:
    """Commands that print the commitment of a name, with the tools of any Unix."""
    quoted = subject.replace("'", "'\\''")
    return [
        f"(printf '{_COMMITMENT_PREFIX}\\n'",
        f" printf {salt[:32]}\\",
        f"{salt[32:]} | xxd -r -p",
        f" printf '%s' '{quoted}') | sha256sum",
    ]


def _remedies(facts: LetterFacts, words: Mapping[str, str]) -> dict[str, Any]:
    body = facts.controller.get("complaint_body")
    remedy = words[f"rights_{facts.regulation}"].format(body=f" ({body})" if body else "")
    contact = facts.controller.get("contact")
    lines = [remedy, *([words["rights_contact"].format(contact=contact)] if contact else [])]
    return section(words["head_rights"], text(*lines))


def _enclosures(facts: LetterFacts, words: Mapping[str, str]) -> list[str]:
    found = []
    if facts.kind == "answer" and facts.certificate is not None:
        version = facts.certificate["version"]
        found.append(words["enclosure_certificate"].format(version=version, request=facts.request))
    if facts.kind == "answer" and facts.has_export:
        found.append(words["enclosure_export"].format(request=facts.request))
    return found


def _opening(facts: LetterFacts) -> dict[str, Any] | None:
    if facts.kind != "answer" or not facts.openings:
        return None
    return {
        "schema": "muniment-opening/v1",
        "request": facts.request,
        "openings": [
            {
                "subject": one["subject"],
                "salt": one["salt"],
                "commitment": commitment(bytes.fromhex(one["salt"]), one["subject"]),
            }
            for one in facts.openings
        ],
    }
