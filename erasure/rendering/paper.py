"""HTML and PDF of a paper's model.

Guarantees: both show every block of the model and nothing else. The HTML is one page that loads nothing and runs
nothing, with its own content security policy; the PDF is PDF/A-3 with the data attached. A character that the
typesetter's fonts lack is printed as its code point, and a table too long for paper by where it is, so that nothing is
silently left out: the attached data has it. Typesetting is bounded in time and memory; two papers are set at once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import subprocess
import sys
import tempfile
import threading
import unicodedata
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2

from erasure.errors import PaperNotSet
from erasure.rendering.blocks import Block, Rows, section, text
from erasure.rendering.opened import document_of
from erasure.rendering.sheet import sheet_of
from erasure.signed_file import PIECE, Readable, SignedFile

FORM = 3
"""Raised whenever a paper of the same model would look different."""
ATTACHED = "certificate.json"
_SECONDS = 60.0
MOST_ROWS = 5_000
"""Rows of one table in a PDF: the typesetter needs about 85 KB of memory for each."""
_AT_ONCE = threading.BoundedSemaphore(2)
_PDF = b"%PDF-"
_TOGETHER = 200
"""Rows of a long table that are set at once."""
_LONGEST_WORD = 24
_BREAK = "\u200b"
"""Becomes a place to break in `layout.typ`, and no character on the paper: copied keys and ids stay what they are."""
_INSIDE = "\N{NULL}the signed file\N{NULL}"
"""Stands at the end of a page for the file, until the page is whole: the file is not copied by the template."""
_TEMPLATES = Path(__file__).with_name("templates")
_PRESS = Path(__file__).with_name("press.py")
_PRINTABLE = (
    (0x20, 0x7E), (0xA0, 0xAC), (0xAE, 0x2FF), (0x384, 0x38A), (0x38E, 0x3A1), (0x3A3, 0x482), (0x48A, 0x4FF),
    (0x5D0, 0x5EA), (0x621, 0x63A), (0x640, 0x64A), (0x660, 0x66D), (0x10D0, 0x10FF), (0x1E00, 0x1F15),
    (0x2010, 0x2027), (0x2030, 0x2040), (0x20A0, 0x20C0), (0x2190, 0x21FF), (0x25A0, 0x25FF),
)  # fmt: skip
"""What the two fonts inside the pinned typesetter can print; `tests/erasure` sets every one of them."""


def form() -> str:
    """The name of this way of setting papers; two papers of one certificate are equal only under the same."""
    return f"muniment-paper/{FORM}+typst-{version('typst')}"


def certificate_html(report: Readable) -> bytes:
    """The bytes of `html_file`."""
    with html_file(report) as page:
        return page.read()


def certificate_pdf(report: Readable) -> bytes:
    """The bytes of `pdf_file`. Raises: as it does."""
    with pdf_file(report) as paper:
        return paper.read()


def html_file(report: Readable) -> SignedFile:
    """A signed certificate as one page of HTML with the signed file inside.

    Long tables are set some rows at a time, and the signed file goes in piece by piece: neither is in memory whole.
    """
    later: dict[str, Block] = {}
    model = {**sheet_of(report), "form": form()}
    model["sections"] = [_without_rows(part, later) for part in model["sections"]]
    return SignedFile.of(_page(model, later, memoryview(report)))


def _without_rows(part: Mapping[str, Any], later: dict[str, Block]) -> dict[str, Any]:
    """The section with a mark for the rows of its long tables, which are added to `later` under their marks."""
    blocks = []
    for block in part["blocks"]:
        if isinstance(block.get("rows"), Rows):
            # Nobody knows it beforehand, so no text of a certificate can hold it.
            mark = secrets.token_hex(16)
            later[mark] = block
            blocks.append({**block, "rows": (), "later": mark})
        else:
            blocks.append(block)
    return {**part, "blocks": blocks}


def _page(model: Mapping[str, Any], later: Mapping[str, Block], report: memoryview) -> Iterator[bytes]:
    # From the end: a text of the certificate may say what it likes.
    before, _, after = _html("certificate.html", model, _INSIDE).rpartition(_INSIDE.encode())
    rows_of: Any = _pages().get_template("blocks.html").module.rows  # type: ignore[attr-defined]  # a macro of it
    for mark, block in later.items():
        head, _, before = before.partition(mark.encode())
        yield head
        for start in range(0, len(block["rows"]), _TOGETHER):
            yield str(rows_of(block["columns"], block["rows"][start : start + _TOGETHER])).encode()
    yield before
    for start in range(0, len(report), PIECE):
        # `<` in a script element would end it; the escapes mean the same to every JSON reader.
        piece = bytes(report[start : start + PIECE])
        yield piece.replace(b"<", b"\\u003c").replace(b">", b"\\u003e").replace(b"&", b"\\u0026")
    yield after


def pdf_file(report: Readable) -> SignedFile:
    """A signed certificate as PDF/A-3 with the signed file attached. Raises: PaperNotSet."""
    model = sheet_of(report, most=MOST_ROWS, elsewhere="for paper")
    issued = datetime.fromisoformat(document_of(report)["certificate"]["issued_at"])
    model["sections"] = [*model["sections"][:-3], _signatures(), *map(_bounded, model["sections"][-3:])]
    model["attachment"] = {"name": ATTACHED, "description": f"The signed certificate. Set by {form()}"}
    return _pdf("certificate", model, report, issued)


def letter_html(model: Mapping[str, Any]) -> bytes:
    """A letter as one page of HTML, with its opening inside where it has one."""
    opening = model["opening"]
    inside = "" if opening is None else json.dumps(opening).replace("<", "\\u003c").replace("&", "\\u0026")
    return _html("letter.html", model, inside)


def letter_pdf(model: Mapping[str, Any]) -> bytes:
    """A letter as PDF/A-3, with its opening attached where it has one. Raises: PaperNotSet."""
    opening = model["opening"]
    attachment = None if opening is None else {"name": "opening.json", "description": "Opens the commitments"}
    attached = "" if opening is None else json.dumps(opening, ensure_ascii=False, sort_keys=True)
    with _pdf("letter", {**model, "attachment": attachment}, attached.encode(), model["at"]) as paper:
        return paper.read()


def _bounded(part: dict[str, Any]) -> dict[str, Any]:
    """The section with a table that is too long for paper replaced by where its rows are."""
    blocks = [
        text(f"{len(one['rows'])} rows are too many for paper. The signed file inside has each.")
        if one["type"] == "table" and len(one["rows"]) > MOST_ROWS
        else one
        for one in part["blocks"]
    ]
    return {**part, "blocks": blocks}


def _signatures() -> dict[str, Any]:
    lines = ["For the controller: name, date, signature", "Second person: name, date, signature"]
    return section("Signed", {"type": "signatures", "signatures": lines})


@cache
def _pages() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def style_hash() -> str:
    """The source expression that lets a content security policy allow the papers' one style sheet."""
    style = (_TEMPLATES / "paper.css").read_bytes()
    return f"'sha256-{b64encode(hashlib.sha256(style).digest()).decode('ascii')}'"


def policy() -> str:
    """The content security policy of a paper: its own style and nothing else."""
    return f"default-src 'none'; style-src {style_hash()}; base-uri 'none'; form-action 'none'"


def _html(template: str, model: Mapping[str, Any], inside: str) -> bytes:
    style = (_TEMPLATES / "paper.css").read_text(encoding="utf-8")
    page = _pages().get_template(template).render(model=model, inside=inside, style=style, policy=policy())
    return page.encode()


def _pdf(template: str, model: Mapping[str, Any], attached: Readable, at: datetime) -> SignedFile:
    asked = {
        "template": template,
        "model": printable({name: value for name, value in model.items() if name not in ("opening", "at")}),
        "timestamp": int(at.timestamp()),
    }
    if not _AT_ONCE.acquire(timeout=_SECONDS):
        raise PaperNotSet(f"two others are being set, and none was ready within {_SECONDS:.0f} s")
    try:
        return _pressed(json.dumps(asked).encode(), attached)
    finally:
        _AT_ONCE.release()


def _pressed(asked: bytes, attached: Readable) -> SignedFile:
    """What the typesetter makes; its own memory goes with its process, and what it attaches is not in ours."""
    with tempfile.TemporaryFile() as inside, ExitStack() as unless_set:
        inside.write(attached)
        inside.seek(0)
        paper = unless_set.enter_context(tempfile.TemporaryFile())
        try:
            done = subprocess.run(  # noqa: S603 - our own interpreter and our own file, no shell, no environment
                [sys.executable, "-I", str(_PRESS), str(inside.fileno())],
                input=asked,
                stdout=paper,
                stderr=subprocess.PIPE,
                pass_fds=(inside.fileno(),),
                timeout=_SECONDS,
                check=False,
                env={},
            )
        except subprocess.TimeoutExpired:
            raise PaperNotSet(f"not within {_SECONDS:.0f} s") from None
        paper.seek(0)
        if done.returncode != 0 or paper.read(len(_PDF)) != _PDF:
            # The message may hold words of the paper, so it is not repeated.
            raise PaperNotSet(f"the typesetter ended with {done.returncode}")
        unless_set.pop_all()
        return SignedFile(paper)


def printable(value: Any, *, breakable: bool = False) -> Any:
    """The same value with every text made of characters that the fonts have, long words of tables with breaks."""
    if isinstance(value, str):
        shown = _plain(value)
        return _breakable(shown) if breakable else shown
    if isinstance(value, Mapping):
        # What is set in a fixed width is to be copied: it is never broken.
        breaks = breakable and not value.get("exact")
        return {name: printable(one, breakable=breaks or name == "sections") for name, one in value.items()}
    if isinstance(value, list | tuple | Rows):
        return [printable(one, breakable=breakable) for one in value]
    return value


def _plain(value: str) -> str:
    return "".join(_shown(char) for char in unicodedata.normalize("NFC", value))


def _shown(char: str) -> str:
    if char == "\n" or any(low <= ord(char) <= high for low, high in _PRINTABLE):
        return char
    return " " if char in "\t\r" else f"[U+{ord(char):04X}]"


def _breakable(value: str) -> str:
    words = value.split(" ")
    if all(len(word) <= _LONGEST_WORD for word in words):
        return value
    return " ".join(_split(word) for word in words)


def _split(word: str) -> str:
    if len(word) <= _LONGEST_WORD:
        return word
    return _BREAK.join(word[at : at + _LONGEST_WORD] for at in range(0, len(word), _LONGEST_WORD))
