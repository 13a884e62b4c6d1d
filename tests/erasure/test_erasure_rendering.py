"""Papers of a certificate: one model, the same bytes each time, nothing loaded, and no page that says anything else."""

from __future__ import annotations

import hashlib
import json
import re
import resource
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from click.testing import CliRunner

from api.commands.options import CannotRun
from api.commands.verify_report import verify_report
from erasure.certificate import mark_of, sign
from erasure.errors import PaperNotSet, ReportError
from erasure.rendering import paper
from erasure.rendering.carrier import certificate_in, opening_in
from erasure.rendering.compare import Pages, compare
from erasure.rendering.sheet import sheet_of
from erasure.report_check import check
from tests.erasure.pdf_archive import faults

CONTROLLER = {"name": "Beispiel GmbH", "contact": "Lange Straße 1, Berlin", "dpo": "dpo@beispiel.example"}
HOSTILE = '</script><script>alert(1)</script><img src=x onerror=alert(1)> #panic("x") $x$ *b* @ref & "q" \u65e5\u672c'


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One certificate of a controller that said who it is."""
    spec = util.spec_from_file_location("erasure_conftest", Path(__file__).parent / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from registry.models import Tenant

    world = module.World(tmp_path_factory.mktemp("papers"))
    with world.parts.transactions(world.tenant.tenant_id) as session:
        row = session.get(Tenant, world.tenant.tenant_id)
        row.controller = CONTROLLER
        session.add(row)
    source = world.note("n1", "Ada Lovelace wrote about her rash on Tuesday")
    world.file("ada.txt", "Summary: Ada Lovelace complains about a rash", subjects=(), sources=(source,))
    world.say("my address is 12 Byron Lane, Nottingham")
    world.request = world.erase()
    world.report = world.reader.certificate(world.acting(), world.request)
    world.document = json.loads(world.report)
    yield world
    world.close()


@pytest.fixture(scope="module")
def issued_pdf(issued: Any) -> bytes:
    """Its paper."""
    return paper.certificate_pdf(issued.report)


def resigned(issued: Any, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The certificate with a change, signed by its own issuer."""
    certificate = json.loads(issued.report)["certificate"]
    change(certificate)
    with sign(certificate, issued.services.certificate_signer(issued.tenant.log_id)) as signed:
        return signed.read()


def leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from leaves(member, (*path, name))
    elif isinstance(value, list) and value:
        for number, member in enumerate(value):
            yield from leaves(member, (*path, str(number)))
    else:
        yield path


def texts_of(value: Any) -> Iterator[str]:
    """Every text that a paper's model shows."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name not in ("type", "mark", "tone", "lang"):
                yield from texts_of(member)
    elif isinstance(value, list):
        for member in value:
            yield from texts_of(member)
    elif isinstance(value, str) and value:
        yield value


class Page(HTMLParser):
    """What a browser would see: text, and whatever could load or run something."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.text: list[str] = []
        self.loads: list[str] = []
        self.runs: list[str] = []
        self.inside = ""
        self.policy = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.inside = tag
        self.loads += [f"{tag} {name}" for name in known if name in ("src", "href", "srcset", "action", "data")]
        self.runs += [f"{tag} {name}" for name in known if name.startswith("on")]
        if tag == "script" and known.get("type") != "application/json":
            self.runs.append(tag)
        if tag in ("iframe", "object", "embed", "link", "base", "form", "img", "svg"):
            self.loads.append(tag)
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text.append(data)
        elif self.inside == "style" and data.strip():
            self.style = data


def test_every_member_of_a_certificate_is_marked_proven_or_stated(issued: Any) -> None:
    certificate = issued.document["certificate"]
    marks = {path: mark_of(path, certificate) for path in leaves(certificate)}
    assert set(marks.values()) == {"proven", "stated"}
    with pytest.raises(KeyError):
        mark_of(("something",), certificate)
    with pytest.raises(KeyError):
        mark_of(("copies", "0", "something"), certificate)


def test_what_is_marked_proven_cannot_be_changed_even_by_the_issuer(issued: Any) -> None:
    certificate = issued.document["certificate"]
    proven = [path for path in leaves(certificate) if mark_of(path, certificate) == "proven"]
    assert len(proven) > 60
    for path in proven:

        def change(value: Any, path: tuple[str, ...] = path) -> None:
            for step in path[:-1]:
                value = value[int(step)] if isinstance(value, list) else value[step]
            last: Any = int(path[-1]) if isinstance(value, list) else path[-1]
            old = value[last]
            value[last] = old + 1 if isinstance(old, int) else f"{str(old)[:-1]}{'A' if str(old)[-1:] != 'A' else 'B'}"

        forged = resigned(issued, change)
        with pytest.raises(ReportError, match="/"):
            check(forged, issued.certificate_key, issued.log_key)


def test_html_shows_every_word_of_the_model_and_the_pdf_is_set_from_the_same_one(issued: Any) -> None:
    shown = " ".join("".join(Page(paper.certificate_html(issued.report)).text).split())
    missing = [text for text in texts_of(sheet_of(issued.report)) if " ".join(text.split()) not in shown]
    assert missing == []
    for needle in (*CONTROLLER.values(), "erased from its files", "Received", "unknown", "carol", "the same party"):
        assert needle in shown


@pytest.mark.scenario("S18")
def test_every_deletion_says_when_it_was_asked_for_begun_ended_and_looked_for(issued: Any) -> None:
    certificate = issued.document["certificate"]
    assert certificate["received_at"]
    assert certificate["approvals"][0]["at"]
    times = ("started_at", "finished_at", "verified_at")
    assert [copy["copy"] for copy in certificate["copies"] if not all(copy[name] for name in times)] == []
    rows = sheet_of(issued.report)["sections"][-2]["blocks"][-1]["rows"]
    assert len(rows) == len(certificate["copies"])
    for row, copy in zip(rows, certificate["copies"], strict=True):
        for name, cell in (("finished_at", row[4]), ("verified_at", row[5])):
            assert cell.startswith(copy[name][:19].replace("T", " "))


def test_the_same_certificate_gives_the_same_bytes(issued: Any) -> None:
    assert paper.certificate_pdf(issued.report) == paper.certificate_pdf(issued.report)
    assert paper.certificate_html(issued.report) == paper.certificate_html(issued.report)


def test_the_page_loads_nothing_runs_nothing_and_allows_only_its_own_style(issued: Any) -> None:
    page = Page(paper.certificate_html(issued.report))
    assert page.loads == []
    assert page.runs == []
    style = b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert f"style-src 'sha256-{style}'" in page.policy
    assert page.policy.startswith("default-src 'none'")
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_hostile_names_are_shown_and_never_obeyed(issued: Any) -> None:
    def change(certificate: dict[str, Any]) -> None:
        certificate["controller"] = {"name": HOSTILE, "contact": HOSTILE}
        certificate["coverage"][0]["name"] = HOSTILE
        certificate["copies"][0]["store"] = "a" * 300

    report = resigned(issued, change)
    html = paper.certificate_html(report)
    page = Page(html)
    assert page.runs == []
    assert page.loads == []
    assert html.count(b"<script") == 1
    assert html.count(b"</script>") == 1
    assert certificate_in(html) == report
    assert certificate_in(paper.certificate_pdf(report)) == report


def test_pdf_is_an_archive_with_its_fonts_and_the_signed_file_inside(issued: Any) -> None:
    pdf = paper.certificate_pdf(issued.report)
    assert re.search(rb"<pdfaid:part>3</pdfaid:part>\s*<pdfaid:conformance>A", pdf)
    assert b"/AFRelationship/Source" in pdf
    assert b"/OutputIntents" in pdf
    fonts = re.findall(rb"/FontName/[A-Z]{6}\+(\w+)", pdf)
    assert {b"LibertinusSerif", b"DejaVuSansMono"} <= set(fonts)
    assert len(re.findall(rb"/FontFile[23]? \d+ 0 R", pdf)) >= len(set(fonts))
    assert certificate_in(pdf) == issued.report
    for needle in (b"ada@example", b"Lovelace", b"ada.txt"):
        assert needle not in pdf


def test_the_pdf_keeps_the_rules_of_an_archive_that_a_validator_reads(issued_pdf: bytes) -> None:
    assert faults(issued_pdf) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b"/Marked true", b"/Marked fals", "6.7.2.2"),
        (b"/StructTreeRoot", b"/StructTreeRaat", "6.7.3.3"),
        (b"/Lang(en)/S", b"/Leng(en)/S", "6.7.4"),
        (b"<pdfaid:part>3", b"<pdfaid:part>2", "6.6.4"),
        (b"conformance>A<", b"conformance>B<", "6.6.4"),
        (b"/S/GTS_PDFA1", b"/S/GTS_PDFX0", "6.2.3"),
        (b"/FontFile", b"/FontFyle", "6.2.11.4"),
        (b"/ToUnicode", b"/ToUnycode", "6.2.11.7"),
        (b"/AFRelationship", b"/AFRelatyonship", "6.8"),
        (b"/AF[", b"/AX[", "6.8"),
        (b"application#2Fjson", b"applicationXXXjson", "6.8"),
        (b"%%EOF", b"%%EOF\nmore", "6.1.3"),
        (b"/Type/Catalog", b"/Type/Catalog/AA<<>>", "6.4"),
        (b"/Type/Filespec", b"/Type/Filespec/S/JavaScript", "6.6.1"),
        (b"/Filter/FlateDecode", b"/Filter/LZWDecode", "6.1.7.2"),
    ],
)
def test_each_rule_of_an_archive_is_missed_where_it_is_broken(
    issued_pdf: bytes, before: bytes, after: bytes, said: str
) -> None:
    assert before in issued_pdf
    assert said in {fault.partition(" ")[0] for fault in faults(issued_pdf.replace(before, after))}


def test_each_character_that_is_said_to_be_printable_is(issued: Any) -> None:
    every = "".join(chr(code) + " " for low, high in paper._PRINTABLE for code in range(low, high + 1))

    def change(certificate: dict[str, Any]) -> None:
        certificate["controller"] = {"name": "n", "contact": every}

    assert paper.certificate_pdf(resigned(issued, change)).startswith(b"%PDF-1.7")


def test_what_the_fonts_lack_is_printed_as_its_code_point() -> None:
    assert paper.printable({"a": ["\u65e5\u672c x\t\x07"]}) == {"a": ["[U+65E5][U+672C] x [U+0007]"]}
    assert paper.printable("A\u0308") == "\u00c4"


@pytest.mark.slow
def test_a_hundred_pages_and_4200_copies_take_five_seconds_of_the_processor_at_most(issued: Any) -> None:
    def change(certificate: dict[str, Any]) -> None:
        some = certificate["copies"][:2]
        certificate["copies"] = [
            {**some[number % 2], "copy": number + 1, "id": f"art_{number:016x}"} for number in range(4200)
        ]

    report = resigned(issued, change)
    before = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    pdf = paper.certificate_pdf(report)
    after = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
    spent = sum(
        then.ru_utime + then.ru_stime - first.ru_utime - first.ru_stime
        for first, then in zip(before, after, strict=True)
    )
    pages = len(re.findall(rb"/Type/Page[^s]", pdf))
    assert 80 <= pages <= 120, pages
    assert spent <= 5, spent
    assert certificate_in(pdf) == report


def test_a_table_too_long_for_paper_says_where_its_rows_are(issued: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(certificate: dict[str, Any]) -> None:
        some = certificate["copies"][0]
        certificate["copies"] = [{**some, "copy": number + 1} for number in range(200)]

    report = resigned(issued, change)
    long = paper.certificate_pdf(report)
    monkeypatch.setattr(paper, "MOST_ROWS", 100)
    short = paper.certificate_pdf(report)
    assert len(re.findall(rb"/Type/Page[^s]", short)) < len(re.findall(rb"/Type/Page[^s]", long))
    assert certificate_in(short) == report
    assert paper.certificate_html(report).count(b"<tr>") > 200


def test_a_page_lists_no_more_copies_than_anybody_reads_and_says_where_they_are(issued: Any) -> None:
    def change(certificate: dict[str, Any]) -> None:
        some = certificate["copies"][0]
        certificate["copies"] = [{**some, "copy": number + 1} for number in range(200)]

    report = resigned(issued, change)
    for most, listed in ((200, 200), (199, 0)):
        sheet = sheet_of(report, most=most)
        assert sheet["tiles"][0]["number"] == "200"
        annex = next(part for part in sheet["sections"] if part["title"].startswith("Annex A"))
        assert sum(len(block["rows"]) for block in annex["blocks"] if block["type"] == "table") == listed
        assert ("Of more than 199 copies" in str(annex)) == (listed == 0)


def test_no_more_than_two_papers_are_set_at_once(issued: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "_SECONDS", 0.05)
    with paper._AT_ONCE, paper._AT_ONCE, pytest.raises(PaperNotSet, match="two others"):
        paper.certificate_pdf(issued.report)


def test_altered_pages_are_refused_although_the_certificate_inside_is_sound(issued: Any) -> None:
    html, pdf = paper.certificate_html(issued.report), paper.certificate_pdf(issued.report)
    assert compare(html, issued.report) is Pages.SAME
    assert compare(pdf, issued.report) is Pages.SAME
    assert compare(issued.report, issued.report) is Pages.NONE
    lie = html.replace(b"gone and verified", b"gone for ever   ")
    assert certificate_in(lie) == issued.report
    with pytest.raises(ReportError, match="pages are not what"):
        compare(lie, issued.report)
    at = pdf.index(b"/Lang(en)")
    lie = pdf[:at] + b"/Lang(de)" + pdf[at + 9 :]
    assert certificate_in(lie) == issued.report
    with pytest.raises(ReportError, match="pages are not what"):
        compare(lie, issued.report)


@pytest.mark.parametrize(
    "change",
    [
        lambda pdf: pdf + b"\nstartxref\n0\n%%EOF",
        lambda pdf: pdf[:-20],
        lambda pdf: pdf.replace(b"/EmbeddedFiles", b"/EmbeddedFilez"),
        lambda pdf: pdf.replace(b"certificate.json", b"certificate.jsom"),
        lambda _: b"%PDF-1.7\n",
        lambda pdf: pdf.replace(b"/EmbeddedFile/Filter/FlateDecode", b"/EmbeddedFile/Filter/LZWDecodexx"),
        lambda pdf: re.sub(rb"startxref\n\d+", b"startxref\n7", pdf),
    ],
)
def test_a_pdf_that_is_not_as_it_was_issued_is_refused_by_name(issued: Any, change: Callable[[bytes], bytes]) -> None:
    pdf = paper.certificate_pdf(issued.report)
    changed = change(pdf)
    assert changed != pdf
    with pytest.raises(ReportError):
        compare(changed, check_inside(changed, issued))


def check_inside(file: bytes, issued: Any) -> bytes:
    report = certificate_in(file)
    check(report, issued.certificate_key, issued.log_key)
    return report


def test_a_page_with_no_certificate_or_two_is_refused(issued: Any) -> None:
    html = paper.certificate_html(issued.report)
    block = html[html.index(b"<script") : html.index(b"</script>") + 9]
    for page in (html.replace(block, b""), html.replace(block, block + block), html.replace(block, b"<script>{")):
        with pytest.raises(ReportError):
            certificate_in(page)


def verified(tmp_path: Path, issued: Any, name: str, body: bytes, *more: str) -> tuple[int, str]:
    file = tmp_path / name
    file.write_bytes(body)
    found = CliRunner().invoke(
        verify_report, [str(file), "--key", issued.certificate_key, "--log-key", issued.log_key, *more],
        standalone_mode=False,
    )  # fmt: skip
    return found.return_value, found.output


def test_verify_report_reads_all_three_forms_and_says_what_it_did_with_the_pages(issued: Any, tmp_path: Path) -> None:
    html, pdf = paper.certificate_html(issued.report), paper.certificate_pdf(issued.report)
    assert verified(tmp_path, issued, "c.json", issued.report)[0] == 0
    for name, body in (("c.html", html), ("c.pdf", pdf)):
        code, said = verified(tmp_path, issued, name, body, "--extract", str(tmp_path / "inside.json"))
        assert (code, "pages show exactly" in said) == (0, True), said
        assert (tmp_path / "inside.json").read_bytes() == issued.report
    code, said = verified(tmp_path, issued, "c.html", html.replace(b"L2", b"L3", 1))
    assert (code, "refuted" in said) == (1, True), said
    code, said = verified(tmp_path, issued, "c.html", html.replace(paper.form().encode(), b"muniment-paper/9+typst-9"))
    assert (code, "could not be compared" in said) == (2, True), said
    code, said = verified(tmp_path, issued, "c.pdf", pdf.replace(b"/Lang(en)", b"/Lang(de)"))
    assert (code, "refuted" in said) == (1, True), said


def test_a_file_that_is_no_certificate_is_not_refuted_but_the_wrong_file(issued: Any, tmp_path: Path) -> None:
    pdf, html = paper.certificate_pdf(issued.report), paper.certificate_html(issued.report)
    opening = json.dumps({"openings": [{"subject": "email:x", "salt": "00" * 32}]}).encode()
    script = b'<script type="application/json" id="muniment-opening">%s</script>'
    letter = b"<!doctype html><html>" + script % opening + b"</html>"
    others = {
        "README.md": (b"# Muniment\n\nA *muniment* is a document.\n", "no certificate: give the .json"),
        "empty.json": (b"", "no certificate: give the .json"),
        "other.json": (b'{"a": 1}', "no certificate: give the .json"),
        "opening.json": (opening, "no certificate: give the .json"),
        "page.html": (b"<!doctype html><html></html>", "no certificate: give the .json"),
        "photo.jpg": (bytes(range(256)) * 9, "no certificate: give the .json"),
        "printed.pdf": (pdf.replace(b"(certificate.json)", b"(something.json__)"), "carries no certificate"),
        "letter.html": (letter, "give the certificate, and this file with --letter"),
    }
    for name, (body, said) in others.items():
        (tmp_path / name).write_bytes(body)
        asked = [str(tmp_path / name), "--key", issued.certificate_key]
        refused = CliRunner().invoke(verify_report, asked, standalone_mode=False).exception
        assert isinstance(refused, CannotRun), name
        assert said in str(refused)
    for body in (issued.report[:-9], issued.report[9:], issued.report.replace(b"{", b"", 1), html[:-9], pdf[:-9]):
        assert verified(tmp_path, issued, "cut", body)[0] == 1, "a damaged certificate does not hold"


def test_a_paper_that_cannot_be_set_is_an_error_without_a_word_of_it(
    issued: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper, "_PRINTABLE", ((0x20, 0x7E), (0x65E5, 0x65E5)))
    with pytest.raises(PaperNotSet) as refused:
        paper.certificate_pdf(resigned(issued, lambda one: one.update(controller={"name": "secret \u65e5"})))
    assert "secret" not in str(refused.value)
    monkeypatch.setattr(paper, "_SECONDS", 0.001)
    with pytest.raises(PaperNotSet, match="not within"):
        paper.certificate_pdf(issued.report)


def test_loose_bytes_are_no_paper() -> None:
    assert certificate_in(b"{}") == b"{}"
    assert opening_in(b"{}") == b"{}"
    with pytest.raises(ReportError):
        certificate_in(b"<!doctype html><html></html>")
    assert rfc8785.dumps({"a": 1}) == b'{"a":1}'


_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"f": b"\f", b"(": b"(", b")": b")", b"\\": b"\\"}


def shown_in(drawn: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each array of strings of a page's content, put together, with the font in force. Source: ISO 32000-2 §7.3.4.2."""
    font, at = b"", 0
    while (found := re.compile(rb"/(f\d+) [-\d.]+ Tf|\[").search(drawn, at)) is not None:
        at = found.end()
        if found[1] is not None:
            font = found[1]
            continue
        letters, depth = bytearray(), 0
        while depth or drawn[at : at + 1] != b"]":
            char = drawn[at : at + 1]
            octal = re.match(rb"\\([0-7]{1,3})", drawn[at : at + 4])
            if octal is not None or char == b"\\":
                letters += bytes([int(octal[1], 8)]) if octal else _ESCAPED[drawn[at + 1 : at + 2]]
                at += len(octal[0]) if octal else 2
                continue
            depth += (char == b"(") - (char == b")")
            if depth > 1 or (depth == 1 and char != b"("):
                letters += char
            at += 1
        yield font, bytes(letters)


def copied_from(pdf: bytes) -> list[str]:
    """What somebody gets who marks and copies the text of a PDF of ours: the runs of letters in their order."""
    objects = {int(found[1]): found[2] for found in re.finditer(rb"(\d+) 0 obj(.*?)endobj", pdf, re.DOTALL)}

    def stream(number: int) -> bytes:
        head, _, body = objects[number].partition(b"stream")
        return zlib.decompressobj().decompress(body.lstrip(b"\r\n")) if b"FlateDecode" in head else body

    def letters_of(font: int) -> dict[bytes, str]:
        unicode_of = re.search(rb"/ToUnicode (\d+) 0 R", objects[font])
        assert unicode_of is not None
        pairs = re.findall(rb"<([0-9A-F]{4})> <([0-9A-F]+)>", stream(int(unicode_of[1])))
        return {bytes.fromhex(code.decode()): bytes.fromhex(text.decode()).decode("utf-16-be") for code, text in pairs}

    runs = []
    for page in (body for body in objects.values() if re.search(rb"/Type/Page\b(?!s)", body)):
        shared = re.search(rb"/Resources (\d+) 0 R", page)
        resources = page if shared is None else objects[int(shared[1])]
        fonts = {name: letters_of(int(font)) for name, font in re.findall(rb"/(f\d+) (\d+) 0 R", resources)}
        content = re.search(rb"/Contents (\d+) 0 R", page)
        assert content is not None
        for font, letters in shown_in(stream(int(content[1]))):
            runs.append("".join(fonts[font][letters[at : at + 2]] for at in range(0, len(letters), 2)))
    return runs


def test_keys_and_ids_copied_from_the_paper_are_what_they_are_and_verify(tmp_path: Path, issued: Any) -> None:
    pdf = paper.certificate_pdf(issued.report)
    runs = copied_from(pdf)
    text = "".join(runs)
    assert set(text) & set("\u200b\u200c\u200d\u2060\ufeff\u00ad") == set()
    certificate = issued.document["certificate"]
    wanted = [certificate["request"], certificate["plan_hash"], *certificate["subject_commitments"], issued.log_key]
    wanted += [copy["id"] for copy in certificate["copies"]] + [
        proof["entry"] for proof in certificate["log"]["proofs"]
    ]
    assert [one for one in wanted if one not in text] == []
    key = re.search(r"\s*".join(re.escape(letter) for letter in issued.log_key), "\n".join(runs))
    assert key is not None
    file = tmp_path / "c.pdf"
    file.write_bytes(pdf)
    for log_key in (key[0], f" {issued.log_key[:40]}\u200b{issued.log_key[40:]}\n"):
        asked = [str(file), "--key", f"{issued.certificate_key[:30]}\n{issued.certificate_key[30:]}"]
        found = CliRunner().invoke(verify_report, [*asked, "--log-key", log_key], standalone_mode=False)
        assert found.return_value == 0, found.output


def test_a_copy_that_was_not_there_any_more_is_none_that_was_erased(issued: Any) -> None:
    def change(certificate: dict[str, Any]) -> None:
        certificate["copies"][0]["state"] = "already_absent"

    number = len(issued.document["certificate"]["copies"])
    tiles = {one["label"]: one["number"] for one in sheet_of(resigned(issued, change))["tiles"]}
    assert tiles["gone and verified"] == str(number - 1)
    assert tiles["not there any more"] == "1"


def test_an_interim_certificate_does_not_say_complete_without_saying_so_far(issued: Any) -> None:
    sheet = sheet_of(issued.report)
    assert sheet["version"] == "interim"
    assert sheet["verdict"].startswith("Interim: complete so far")
    assert "longer" in sheet["version_note"]

    def final(certificate: dict[str, Any]) -> None:
        certificate["version"] = "final"

    assert sheet_of(resigned(issued, final))["verdict"].startswith("Complete.")


def test_papers_show_what_others_lose(issued: Any) -> None:
    def change(certificate: dict[str, Any]) -> None:
        certificate["copies"][0]["collateral"] = {"subjects": 2}

    shown = "".join(Page(paper.certificate_html(resigned(issued, change))).text)
    assert "1 of what is gone was also about other people" in shown
    assert "No copy of this request is about another person" in "".join(
        Page(paper.certificate_html(issued.report)).text
    )
