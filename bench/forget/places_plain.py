"""Places without tables: Redis with AOF, and files of one person and of many."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from bench.forget.bed import Person, Record, joint_text, vector_of
from bench.forget.places import OWNER, Ground, Place, Store, parts_of


class Redis(Place):
    """Texts as JSON, embeddings as hashes, as caches of agents have them; AOF and a dump beside it."""

    name, title = "redis", "Redis (AOF and RDB)"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.address, self.files = ground.redis()
        self.stores = [Store(name="redis", kind="redis", config={"url": self.address, "owner_field": OWNER})]
        self.scanned = [self.address]

    def client(self) -> Any:
        """The application's client."""
        import redis

        return redis.Redis.from_url(self.address)

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        client = self.client()
        for person in everybody:
            for role, name, text, origin in parts_of(person):
                client.set(f"{role}:{name}", json.dumps({OWNER: person.id, "text": text}))
                self.add(role, name, [person], text, {"key": f"{role}:{name}"}, made_of=origin)
            for said in person.said:
                vector = said.vector
                raw = struct.pack(f"<{len(vector)}f", *vector)
                key = f"embedding:{said.name}"
                client.hset(key, mapping={OWNER: person.id, "text": said.text, "vector": raw})
                self.add("text", f"{said.name}-embedding", [person], said.text, {"key": key},
                         vectors=(tuple(vector),), made_of=said.name)  # fmt: skip
        client.save()
        time.sleep(0.05)
        client.close()

    @override
    def read(self) -> dict[str, str]:
        client = self.client()
        found = {}
        for record in self.records:
            key = record.where["key"]
            if client.type(key) == b"hash":
                found[record.name] = client.hget(key, "text").decode()
            elif (value := client.get(key)) is not None:
                found[record.name] = json.loads(value)["text"]
        client.close()
        return found

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        client = self.client()
        client.delete(*(record.where["key"] for record in records))
        client.close()

    @override
    def question(self) -> dict[str, Any]:
        return {"redis": self.address, "files": [str(self.files)]}


class Files(Place):
    """A file for each text, one for each embedding, and an export of many people in JSON lines."""

    name, title = "files", "own and shared files"
    shared = "export.jsonl"

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.stores = [Store(name="files", kind="files", config={"root": str(self.folder), "owner_field": OWNER})]
        self.scanned = [str(self.folder)]

    @override
    def fill(self, everybody: Sequence[Person]) -> None:
        lines = []
        for person in everybody:
            for role, name, text, origin in parts_of(person):
                path = self.folder / f"{name}.json"
                value: dict[str, Any] = {OWNER: person.id, "text": text}
                vectors: tuple[tuple[float, ...], ...] = ()
                if role == "text":
                    vector = vector_of(text)
                    value["embedding"] = vector
                    vectors = (tuple(vector),)
                path.write_text(json.dumps(value), encoding="utf-8")
                self.add(role, name, [person], text, {"path": path.name}, made_of=origin, vectors=vectors)
                line = f"{name}-line"
                lines.append(json.dumps({"id": line, OWNER: person.id, "text": text}))
                where = {"path": self.shared, "lines": {"field": "id", "value": line}}
                self.add(role, line, [person], text, where, made_of=name)
        if everybody:
            text, _ = joint_text(self.ground.seed, self.name)
            line = f"{self.name}-joint"
            lines.append(json.dumps({"id": line, OWNER: [person.id for person in everybody[:2]], "text": text}))
            where = {"path": self.shared, "lines": {"field": "id", "value": line}}
            self.add("joint", line, everybody[:2], text, where)
        (self.folder / self.shared).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    @override
    def read(self) -> dict[str, str]:
        held = [json.loads(line) for line in (self.folder / self.shared).read_text(encoding="utf-8").splitlines()]
        found = {line["id"]: line["text"] for line in held}
        for path in self.folder.glob("*.json"):
            found[path.stem] = json.loads(path.read_text(encoding="utf-8"))["text"]
        return found

    @override
    def native_delete(self, records: Sequence[Record]) -> None:
        for record in records:
            if "lines" not in record.where:
                (self.folder / record.where["path"]).unlink()
