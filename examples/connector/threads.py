"""A connector of your own: one thread, one JSON file in one folder; `{"thread": name}`. See docs/connectors.md."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from connectors.base import Deadline, Locator
from connectors.errors import BadLocator, StoreUnreachable
from connectors.one_by_one import OneByOne
from connectors.own_files import files_below
from connectors.residue import Hits, Needles


class Threads(OneByOne):
    """Drives one folder."""

    kind, method = "threads", "unlink"

    def __init__(self, root: Path, *, read_only: bool = False) -> None:
        super().__init__(owner_field="owner", read_only=read_only)
        self.root = root

    @override
    def place(self, locator: Locator) -> Path:
        name = locator.get("thread")
        if set(locator) != {"thread"} or not isinstance(name, str) or not re.fullmatch(r"[\w-]{1,100}", name):
            raise BadLocator("a locator is {thread}, letters and digits")
        return self._folder() / f"{name}.json"

    def _folder(self) -> Path:
        if not os.access(self.root, os.R_OK | os.X_OK):  # what cannot be looked into proves no absence
            raise StoreUnreachable("threads", "there is no folder that may be read")
        return self.root

    @override
    def read(self, place: Path, limit: Deadline) -> bytes | None:
        return place.read_bytes() if place.exists() else None

    @override
    def text_of(self, content: bytes) -> bytes:
        return str(json.loads(content)["text"]).encode()

    @override
    def remove(self, place: Path) -> None:
        place.unlink()
        folder = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)  # a power cut must not bring the name back
        os.close(folder)

    @override
    def locators(self, limit: Deadline) -> Iterator[dict[str, Any]]:
        for file in self._folder().iterdir():
            limit.check()
            if file.suffix == ".json":
                yield {"thread": file.stem}

    @override
    def hits(self, canaries: Sequence[bytes], limit: Deadline) -> Hits:
        files = files_below("threads", self._folder())
        return Needles(canaries).count_chunks((file.read_bytes() for file in files), limit)

    @override
    def write(self, name: str, canary: str, owner: str) -> Locator:
        self.place({"thread": name}).write_text(json.dumps({"owner": owner, "text": canary}), "utf-8")
        return {"thread": name}
