"""What a validator looks for in a PDF/A-3a, as far as it can be read without decoding pages. Source: ISO 19005-3:2012.

The clause stands before each fault. Not here: colours and glyphs inside page contents.
"""

from __future__ import annotations

import re
import zlib

_OBJECT = re.compile(rb"(?:^|[\r\n])(\d+) 0 obj\s(.*?)\sendobj", re.DOTALL)
_STREAM = re.compile(rb"^(<<.*?>>)\s*stream\r?\n(.*)\r?\nendstream$", re.DOTALL)
_ACTIONS = (
    b"JavaScript", b"Launch", b"Sound", b"Movie", b"ResetForm", b"ImportData", b"Hide", b"SetOCGState", b"Rendition",
    b"Trans", b"GoTo3DView",
)  # fmt: skip
_FILTERS = {b"FlateDecode", b"DCTDecode", b"ASCII85Decode", b"ASCIIHexDecode", b"RunLengthDecode"}


def faults(pdf: bytes) -> list[str]:
    """The rules that the file breaks; none for one that a validator would let pass this far."""
    objects = {int(number): body for number, body in _OBJECT.findall(pdf)}
    heads = {number: _head(body) for number, body in objects.items()}
    catalog = next((head for head in heads.values() if re.search(rb"/Type\s*/Catalog\b", head)), b"")
    found = _of_file(pdf) + _of_catalog(catalog) + _of_fonts(heads) + _of_attachments(catalog, heads)
    for head in heads.values():
        found += [f"6.6.1 action {name.decode()}" for name in _ACTIONS if re.search(rb"/S\s*/" + name + rb"\b", head)]
        found += [
            f"6.1.7.2 filter {name.decode()}"
            for name in re.findall(rb"/Filter\s*\[?\s*/(\w+)", head)
            if name not in _FILTERS
        ]
        if re.search(rb"/Subtype\s*/(?:Link|Widget)\b", head) and not re.search(rb"/F\s+\d*[4567]\b", head):
            found.append("6.3.2 an annotation that does not print")
    return found + _of_metadata(objects, catalog)


def _head(body: bytes) -> bytes:
    stream = _STREAM.match(body)
    return body if stream is None else stream.group(1)


def _of_file(pdf: bytes) -> list[str]:
    found = []
    first, _, rest = pdf.partition(b"\n")
    comment = rest.partition(b"\n")[0]
    if not re.fullmatch(rb"%PDF-1\.[0-7]", first.rstrip()):
        found.append("6.1.2 header")
    if not comment.startswith(b"%") or sum(byte > 127 for byte in comment[1:5]) < 4:
        found.append("6.1.2 no binary comment after the header")
    if not re.search(rb"%%EOF\r?\n?\Z", pdf):
        found.append("6.1.3 something after the end")
    if not re.search(rb"/ID\s*\[\s*[(<].+?[)>]\s*[(<].+?[)>]\s*\]", pdf, re.DOTALL):
        found.append("6.1.3 no file identifier")
    if b"/Encrypt" in pdf:
        found.append("6.1.3 encrypted")
    return found


def _of_catalog(catalog: bytes) -> list[str]:
    wanted = {
        "6.7.2.2 not marked": rb"/MarkInfo\s*<<[^>]*/Marked\s+true",
        "6.7.3.3 no structure tree": rb"/StructTreeRoot\s+\d+ 0 R",
        "6.7.4 no language": rb"/Lang\s*\(",
        "6.6.2.1 no metadata": rb"/Metadata\s+\d+ 0 R",
        "6.2.3 no output intent": rb"/OutputIntents\s*(?:\[|\d+ 0 R)",
    }
    found = [why for why, pattern in wanted.items() if not re.search(pattern, catalog)]
    return found + [f"6.4 {name} in the catalog" for name in ("AA", "XFA") if re.search(rb"/" + name.encode(), catalog)]


def _of_fonts(heads: dict[int, bytes]) -> list[str]:
    found = []
    for head in heads.values():
        if re.search(rb"/Type\s*/FontDescriptor\b", head) and not re.search(rb"/FontFile[23]?\s+\d+ 0 R", head):
            found.append("6.2.11.4 a font that is not embedded")
        if re.search(rb"/Subtype\s*/Type0\b", head) and b"/ToUnicode" not in head:
            found.append("6.2.11.7 a font without its characters")
    return found


def _of_attachments(catalog: bytes, heads: dict[int, bytes]) -> list[str]:
    listed = re.search(rb"/AF\s*\[([^\]]*)\]", catalog)
    associated = set() if listed is None else {int(number) for number in re.findall(rb"(\d+) 0 R", listed.group(1))}
    found = []
    for number, head in heads.items():
        if not re.search(rb"/Type\s*/Filespec\b", head):
            continue
        found += [
            f"6.8 an attachment without {name.decode()}"
            for name in (b"/F", b"/UF", b"/AFRelationship", b"/Desc")
            if not re.search(name + rb"[\s(/<]", head)
        ]
        if number not in associated:
            found.append("6.8 an attachment that the document does not name as its own")
        inside = re.search(rb"/EF\s*<<[^>]*?/F\s+(\d+) 0 R", head)
        if inside is None or not re.search(rb"/Subtype\s*/\w+(?:#2[fF])\w+", heads.get(int(inside.group(1)), b"")):
            found.append("6.8 an attachment of no type")
    return found


def _of_metadata(objects: dict[int, bytes], catalog: bytes) -> list[str]:
    at = re.search(rb"/Metadata\s+(\d+) 0 R", catalog)
    stream = None if at is None else _STREAM.match(objects.get(int(at.group(1)), b""))
    if stream is None:
        return ["6.6.2.1 no metadata stream"]
    if b"/Filter" in stream.group(1):
        return ["6.6.2.1 metadata behind a filter"]
    said = stream.group(2)
    wanted = {b"<pdfaid:part>3</pdfaid:part>", b"<pdfaid:conformance>A</pdfaid:conformance>"}
    found = [f"6.6.4 metadata does not say {text.decode()}" for text in sorted(wanted) if text not in said]
    everything = b"".join(objects.values())
    profile = re.search(rb"/DestOutputProfile\s+(\d+) 0 R", everything)
    if not re.search(rb"/S\s*/GTS_PDFA1\b", everything):
        found.append("6.2.3 no output intent of this standard")
    intent = None if profile is None else _STREAM.match(objects.get(int(profile.group(1)), b""))
    if intent is None or b"acsp" not in _decoded(intent.group(1), intent.group(2))[:64]:
        found.append("6.2.3 no colour profile")
    return found


def _decoded(head: bytes, data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data) if b"FlateDecode" in head else data
