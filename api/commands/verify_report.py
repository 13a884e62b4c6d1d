"""`muniment verify-report`: a certificate checked offline, with no server, no database and no network.

JSON, HTML and PDF are read alike: the signed certificate is taken out and checked, then the pages are set again from it
and compared, so that what people read is what was signed. Exit code 2 where the pages could not be compared, and for a
file in which nothing says that it is or was a certificate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import click

from api.commands.options import CannotRun, json_option, show
from erasure.errors import BadPin, LetterWithoutOpening, PaperNotSet, ReportError
from erasure.rendering.carrier import certificate_file, claims_a_certificate, is_letter, is_pdf, opening_in
from erasure.rendering.compare import Pages, compare
from erasure.report_check import MAX_BYTES, check, check_opening, require_keys
from erasure.signed_file import PIECE, Readable, SignedFile

_PAGES = {
    Pages.SAME: "the pages show exactly what the signed certificate says",
    Pages.OTHER_FORM: "the pages could not be compared: another version of muniment set them; "
    "rely on the certificate inside (--extract FILE), not on them",
}


@click.command("verify-report")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--key",
    "keys",
    required=True,
    multiple=True,
    help="The tenant's certificate key (C2SP vkey), from a source you trust; earlier ones too, each with its window of "
    "sizes: 'VKEY 0-40'.",
)
@click.option(
    "--log-key",
    "log_keys",
    multiple=True,
    help="The key of the tenant's log; pins the record too. Earlier ones as with --key.",
)
@click.option(
    "--letter",
    type=click.Path(path_type=Path),
    default=None,
    help="The letter to the person (.pdf, .html or .txt): is the certificate about them?",
)
@click.option("--extract", type=click.Path(path_type=Path), default=None, help="Write the certificate inside here.")
@click.option("--data", default=None, hidden=True)
@click.option("--tenant", default=None, hidden=True)
@json_option
def verify_report(
    *,
    file: Path,
    keys: tuple[str, ...],
    log_keys: tuple[str, ...],
    letter: Path | None,
    extract: Path | None,
    data: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """Checks signature, proofs, counts and pages of a certificate (.json, .html, .pdf); 1 if anything does not hold."""
    del data, tenant  # nothing of a folder or a server is used
    try:
        require_keys(keys, log_keys)
    except BadPin as error:
        raise CannotRun(str(error)) from None
    with _copied(file) as held:
        paper = held.view()
        if not claims_a_certificate(paper):
            raise CannotRun(_no_certificate(file, bytes(paper)))
        return _verify(paper, keys, log_keys, letter=letter, extract=extract, as_json=as_json)


def _verify(
    paper: Readable, keys: Sequence[str], log_keys: Sequence[str], *, letter: Path | None, extract: Path | None,
    as_json: bool,
) -> int:  # fmt: skip
    try:
        with certificate_file(paper) as inside:
            report = inside.view()
            proven = check(report, keys, log_vkey=log_keys)
            if letter is not None:
                proven.append(check_opening(report, opening_in(_read(letter))))
            if extract is not None:
                _write(extract, inside)
            pages = compare(paper, report)
    except ReportError as error:
        show({"verdict": "refuted", "because": str(error)}, as_json=as_json, lines=[f"refuted: {error}"])
        return 1
    except (PaperNotSet, LetterWithoutOpening) as error:
        raise CannotRun(str(error)) from None
    if pages is Pages.SAME:
        proven.append(_PAGES[pages])
    lines = [f"proven: {line}" for line in proven]
    if pages is Pages.OTHER_FORM:
        told = {"verdict": "unverifiable", "proven": proven, "because": _PAGES[pages]}
        show(told, as_json=as_json, lines=[*lines, f"unverifiable: {_PAGES[pages]}"])
        return 2
    show({"verdict": "sound", "proven": proven, "pages": pages}, as_json=as_json, lines=[*lines, "sound"])
    return 0


def _no_certificate(file: Path, paper: bytes) -> str:
    if is_letter(paper):
        return f"{file} is a letter to the person: give the certificate, and this file with --letter"
    if is_pdf(paper):
        return (
            f"{file} carries no certificate (printing or saving a PDF anew takes the signed file out): "
            "give it as muniment report wrote it"
        )
    return f"{file} is no certificate: give the .json, .html or .pdf that muniment report wrote"


def _write(file: Path, inside: SignedFile) -> None:
    try:
        with file.open("wb") as out:
            out.writelines(inside.pieces())
    except OSError as error:
        message = f"{file} cannot be written ({(error.strerror or 'unknown').lower()}): name another one"
        raise CannotRun(message) from None


def _copied(file: Path) -> SignedFile:
    """The file as it is now, whoever changes it while it is checked; also one that can be read only once."""
    try:
        with file.open("rb") as stream:
            return SignedFile.of(_pieces(stream, file))
    except OSError as error:
        raise _unreadable(file, error) from None


def _pieces(stream: IO[bytes], file: Path) -> Iterator[bytes]:
    """What a stream gives, no further than a certificate goes: beyond, nothing is said of it."""
    size = 0
    while piece := stream.read(PIECE):
        size += len(piece)
        if size > MAX_BYTES:
            message = f"{file} has more than {MAX_BYTES} bytes, which is as much as is read of a certificate"
            raise CannotRun(message)
        yield piece


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> CannotRun:
    return CannotRun(f"{file}: {(error.strerror or 'not readable').lower()}")


COMMANDS = {"verify-report": verify_report}
