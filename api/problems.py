"""Every problem type this service answers with: its status, its title, and what to do, as served at `/problems/{name}`.

Guarantees: a `type` in an answer always has a page here (a test reads every error class of ours). Names are part of the
contract and never change their meaning.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemType:
    """One documented kind of refusal."""

    status: int
    title: str
    advice: str
    retry_after_s: int | None = None


def _of(status: int, title: str, advice: str, retry_after_s: int | None = None) -> ProblemType:
    return ProblemType(status=status, title=title, advice=advice, retry_after_s=retry_after_s)


PROBLEMS: dict[str, ProblemType] = {
    # 400 to 404
    "malformed": _of(400, "The request is not readable", "Send UTF-8 JSON as RFC 8259 has it; `detail` says where."),
    "unauthorized": _of(401, "No valid token", "Send `Authorization: Bearer <token>` with a token not revoked."),
    "forbidden": _of(403, "This token may not do that", "Use a token with one of the roles named in `detail`."),
    "purpose-required": _of(
        403, "Content is read for a purpose", "Send `X-Purpose: <code>[;case=<id>]` with a code the class lists."
    ),
    "outside-token-scope": _of(403, "The token may not use this", "An admin makes a token that carries it."),
    "separate-duties": _of(
        403, "Another person must do this", "Who created a request or checked its identity cannot approve it."
    ),
    "not-found": _of(404, "Unknown in this tenant", "Check the id; ids of other tenants are unknown here."),
    "method-not-allowed": _of(405, "The path has no such method", "See `/openapi.json`."),
    "not-acceptable": _of(406, "There is no such form of it", "`detail` lists what can be asked for by `Accept`."),
    # 409 and 410
    "conflict": _of(409, "The present state does not allow this", "Read the resource again; `detail` names its state."),
    "id-conflict": _of(409, "The id was used for other content", "Ids are never reused; make a new one."),
    "idempotency-conflict": _of(409, "The Idempotency-Key was used for another body", "Use a new key for a new write."),
    "idempotency-in-progress": _of(409, "The same write is still running", "Send it again later.", 1),
    "class-in-use": _of(409, "Live items are of this class", "Let retention or a reclassification end them first."),
    "store-in-use": _of(409, "Live artifacts lie in this store", "Erase or register them elsewhere first."),
    "name-taken": _of(409, "The name is taken", "Choose another one."),
    "subject-not-erased": _of(409, "This person was not erased", "A new start needs a completed erasure before it."),
    "ambiguous-subject": _of(
        409,
        "A name may be more than one person's",
        "A human decides whose: `GET /v1/subjects/merges?state=proposed`.",
    ),
    "stale-plan": _of(409, "The plan changed since it was read", "Plan again, read it, and approve its new hash."),
    "illegal-move": _of(409, "The request's state does not allow this", "`detail` names the state and the step."),
    "too-late": _of(409, "It is too late for this", "The first destructive step was taken, or the date has passed."),
    "extension-too-late": _of(409, "No second period can be added", "An extension is told before the first date."),
    "clock-cannot-pause": _of(409, "This clock cannot be paused", "The regulation names the grounds; CCPA has none."),
    "report-not-ready": _of(409, "There is no such report yet", "Ask again at the date in `detail`."),
    "letter-not-ready": _of(409, "There is no such letter now", "`detail` names the request's state and the kind."),
    "lease-lost": _of(409, "Another worker has this request now", "Read its state again."),
    "proposal-changed": _of(
        409, "The action is bound to another proposal", "A changed proposal needs a new action id."
    ),
    "action-altered": _of(
        409,
        "What is kept of the action was changed in the database",
        "Ask the provider what was done, and go on under a new action id; `muniment doctor` names the row.",
    ),
    "action-settled": _of(409, "The action has another outcome", "An outcome is recorded once; read the action."),
    "erased": _of(410, "It was erased", "`request` names the request, `certificate` its proof once issued."),
    # 413 to 423
    "too-large": _of(413, "The body is too large", "Send at most 16 MiB and the number of items `detail` names."),
    "unsupported-media-type": _of(415, "Unknown content type", "Send `Content-Type: application/json`."),
    "invalid": _of(422, "The request is not valid", "`errors` lists each field by JSON pointer, never its value."),
    "malformed-duration": _of(422, "Not a duration", "Write ISO 8601 durations such as P90D, P6M, PT30M."),
    "malformed-subject": _of(
        422, "Not a subject", "A subject is `type:value`: lower-case type, 1 to 512 characters without `*` and `%`."
    ),
    "unknown-class": _of(422, "No such data class", "Register it with `PUT /v1/data-classes/{name}` first."),
    "unknown-store": _of(422, "No such store", "Register it with `PUT /v1/stores/{name}` first."),
    "unknown-kind": _of(422, "No such kind", "Register it with `PUT /v1/kinds/{name}` first."),
    "invalid-entry": _of(422, "The entry is not valid", "`errors` names the field; the other entries were stored."),
    "unknown-source": _of(422, "No such source", "Register or record the source first."),
    "action-not-succeeded": _of(
        422, "The product write did not succeed", "Register the memory after the outcome of its action is `succeeded`."
    ),
    "unknown-stream": _of(404, "No such stream", "Make it with `POST /v1/streams`, or record an entry in it."),
    "too-many-subjects": _of(
        422, "Too many people stand behind one item", "A class with `aggregate: true` and `derived.default: review`."
    ),
    "no-subject": _of(422, "Nobody is named", "Name a subject or a source; only `personal: false` needs neither."),
    "bad-class": _of(422, "The data class is incomplete or contradicts itself", "`detail` says what and why."),
    "bad-store": _of(422, "The store's declaration is refused", "`detail` names the key."),
    "bad-locator": _of(422, "The locator does not fit the store's kind", "See API.md §3 for each kind's locator."),
    "target-not-allowed": _of(
        422, "The target is not on the operator's list", "The operator adds it to `MUNIMENT_ALLOW_TARGETS`."
    ),
    "secret-not-allowed": _of(
        422, "The secret is outside the tenant's own", "Use `env:MUNIMENT_SECRET_<TENANT>_…` or `file:` in its folder."
    ),
    "not-built": _of(422, "This version does not do that", "It is refused rather than half done; `detail` names it."),
    "unknown-ground": _of(422, "Not a ground for this", "`detail` lists those of the regulation."),
    "unknown-timezone": _of(422, "No such time zone", "Use a name of the IANA database, such as Europe/Berlin."),
    "unknown-jurisdiction": _of(422, "No such jurisdiction", "Use an ISO 3166 code such as DE, DE-BY or US-CA."),
    "unknown-regulation": _of(422, "No such regulation", "Built are gdpr and ccpa."),
    "bad-report": _of(422, "The certificate does not hold", "`detail` says which step failed."),
    "bad-cursor": _of(422, "The cursor is not one of ours", "Send `next_cursor` back as it came, or none."),
    "legal-hold": _of(423, "A legal hold stops this", "It stays until the hold is released by its keepers."),
    # 429 and 5xx
    "too-many-requests": _of(429, "Too many requests", "Wait as long as `Retry-After` says.", 1),
    "internal": _of(500, "A fault of the service", "It is logged under the request id; nothing is half written."),
    "unavailable": _of(503, "Something the service needs is down", "Send it again after `Retry-After`.", 5),
    "contended": _of(503, "Another call changed the same thing", "Nothing was changed by this one: send it again.", 1),
    "paper-not-set": _of(503, "The PDF could not be set", "Ask for `application/json` or `text/html`, or again.", 5),
    "checkpoint-pending": _of(503, "The checkpoint is being extended", "Send it again after `Retry-After`.", 1),
    "journal-unreadable": _of(
        503, "Kept rows cannot be read", "Bring the object back from a copy of the unlocked store."
    ),
    "journal-not-written": _of(
        503, "Rows for a rebuild were not kept", "Check the unlocked store; nothing was destroyed."
    ),
    "nothing-to-rebuild": _of(503, "There is nothing to rebuild from", "Bring the unlocked store back."),
    "record-damaged": _of(
        503,
        "The record is damaged here",
        "`detail` names the place; `muniment verify --all` says what else is. Bring the object back, or rebuild.",
    ),
    "read-only": _of(503, "The record takes no writes now", "`detail` says why; the operator is told.", 30),
}

GENERIC: dict[int, str] = {
    400: "malformed",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    409: "conflict",
    410: "erased",
    413: "too-large",
    415: "unsupported-media-type",
    422: "invalid",
    423: "legal-hold",
    429: "too-many-requests",
    503: "unavailable",
}
"""The type for a bare status, as the web framework raises it."""


def page(name: str) -> str:
    """The plain page at `/problems/{name}`. Raises KeyError for an unknown name."""
    problem = PROBLEMS[name]
    return f"{problem.title} ({problem.status}, /problems/{name})\n\n{problem.advice}\n"
