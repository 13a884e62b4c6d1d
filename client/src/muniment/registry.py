"""A small synchronous client of the HTTP API, on the standard library and msgspec.

For set-up, tools and tests: every call waits for the server and raises what it refuses. The agent's own path uses
`Recorder`. Requests that change nothing are tried once more if the connection was lost; others are not, since
nobody can tell whether the server acted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from muniment.errors import ApiProblem, TransportError
from muniment.ids import time_text
from muniment.transport import Answer, Transport

_MAX_ARTIFACTS = 5000
_CLIENT_ERROR = 400


class _Problem(msgspec.Struct):
    """An RFC 9457 problem; members of another type than ours are an unreadable answer."""

    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    errors: list[dict[str, Any]] | None = None


class Client:
    """One server under one token; not for several threads at once."""

    def __init__(self, url: str, token: str | None, *, timeout: float = 30.0) -> None:
        """Take the base address and a bearer token. Raises: BadAddress, BadToken."""
        self._transport = Transport(url, token, timeout_seconds=timeout)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send raw bytes and return the answer. Raises: ApiProblem for 400 and above, TransportError."""
        try:
            answer = self._transport.request(method, path, body, headers)
        except TransportError:
            if method not in {"GET", "HEAD"}:
                raise
            answer = self._transport.request(method, path, body, headers)
        if answer.status >= _CLIENT_ERROR:
            raise problem_of(answer)
        return answer

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        purpose: str | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Send `body` as JSON and return the answer's JSON, or None if it has none.

        `purpose` is the code, with an optional `;case=`, that reads of content need.

        Raises: ApiProblem, TransportError.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if purpose is not None:
            headers["X-Purpose"] = purpose
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        answer = self.send(method, path, None if body is None else msgspec.json.encode(body), headers)
        if not answer.body:
            return None
        try:
            return msgspec.json.decode(answer.body)
        except msgspec.DecodeError as error:
            raise ApiProblem(status=answer.status, title="the answer is not JSON") from error

    def pages(self, path: str, *, limit: int = 1000) -> Iterator[Any]:
        """Yield every item of a list, page by page. Raises: ApiProblem, TransportError."""
        cursor = ""
        while True:
            mark = "&" if "?" in path else "?"
            page = self.request("GET", f"{path}{mark}limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
            yield from page["items"]
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return

    def artifacts(self, artifacts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Register artifacts, in as many calls as they need, and return a result for each, in order.

        Raises: ApiProblem, TransportError; earlier calls stay done, and registering again is harmless.
        """
        results: list[dict[str, Any]] = []
        for start in range(0, len(artifacts), _MAX_ARTIFACTS):
            batch = list(artifacts[start : start + _MAX_ARTIFACTS])
            results += self.request("POST", "/v1/artifacts", {"artifacts": batch})["results"]
        return results

    def claim(self, action_id: str, *, kind: str, stream: str, run: str, proposal_digest: str,
              lease: str = "PT5M", approval: str | None = None) -> dict[str, Any]:  # fmt: skip
        """Claim a side effect before doing it; what is known of it if somebody did. Raises: ApiProblem."""
        body = {"action_id": action_id, "kind": kind, "stream": stream, "run": run, "lease": lease,
                "proposal_digest": proposal_digest}  # fmt: skip
        if approval is not None:
            body["approval"] = approval
        claimed: dict[str, Any] = self.request("POST", "/v1/actions", body)
        return claimed

    def outcome(self, action_id: str, state: str, *, provider_ref: str | None = None) -> Any:
        """Report how a claimed action ended: `succeeded` or `failed`. Raises: ApiProblem, TransportError."""
        from urllib.parse import quote

        body = {"state": state} if provider_ref is None else {"state": state, "provider_ref": provider_ref}
        return self.request("POST", f"/v1/actions/{quote(action_id, safe='')}/outcome", body)

    def allowed_tools(self, stream: str) -> Any:
        """Return the tools that the stream's phase allows. Raises: ApiProblem, TransportError."""
        return self.request("POST", "/v1/streams:allowed-tools", {"stream": stream})

    def memories(
        self,
        subject: str,
        *,
        purpose: str,
        scope: Mapping[str, str] | None = None,
        artifacts: Sequence[Any] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the verdict on each memory of a person, or on those named: may it be used for this, here, now?

        Only `usable` means yes; `reconfirm` means yes, and ask whether it still holds. Raises: ApiProblem,
        TransportError: where nobody answers, nothing may be used.
        """
        body: dict[str, Any] = {"subject": subject, "purpose": purpose}
        body |= {"scope": dict(scope)} if scope is not None else {}
        body |= {"artifacts": list(artifacts)} if artifacts is not None else {}
        found: list[dict[str, Any]] = self.request("POST", "/v1/memory:resolve", body)["memories"]
        return found

    def confirm_memory(self, memory: str, *, source_ref: str) -> Any:
        """Say that the person confirmed a memory, and where; `entry:<uuid>` cites the record."""
        return self.request("POST", f"{_memory(memory)}:confirm", {"source_ref": source_ref})

    def contradict_memory(self, memory: str, *, product_ref: str, observed: Any) -> Any:
        """Say that the product knows otherwise: the memory is quarantined, both sides are recorded."""
        return self.request("POST", f"{_memory(memory)}:conflict", {"product_ref": product_ref, "observed": observed})

    def forget_memory(self, memory: str, *, subject: str | None = None, source_ref: str | None = None) -> str:
        """Pass on a person's «forget this»; returns the id of the request that ends it and all made from it."""
        said = {"subject": subject, "source_ref": source_ref}
        body = {name: value for name, value in said.items() if value is not None}
        request: str = self.request("POST", f"{_memory(memory)}:forget", body)["request"]
        return request

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()


def _memory(name: str) -> str:
    """Return the path of a memory; a name may come from a model, and must name nothing else."""
    from urllib.parse import quote

    return f"/v1/memory/{quote(name, safe='')}"


def problem_of(answer: Answer) -> ApiProblem:
    """Return the problem an answer tells of, also where its body is none of ours."""
    try:
        found = msgspec.json.decode(answer.body, type=_Problem)
    except msgspec.DecodeError:
        found = _Problem(title="the server gave no problem document")
    return ApiProblem(
        status=answer.status,
        type=found.type,
        title=found.title,
        detail=found.detail,
        errors=found.errors,
        retry_after=answer.retry_after,
    )


def derive(
    *,
    data_class: str,
    store: str,
    locator: Mapping[str, Any],
    sources: Sequence[str | Mapping[str, Any]] = (),
    subjects: Sequence[str] = (),
    activity: str | Mapping[str, Any] | None = None,
    observed_at: datetime | str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return an artifact made from `sources`, ready for `Client.artifacts`.

    A source is an artifact's id, `entry:<id>`, or `{"store", "locator"}`. `activity` may be just its kind. Further
    members (`purposes`, `confidence`, `scope`, …) pass through as they are. Source: API.md §4.
    """
    made: dict[str, Any] = {"data_class": data_class, "store": store, "locator": dict(locator), **fields}
    if sources:
        made["sources"] = list(sources)
    if subjects:
        made["subjects"] = list(subjects)
    if activity is not None:
        made["activity"] = {"kind": activity} if isinstance(activity, str) else dict(activity)
    if observed_at is not None:
        made["observed_at"] = time_text(observed_at) if isinstance(observed_at, datetime) else observed_at
    return made
