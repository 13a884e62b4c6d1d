"""What a page carries is the signed file to the byte, whatever it says and however large it is."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from erasure.errors import ReportError
from erasure.rendering.carrier import certificate_file, certificate_in
from erasure.signed_file import PIECE, SignedFile
from ledger import canonical

_TEXTS = st.text(alphabet=st.sampled_from('<>&\\"u003c26e\n/é\u2028a'), max_size=12)


def page(inside: bytes) -> bytes:
    """A page as it is set, as far as a carrier looks at it."""
    for char, escape in ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026")):
        inside = inside.replace(char, escape)
    return b'<!doctype html><script type="application/json" id="muniment-certificate">' + inside + b"</script></html>"


def signed(*texts: str) -> bytes:
    copies = [{"copy": number, "detail": text} for number, text in enumerate(texts)]
    return canonical.dumps({"certificate": {"copies": copies}, "signature": {}})


@given(texts=st.lists(_TEXTS, max_size=3))
def test_the_escapes_of_a_page_are_taken_out_and_those_of_its_texts_stay(texts: list[str]) -> None:
    assert certificate_in(page(signed(*texts))) == signed(*texts)


@pytest.mark.parametrize("text", ["<", "\\u003c", "\\\\u003c", "\\<", "</script>", "&lt;\\"])
def test_the_same_by_example(text: str) -> None:
    assert certificate_in(page(signed(text))) == signed(text)


def test_an_inside_that_was_written_out_anew_is_read_as_what_was_signed() -> None:
    said = signed("a < b")
    anew = json.dumps(json.loads(said), indent=1).encode().replace(b"<", b"\\u003C")
    assert certificate_in(page(anew)) == said
    with pytest.raises(ReportError, match="twice"):
        certificate_in(page(b'{"certificate": {"a": 1, "a": 2}, "signature": {}}'))


def test_a_large_page_is_read_where_it_lies(tmp_path: Path) -> None:
    said = signed(*("x < y\\" + "é" * 1_200 for _ in range(3_000)))
    (tmp_path / "page.html").write_bytes(page(said))
    with (tmp_path / "page.html").open("rb") as file, SignedFile(file) as held:
        paper = held.view()
        tracemalloc.start()
        with certificate_file(paper) as found:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert found.view() == said
    assert len(said) > 6 * PIECE > peak
