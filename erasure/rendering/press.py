"""Typesets one paper and ends: stdin is a JSON object, its argument the descriptor of a file to attach, stdout the PDF.

Run as a program, never imported by the service.

Guarantees: PDF/A-3a with its own fonts and the attached file; the same input gives the same bytes. It reads nothing but
its input and the templates beside it: the model is handed over as data, so no text of it is read as markup, and the
root for files is an empty folder. A process of its own, because the typesetter keeps what it set in memory, which ends
with it, and because a process can be ended when it takes too long.
"""

import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Final

import typst

STANDARD: Final = "a-3a"


MOST_MEMORY = 2 << 30
"""Bytes of address space; a paper of 5,000 rows needs a quarter of it."""


def main() -> int:
    """Set the paper that stdin asks for; 1 with the typesetter's message on stderr where it cannot be set."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    asked = json.loads(sys.stdin.buffer.read())
    folder = Path(__file__).with_name("templates")
    source = (folder / "layout.typ").read_bytes() + (folder / f"{asked['template']}.typ").read_bytes()
    with os.fdopen(int(sys.argv[1]), encoding="utf-8", newline="") as inside:
        inputs = {"model": json.dumps(asked["model"], ensure_ascii=False), "attached": inside.read()}
    with tempfile.TemporaryDirectory() as nothing:
        try:
            fonts = typst.Fonts(include_system_fonts=False)
            compiler = typst.Compiler(source, root=nothing, font_paths=fonts, ignore_system_fonts=True)
            pdf = compiler.compile(
                format="pdf", sys_inputs=inputs, pdf_standards=[STANDARD], timestamp=asked["timestamp"]
            )
        except typst.TypstError as error:
            sys.stderr.write(str(error).split("\n", 1)[0])
            return 1
    if isinstance(pdf, bytes):
        sys.stdout.buffer.write(pdf)
    return 0


if __name__ == "__main__":
    sys.exit(main())
