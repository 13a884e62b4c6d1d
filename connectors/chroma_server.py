"""Kind `chroma` behind a server: its HTTP interface, version 2.

Guarantees: absence is read from the server with the credentials that delete; a collection that the server does not list
is no absence. The server's files are not reached from here, and nothing in its interface frees what a delete leaves in
its queue, its full-text index and its vector index: every level is L1, and `reclaim` says so. To reach L2 the server is
stopped and its folder registered with `path`.
Source: chromadb 1.5.9 (`chroma run`), /api/v2.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
from typing_extensions import override

from connectors.base import Capabilities, Deadline, Level, ReclaimReport
from connectors.chroma_files import DEFAULT, DOCUMENT
from connectors.errors import BadLocator, StoreUnreachable, WrongCredentials
from connectors.vector_store import Look, Places, Point, PointId, VectorConfig, VectorConnector, report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from connectors.residue import Hits

_PAGE = 300
_REMAINS = (
    "the server's queue, full-text index and vector index keep what was deleted; its files are not reached from here:"
    " stop it and register its folder with path"
)


def condition(owner_field: str, owners: frozenset[str]) -> dict[str, Any]:
    """Return Chroma's condition that a record names one of these owners, as text or as whole number."""
    texts = {owner_field: {"$in": sorted(owners)}}
    numbers = sorted(int(form) for form in owners if form.isascii() and form.isdigit() and len(form) < 16)  # noqa: PLR2004 -- below 2**53
    return {"$or": [texts, {owner_field: {"$in": numbers}}]} if numbers else texts


class ChromaServerConnector(VectorConnector):
    """Drives the collections of one server."""

    kind = "chroma"
    method = "delete by id and owner through the server"
    locks = "nothing"

    def __init__(self, config: VectorConfig, *, read_only: bool) -> None:
        super().__init__(config, read_only=read_only)
        self._client = httpx.Client(
            base_url=str(config.url).rstrip("/") + "/api/v2/",
            headers={} if config.api_key is None else {"X-Chroma-Token": config.api_key},
            follow_redirects=False,
            trust_env=False,
        )

    @override
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), reclaim_level=Level.L1, verify_level=Level.L1)

    @contextmanager
    def _open(self, limit: Deadline, *, read_only: bool) -> Iterator[_Remote]:
        yield _Remote(self._client, self._config.owner_field, limit)

    @override
    def _free(self, collections: Sequence[str], limit: Deadline) -> ReclaimReport:
        return report(Level.L1, _REMAINS, "none")

    @override
    def _look(
        self, items: Sequence[tuple[str, PointId]], canaries: Sequence[bytes], reclaimed: ReclaimReport | None,
        limit: Deadline,
    ) -> Look:  # fmt: skip
        return Look(found=frozenset(), how="asked the server", unproven={name: _REMAINS for name, _ in items})

    @override
    def _hits(self, canaries: Sequence[bytes], limit: Deadline) -> list[tuple[str, Hits]]:
        raise StoreUnreachable("chroma", "the server's files are not reached from here, so its bytes cannot be scanned")

    @contextmanager
    def _scratch(
        self, document: Mapping[str, str], vector: Sequence[float], limit: Deadline
    ) -> Iterator[dict[str, Any]]:
        remote = _Remote(self._client, None, limit)
        name = f"muniment-check-{secrets.token_hex(8)}"
        base = _base(*DEFAULT)
        made = remote.ask("POST", base, {"name": name})
        try:
            record = {
                "ids": ["canary"], "embeddings": [list(vector)], "documents": [document["text"]],
                "metadatas": [{key: text for key, text in document.items() if key != "text"} or None],
            }  # fmt: skip
            remote.ask("POST", f"{base}/{made['id']}/add", record)
            yield {"collection": name, "id": "canary"}
        finally:
            remote.ask("DELETE", f"{base}/{quote(name, safe='')}")

    @override
    def close(self) -> None:
        self._client.close()


class _Remote(Places):
    """The collections of a server."""

    def __init__(self, client: httpx.Client, owner_field: str | None, limit: Deadline) -> None:
        self._client = client
        self._owner_field = owner_field
        self._limit = limit
        self._known: dict[str, str] = {}

    def ask(self, verb: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer's JSON. Raises: StoreUnreachable, WrongCredentials, Timeout."""
        self._limit.check()
        try:
            answer = self._client.request(verb, path, json=body, timeout=max(0.1, self._limit.left()))
            if answer.status_code in {401, 403}:
                raise WrongCredentials("chroma")
            if not answer.is_success:
                raise StoreUnreachable("chroma", f"the server answered with status {answer.status_code}")
            return answer.json()
        except httpx.TimeoutException:
            raise self._limit.error() from None
        except (httpx.HTTPError, ValueError):
            raise StoreUnreachable("chroma", "the server does not answer as Chroma does") from None

    @override
    def collections(self) -> list[str]:
        self._known = {}
        base = _base(*DEFAULT)
        while True:
            page = self.ask("GET", f"{base}?limit={_PAGE}&offset={len(self._known)}")
            new = {each["name"]: f"{base}/{each['id']}" for each in page if each["name"] not in self._known}
            self._known |= new
            if not new:
                return sorted(self._known)

    @override
    def identify(self, collection: str, given: object) -> PointId:
        if not isinstance(given, str):
            raise BadLocator("an id of Chroma is a text")
        return given

    @override
    def read(self, collection: str, ids: Sequence[PointId]) -> dict[PointId, list[Point]]:
        found: dict[PointId, list[Point]] = {}
        for start in range(0, len(ids), _PAGE):
            for point in self._get(collection, {"ids": list(ids[start : start + _PAGE])}):
                found[point.id] = [point]
        return found

    @override
    def pages(self, collection: str) -> Iterator[list[Point]]:
        offset = 0
        while page := self._get(collection, {"limit": _PAGE, "offset": offset}):
            yield page
            offset += len(page)

    def _get(self, collection: str, which: Mapping[str, Any]) -> list[Point]:
        wanted = {**which, "include": ["metadatas", "documents", "embeddings"]}
        answer = self.ask("POST", f"{self._known[collection]}/get", wanted)
        rows = zip(answer["ids"], answer["metadatas"], answer["documents"], answer["embeddings"], strict=True)
        points = []
        for identity, metadata, text, vector in rows:
            payload = dict(metadata or {}) | ({} if text is None else {DOCUMENT: text})
            points.append(Point(id=identity, payload=payload, vectors=(tuple(vector),) if vector else ()))
        return points

    @override
    def delete(self, collection: str, ids: Sequence[PointId], owners: frozenset[str] | None) -> None:
        wanted: dict[str, Any] = {"ids": list(ids)}
        if owners is not None:
            wanted["where"] = condition(str(self._owner_field), owners)
        self.ask("POST", f"{self._known[collection]}/delete", wanted)


def _base(tenant: str, database: str) -> str:
    return f"tenants/{quote(tenant, safe='')}/databases/{quote(database, safe='')}/collections"
