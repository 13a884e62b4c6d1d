"""Sets a paper again from the certificate it carries and compares: what people read is what was signed, or it is said.

Guarantees: `SAME` only for equal bytes. `OTHER_FORM`: the paper names another way of setting than this one (another
version of the product), so it could not be compared, which is never an «equal». Anything else is refused as altered.
"""

from __future__ import annotations

import re
from enum import StrEnum

from erasure.errors import ReportError
from erasure.rendering.carrier import is_html, is_pdf
from erasure.rendering.paper import form, html_file, pdf_file
from erasure.signed_file import Readable, SignedFile

_FORM = re.compile(rb"muniment-paper/\d{1,6}\+typst-[0-9A-Za-z.]{1,32}")


class Pages(StrEnum):
    """What is known of the pages around a certificate."""

    NONE = "none"
    SAME = "same"
    OTHER_FORM = "other_form"


def compare(file: Readable, report: Readable) -> Pages:
    """Whether a paper shows exactly what the certificate in it says. Raises: ReportError where it does not."""
    pdf = is_pdf(file)
    if not pdf and not is_html(file):
        return Pages.NONE
    with pdf_file(report) if pdf else html_file(report) as again:
        if _is_same(again, memoryview(file)):
            return Pages.SAME
    named = {found.decode() for found in _FORM.findall(file)}
    if named and named != {form()}:
        return Pages.OTHER_FORM
    raise ReportError("", "the pages are not what the certificate inside them says")


def _is_same(again: SignedFile, file: memoryview) -> bool:
    if again.size != len(file):
        return False
    at = 0
    for piece in again.pieces():
        if bytes(file[at : at + len(piece)]) != piece:
            return False
        at += len(piece)
    return True
