"""Takes the signed certificate, or the opening of a letter, out of the paper that carries it.

Guarantees: reads PDF as this product writes it (one cross-reference table, no encryption) and its own HTML, both
strictly and bounded; anything else is refused, never guessed at. Of a page nothing is in memory whole. What is taken
out is not believed here: `erasure.report_check` checks it, and `erasure.rendering.compare` sets the paper again and
compares the bytes.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator

from erasure.canonical_file import canonical_document
from erasure.errors import LetterWithoutOpening, ReportError
from erasure.rendering.paper import ATTACHED
from erasure.rendering.wording import WORDS
from erasure.signed_file import PIECE, Readable, SignedFile
from erasure.strict_json import canonical, parse

MAX_BYTES = 256 * 1024 * 1024
OPENING = "opening.json"
_SCRIPT = re.compile(rb'<script type="application/json" id="muniment-(certificate|opening)">(.*?)</script>', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:u00(3c|3e|26)|.)", re.DOTALL)
"""An escape of a JSON text; the group of those that a page writes for what would end its script."""
_COMMA = re.compile(rb",")
_PAPER = re.compile(rb"muniment-certificate")
_MEMBERS = (re.compile(rb'"certificate"'), re.compile(rb'"signature"'))
_START = re.compile(rb"startxref\s+(\d{1,10})\s+%%EOF\s*\Z")
_ROOT = re.compile(rb"/Root\s+(\d{1,8})\s+0\s+R")
_NAMES = re.compile(rb"/EmbeddedFiles\s*<<\s*/Names\s*\[\s*\((" + rb"[a-z.]{1,40}" + rb")\)\s*(\d{1,8})\s+0\s+R\s*\]")
_FILE = re.compile(rb"/EF\s*<<\s*/F\s+(\d{1,8})\s+0\s+R")
_LENGTH = re.compile(rb"/Length\s+(\d{1,9})(?!\s+\d+\s+R)")


def claims_a_certificate(file: Readable) -> bool:
    """Whether anything in the file says that it is, carries or was a certificate: only that can be refuted."""
    if is_pdf(file):
        return re.search(re.escape(f"({ATTACHED})".encode()), file) is not None
    return _PAPER.search(file) is not None or all(member.search(file) for member in _MEMBERS)


def is_pdf(file: Readable) -> bool:
    """Whether the file is a PDF."""
    return bytes(file[:5]) == b"%PDF-"


def is_letter(file: bytes) -> bool:
    """Whether the file is a letter to the person with the opening inside."""
    try:
        return bool(opening_in(file)) and not file.lstrip().startswith(b"{")
    except LetterWithoutOpening:
        return False


def certificate_in(file: bytes) -> bytes:
    """The bytes of `certificate_file`. Raises: ReportError."""
    with certificate_file(file) as found:
        return found.read()


def certificate_file(file: Readable) -> SignedFile:
    """The signed certificate inside a JSON, HTML or PDF file. Raises: ReportError."""
    if len(file) > MAX_BYTES:
        raise ReportError("", f"the file has {len(file)} bytes, at most {MAX_BYTES} are read")
    if is_pdf(file):
        return SignedFile.of([_attached(bytes(file), ATTACHED)])
    if is_html(file):
        return _canonical(_scripted(file, b"certificate"))
    return SignedFile.of(_in_pieces(memoryview(file)))


def opening_in(file: bytes) -> bytes:
    """The opening inside a letter (HTML, PDF, plain text) or a file of it. Raises: LetterWithoutOpening."""
    try:
        if is_pdf(file):
            return _attached(file, OPENING)
        if is_html(file):
            return bytes(_scripted(file, b"opening"))
    except ReportError as error:
        raise LetterWithoutOpening(error.detail) from error
    if file.lstrip()[:1] == b"{":
        return file
    return _written(file)


def _written(file: bytes) -> bytes:
    """The opening of a letter in plain text, by its labels in any language, also quoted or wrapped by mail."""
    try:
        text = "\n".join(line.strip("> \t\r") for line in file.decode("utf-8").splitlines())
    except UnicodeDecodeError as error:
        raise LetterWithoutOpening("not text") from error
    found = [
        {"subject": match[1], "salt": "".join(match[2].split())}
        for words in WORDS.values()
        for match in re.finditer(
            rf"^{re.escape(words['opening_name'])}:\s(.+)\n{re.escape(words['opening_salt'])}:\s+((?:[0-9a-f]\s*){{64}})$",
            text,
            re.MULTILINE,
        )
    ]
    if not found:
        raise LetterWithoutOpening("no name with its secret in it")
    return json.dumps({"openings": found}).encode()


def is_html(file: Readable) -> bool:
    """Whether the file is a page rather than JSON."""
    return bytes(file[:64]).lstrip().lower().startswith(b"<!doctype html")


def _scripted(file: Readable, name: bytes) -> memoryview:
    found = [match.span(2) for match in _SCRIPT.finditer(file) if match[1] == name]
    if len(found) != 1:
        raise ReportError("", f"expected one {name.decode()} in the page, got {len(found)}")
    first, end = found[0]
    return memoryview(file)[first:end]


def _canonical(inside: memoryview) -> SignedFile:
    """The page writes `<` as an escape; the signed bytes are the canonical ones of the same value.

    Without the page's escapes it says the same. Where that is the canonical form already, nothing has to be parsed.
    """
    plain = SignedFile.of(_without_escapes(inside))
    if canonical_document(plain.view()) is not None:
        return plain
    plain.close()
    return SignedFile.of([canonical(parse(bytes(inside)))])


def _without_escapes(inside: memoryview) -> Iterator[Readable]:
    """The text with the characters that a page writes as escapes; an escaped backslash before a `u` is none of them."""
    at = 0
    while at < len(inside):
        # No escape that a page writes has a comma in it, so none is cut in two.
        comma = _COMMA.search(inside, at + PIECE)
        end = len(inside) if comma is None else comma.end()
        yield _ESCAPE.sub(_unescaped, bytes(inside[at:end]))
        at = end


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return escape[0] if escape[1] is None else bytes.fromhex(escape[1].decode("ascii"))


def _in_pieces(view: memoryview) -> Iterator[memoryview]:
    return (view[start : start + PIECE] for start in range(0, len(view), PIECE))


def _attached(file: bytes, name: str) -> bytes:
    catalog = _object(file, _reference(_ROOT, _trailer(file), "its catalog"))
    names = _NAMES.search(catalog)
    if names is None or names[1].decode("ascii") != name:
        raise ReportError("", f"the PDF carries no {name}")
    place = _reference(_FILE, _object(file, int(names[2])), "its attachment")
    return _stream(file, place)


def _trailer(file: bytes) -> bytes:
    start = _START.search(file[-64:])
    if start is None or file.count(b"startxref") != 1:
        raise ReportError("", "not a PDF as it was issued: its end was changed, or something was added to it")
    at = file.find(b"trailer", int(start[1]))
    if at < 0 or file[int(start[1]) : int(start[1]) + 4] != b"xref":
        raise ReportError("", "not a PDF as it was issued: no cross-reference table")
    return file[at:]


def _offset(file: bytes, number: int) -> int:
    start = _START.search(file[-64:])
    table = file[int(start[1]) :] if start else b""
    head = re.match(rb"xref\s+0 (\d{1,8})\s*\n", table)
    if head is None or number >= int(head[1]):
        raise ReportError("", f"the PDF has no object {number}")
    line = table[head.end() + 20 * number : head.end() + 20 * number + 20]
    if not re.fullmatch(rb"\d{10} \d{5} n\s\s?", line):
        raise ReportError("", f"the PDF has no object {number}")
    return int(line[:10])


def _object(file: bytes, number: int) -> bytes:
    at = _offset(file, number)
    if not file[at : at + 24].startswith(b"%d 0 obj" % number):
        raise ReportError("", f"object {number} of the PDF is not where its table says")
    end = file.find(b"endobj", at)
    return file[at : end if end > 0 else len(file)]


def _reference(pattern: re.Pattern[bytes], text: bytes, what: str) -> int:
    found = pattern.search(text)
    if found is None:
        raise ReportError("", f"the PDF does not name {what}")
    return int(found[1])


def _stream(file: bytes, number: int) -> bytes:
    at = _offset(file, number)
    begin = file.find(b"stream", at)
    head = file[at:begin]
    length = _LENGTH.search(head)
    if begin < 0 or length is None or not head.startswith(b"%d 0 obj" % number):
        raise ReportError("", "the attachment of the PDF cannot be read")
    begin += len(b"stream\r\n") if file[begin + 6 : begin + 8] == b"\r\n" else len(b"stream\n")
    data = file[begin : begin + int(length[1])]
    if b"/Filter" not in head:
        return data
    if not re.search(rb"/Filter\s*/FlateDecode", head):
        raise ReportError("", "the attachment of the PDF is packed in a way that is not used by it")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, MAX_BYTES)
    except zlib.error as error:
        raise ReportError("", "the attachment of the PDF does not unpack") from error
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ReportError("", f"the attachment of the PDF is cut, or larger than {MAX_BYTES} bytes")
    return plain
