"""What a letter to the person says: a function of facts, in the language asked for. Pure.

Guarantees: an answer about an erasure says what the certificate says and counts what it lists; it alone carries the
salts that open the commitments. What nobody knows is said to be unknown. Refusals and extensions name the remedies.
Source: GDPR Art. 12(3), 12(4), 18(3), 77, 79; 11 CCR 7021, 7022.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from erasure.certificate import commitment
from erasure.rendering.blocks import Block, code, day_text, fields, items, section, text, until_text
from erasure.rendering.blocks import field as line
from erasure.rendering.opened import numbered
from erasure.rendering.wording import WORDS
from erasure.request import BROKEN, GONE, MAYBE_OURS, CopyState

_ABSENT = CopyState.ALREADY_ABSENT

KINDS = ("acknowledgement", "extension", "refusal", "no_match", "restriction_lifting", "answer", "recipients")
LEFT_OUT = ("others", "not_portable", "withheld", "earlier", "erasing", "expired", "absent", "failed")
"""Why a copy is not in a package, in the order in which a letter says so."""
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
    unverified: Sequence[str] = field(default=(), repr=False)
    """What the request also named, and nobody showed to be the person's."""
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
    exported: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many copies a package lacks, by one of `LEFT_OUT`."""
    recipients: Sequence[Mapping[str, Any]] = ()
    """Who outside received the data, as `erasure.recipients` shows them."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Classes of data in the words of their owners."""


def letter_of(facts: LetterFacts) -> dict[str, Any]:
    """The letter's paper: head, sections, and the opening as data where there is one."""
    words = WORDS[facts.lang]
    controller = facts.controller
    name = str(controller.get("name") or facts.tenant)
    sections = [section("", *_body(facts, words)), *_unverified(facts, words), *_more(facts, words)]
    if facts.kind != "acknowledgement":
        sections.append(_remedies(facts, words))
    subject = "subject_answer_erasure" if facts.kind == "answer" and facts.certificate else f"subject_{facts.kind}"
    if facts.kind == "no_match" and _is_known(facts):
        subject = "subject_nothing"
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
        names = [_what(name, facts, words) for name in facts.scope.get("data_classes", ())]
        asked += " " + words[f"only_{limit}"].format(classes=", ".join(names))
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
    if facts.kind == "recipients":
        return _recipients(facts, words, asked)
    return _answer(facts, words, asked)


def _unverified(facts: LetterFacts, words: Mapping[str, str]) -> list[dict[str, Any]]:
    """Under which of the names nothing was done, once the request is answered."""
    if facts.kind not in ("answer", "no_match") or not facts.unverified:
        return []
    return [section(words["head_unverified"], text(words["unverified"]), items(*facts.unverified))]


def _no_match(facts: LetterFacts, words: Mapping[str, str], asked: str) -> list[Block]:
    statement = facts.statement or {"stores": [], "data_classes": []}
    where = words["nom_where"].format(
        stores=", ".join(statement["stores"]) or "–",
        classes=", ".join(_what(name, facts, words) for name in statement["data_classes"]) or "–",
    )
    day = day_text(datetime.fromisoformat(statement["at"]).date() if "at" in statement else facts.today, facts.lang)
    return [
        text(asked, words["nom_nothing" if _is_known(facts) else "nom_none"].format(day=day)),
        items(*facts.names),
        text(where, words["nom_more"], words["nom_no_certificate"]),
    ]


def _is_known(facts: LetterFacts) -> bool:
    """Whether the person is known, and nothing is held of what the request was limited to."""
    return bool((facts.statement or {}).get("known"))


def _recipients(facts: LetterFacts, words: Mapping[str, str], asked: str) -> list[Block]:
    """Who received the data, and what each was told and answered. Source: GDPR Art. 19, second sentence."""
    if not facts.recipients:
        return [text(asked, words["rec_none"])]
    return [text(asked, words["rec_some"]), items(*(_told(one, facts.lang, words) for one in facts.recipients))]


def _told(one: Mapping[str, Any], lang: str, words: Mapping[str, str]) -> str:
    name = one["recipient"] if one["country"] is None else f"{one['recipient']} ({one['country']})"
    said = [words["rec_open"] if one["told_at"] is None else words["rec_told"].format(day=_day(one["told_at"], lang))]
    if one["answer"] is not None:
        answer = words[f"rec_{one['answer']}"].format(day=_day(one["answered_at"], lang))
        said = [answer] if one["told_at"] is None else [*said, answer]
    return f"{name}: {'; '.join(said)}"


def _day(instant: str, lang: str) -> str:
    return day_text(datetime.fromisoformat(instant).date(), lang)


def _answer(facts: LetterFacts, words: Mapping[str, str], asked: str) -> list[Block]:
    certificate = facts.certificate
    if certificate is None:
        done = words["ans_done_but" if facts.left_out else "ans_done"]
        return [text(asked, done, *([_handed_over(facts, words)] if facts.has_export else []))]
    later = []
    if certificate["version"] == "interim" and facts.final_due is not None:
        later.append(words["ans_interim"].format(final=day_text(facts.final_due, facts.lang)))
    return [text(asked, _counted(certificate["copies"], words), *later)]


def _handed_over(facts: LetterFacts, words: Mapping[str, str]) -> str:
    if facts.exported:
        return words["ans_export"]
    return words["ans_export_empty" if facts.left_out else "ans_export_none"]


def _counted(copies: Sequence[Mapping[str, Any]], words: Mapping[str, str]) -> str:
    """What became of the copies, each counted once: one that was not there any more is none that we erased.

    Unless we may have: of one that was tried before it is not known.
    """
    states: Counter[str] = Counter()
    stores: set[str] = set()
    others = tried = 0
    for copy in copies:
        states[copy["state"]] += 1
        stores.add(copy["store"])
        tried += copy["state"] == _ABSENT and str(copy["method"]).endswith(MAYBE_OURS)
        others += bool(copy["collateral"]) and copy["state"] in GONE - {_ABSENT}
    gone = sum(states[state] for state in GONE - {_ABSENT})
    failed = sum(states[state] for state in BROKEN)
    said = [
        words["ans_found"].format(
            copies=_number(words, "copies", len(copies)),
            systems=_number(words, "systems", len(stores)),
        )
    ]
    if gone:
        said.append(_number(words, "ans_all_gone" if gone == len(copies) else "ans_gone", gone))
    counts = {"absent": states[_ABSENT] - tried, "tried": tried, "kept": states["retained"], "failed": failed}
    for name, count in (*counts.items(), ("others", others)):
        if count:
            said.append(_number(words, f"ans_{name}", count))
    return " ".join(said)


def _number(words: Mapping[str, str], name: str, count: int, **more: str) -> str:
    """The singular or the plural of a sentence."""
    return words[f"{name}_one" if count == 1 else f"{name}_many"].format(n=count, **more)


def _more(facts: LetterFacts, words: Mapping[str, str]) -> list[dict[str, Any]]:
    certificate = facts.certificate
    if facts.kind != "answer":
        return []
    if certificate is None:
        left = _left_out(facts, words)
        return [section(words["head_left"], items(*left))] if left else []
    parts = []
    by_number = numbered(certificate["copies"], certificate["retained"])
    stays = sorted({_stays(by_number[one["copy"]], one, facts, words) for one in certificate["retained"]})
    if stays:
        parts.append(section(words["head_stays"], items(*stays), text(words["stays_restricted"])))
    failed = sorted(
        {
            words["failed_line"].format(
                what=_what(copy["data_class"], facts, words), store=_system(copy["store"], words)
            )
            for copy in certificate["copies"]
            if copy["state"] in BROKEN
        }
    )
    if failed:
        parts.append(section(words["head_failed"], items(*failed)))
    residual = _residuals(certificate["residuals"], facts.lang, words)
    if residual:
        parts.append(section(words["head_residual"], text(words["residual"]), items(*residual)))
    if facts.openings:
        parts.append(section(words["head_opening"], *_how_to_open(facts, words)))
    return parts


def _left_out(facts: LetterFacts, words: Mapping[str, str]) -> list[str]:
    """What the package lacks, by reason."""
    article = words["left_others_article"] if facts.regulation == "gdpr" else ""
    return [
        _number(words, f"left_{name}", facts.left_out[name], **({"article": article} if name == "others" else {}))
        for name in LEFT_OUT
        if facts.left_out.get(name)
    ]


def _what(data_class: str, facts: LetterFacts, words: Mapping[str, str]) -> str:
    """A class of data in the words in which it is described to people; its name where it has none."""
    if data_class == "identity":
        return words["what_identity"]
    return facts.descriptions.get(data_class) or data_class


def _stays(copy: Mapping[str, Any], one: Mapping[str, Any], facts: LetterFacts, words: Mapping[str, str]) -> str:
    what, reason = _what(copy["data_class"], facts, words), _reason(copy, one, words)
    if one["until"] is None:
        return words["stays_line_open"].format(what=what, reason=reason)
    return words["stays_line"].format(what=what, reason=reason, until=until_text(one["until"], lang=facts.lang))


def _system(store: str, words: Mapping[str, str]) -> str:
    return words.get(f"what_{store}") or words["what_system"].format(store=store)


def _reason(copy: Mapping[str, Any], one: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """Why it stays, in words; no id of ours, which tells a person nothing."""
    if copy["method"] == "by hand":
        return words["stays_reason_human"]
    if one["rule"] in ("floor", "exemption"):
        basis = "; ".join(one["ground"])
        return words[f"stays_reason_{one['rule']}"].format(basis=f" ({basis})" if basis else "")
    if one["rule"] in ("hold", "restriction"):
        return words[f"stays_reason_{one['rule']}"]
    return words[
        "stays_reason_sources" if any("sources" in ground for ground in one["ground"]) else "stays_reason_other"
    ]


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
    names = {store: _system(store, words) for store in by_store}
    return [f"{', '.join(names[store] for store in stores)}: {windows}" for windows, stores in alike.items()]


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
        found.append(words[f"enclosure_{version}"].format(request=facts.request))
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
