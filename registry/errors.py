"""The facts the registry refuses with.

Guarantees: messages name fields, counts and opaque ids; never an identifier of a person, a locator, a secret or a
caller's free text. `problem` is the documented problem type, `hint` what to do next; there is no HTTP here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class RegistryError(Exception):
    """Anything the registry refuses."""

    problem: ClassVar[str] = "registry"
    hint: ClassVar[str] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with a declaration: where (JSON pointer), and what is missing and why it matters."""

    pointer: str
    detail: str


class InvalidDeclaration(RegistryError):
    """A class, store, stream, run or artifact is declared wrongly; `faults` lists everything, not only the first."""

    problem = "invalid"
    hint = "correct the fields named in errors and send the declaration again"

    def __init__(self, what: str, faults: Sequence[Fault]) -> None:
        listed = "; ".join(f"{fault.pointer or '/'}: {fault.detail}" for fault in faults)
        super().__init__(f"{what} is refused: {listed}")
        self.what = what
        self.faults = tuple(faults)


class NotBuilt(InvalidDeclaration):
    """A declaration asks for something this version does not do; refused, so that nobody believes it is in force."""

    problem = "not-built"
    hint = "leave the field out; what the product cannot do it refuses instead of ignoring it"


class MalformedDuration(RegistryError):
    """A text is not an ISO 8601 duration of whole units."""

    problem = "malformed-duration"
    hint = "write durations like P90D, P6M, P1Y, PT30M"

    def __init__(self, detail: str) -> None:
        super().__init__(f"not a duration: {detail}")
        self.detail = detail


class MalformedSubject(RegistryError):
    """A text does not name a person as `type:value`. The text itself is never repeated."""

    problem = "malformed-subject"
    hint = "write type:value, the type as [a-z][a-z0-9_]*, the value 1 to 512 characters without *, % and controls"

    def __init__(self, detail: str, pointer: str = "/subject") -> None:
        super().__init__(f"malformed subject: {detail}")
        self.detail = detail
        self.pointer = pointer


class TargetNotAllowed(RegistryError):
    """A store or a callback points where the operator has not allowed it, or at the service's own data."""

    problem = "target-not-allowed"
    hint = (
        "the operator lists what stores may point at in MUNIMENT_ALLOW_TARGETS, or as allow_targets in muniment.toml "
        "of the data folder (file:GLOB, sqlite:GLOB, host or host:port), and starts the service again"
    )

    def __init__(self, kind: str, detail: str, *, allow: str | None = None) -> None:
        """Keep both; `allow` is the entry of the operator's list that would let the target through."""
        wanted = "" if allow is None else f"; {allow} would allow it"
        super().__init__(f"target of kind {kind} refused: {detail}{wanted}")
        self.kind = kind
        self.detail = detail


class Unknown(RegistryError):
    """Nothing of that name exists in this tenant."""

    problem = "not-found"
    what: ClassVar[str] = "object"

    def __init__(self, name: str = "") -> None:
        super().__init__(f"no {self.what} {name!r} in this tenant" if name else f"no such {self.what} in this tenant")
        self.name = name


class UnknownClass(Unknown):
    """No data class of that name (or version)."""

    problem = "unknown-class"
    hint = "a platform token registers it first: PUT /v1/data-classes/{name}"
    what = "data class"

    def __init__(self, name: str = "", version: int | None = None) -> None:
        super().__init__(name)
        self.version = version
        if version is not None:
            self.args = (f"no version {version} of data class {name!r} in this tenant",)


class UnknownStore(Unknown):
    """No store of that name."""

    problem = "unknown-store"
    hint = "a platform token registers it first: PUT /v1/stores/{name}"
    what = "store"


class UnknownArtifact(Unknown):
    """No artifact of that id."""

    what = "artifact"


class UnknownStream(Unknown):
    """No stream of that opaque id."""

    what = "stream"


class UnknownRun(Unknown):
    """No run of that opaque id."""

    what = "run"


class UnknownSubject(Unknown):
    """Nobody by that name is known; the name is not repeated."""

    what = "subject"


class UnknownMerge(Unknown):
    """No merge or split of that id."""

    what = "merge"


class UnknownReview(Unknown):
    """No scope review of that id."""

    what = "scope review"


class UnknownRegistrationReview(Unknown):
    """No review of a repeated registration of that id."""

    what = "registration review"


class UnknownTenant(Unknown):
    """No tenant of that name."""

    what = "tenant"


class UnknownToken(Unknown):
    """No token of that id, or it was revoked already."""

    what = "token"


class Conflict(RegistryError):
    """The state of the registry stands against a change."""

    problem = "conflict"


class ClassInUse(Conflict):
    """A data class has live items, and the change would leave them without a rule."""

    problem = "class-in-use"
    hint = "let retention or a reclassification end its items first, or register a class of another name"

    def __init__(self, name: str, live: int, change: str) -> None:
        super().__init__(f"data class {name!r} has {live} live items: {change} is refused")
        self.name = name
        self.live = live
        self.change = change


class HeldInItsClass(RegistryError):
    """A legal hold on a class keeps an item, which under another class would not be kept by it."""

    problem = "legal-hold"
    hint = "hold the item by its id or its person as well, or wait until the hold is released"

    def __init__(self, former: str, wanted: str) -> None:
        super().__init__(f"a legal hold keeps what is in {former!r}: it would not keep it in {wanted!r}")
        self.former = former
        self.wanted = wanted


class StoreInUse(Conflict):
    """A store holds live artifacts; without it nothing could erase them."""

    problem = "store-in-use"
    hint = "erase or re-register its artifacts first"

    def __init__(self, name: str, live: int, change: str = "removal") -> None:
        super().__init__(f"store {name!r} holds {live} live artifacts: {change} is refused")
        self.name = name
        self.live = live


class NameTaken(Conflict):
    """A tenant of that name exists already."""

    problem = "name-taken"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"{what} {name!r} exists already")
        self.name = name


class AmbiguousSubject(Conflict):
    """A name may be more than one person's; a human must say whose it is before anything is joined or erased."""

    problem = "ambiguous-subject"
    hint = "decide the proposal (GET /v1/subjects/merges?state=proposed), saying that you know of the shared name"

    def __init__(self, names: int) -> None:
        super().__init__(f"{names} of the names belong to somebody with another name of the same type already")
        self.names = names


class SamePrincipalDecides(RegistryError):
    """Who proposed a merge, or asked for a change of another's item, cannot decide it."""

    problem = "separate-duties"
    hint = "another person of the legal desk decides the proposal"

    def __init__(self) -> None:
        super().__init__("the proposal was made by the same principal")


class SubjectNotErased(Conflict):
    """Only somebody whose erasure is complete can be opened again as a new incarnation."""

    problem = "subject-not-erased"
    hint = "while a request is open, wait for its certificate; somebody who was never erased needs no reopening"

    def __init__(self, state: str) -> None:
        super().__init__(f"the subject is {state}, not erased")
        self.state = state


class OutsideTokenScope(RegistryError):
    """The token does not carry the store or the class."""

    problem = "outside-token-scope"
    hint = "ask an admin for a token that carries it"

    def __init__(self, what: str, name: str) -> None:
        super().__init__(f"the token may not use {what} {name!r}")
        self.what = what
        self.name = name


class RejectedSources(RegistryError):
    """Sources that cannot be added to an artifact: unknown, itself, or too many subjects behind them."""

    problem = "unknown-source"

    def __init__(self, artifact: str, detail: str) -> None:
        super().__init__(f"sources of {artifact} are refused: {detail}")
        self.artifact = artifact
        self.detail = detail


class NotAuthenticated(RegistryError):
    """No live token has this secret. Says nothing about which part was wrong."""

    problem = "unauthorized"
    hint = "send Authorization: Bearer with a token that is not revoked"

    def __init__(self) -> None:
        super().__init__("the token is unknown or revoked")


class SealRefused(RegistryError):
    """A value should be sealed for somebody whose identity key is fenced or destroyed."""

    problem = "erased"

    def __init__(self, subject_no: int) -> None:
        super().__init__(f"subject {subject_no} is fenced or erased: nothing new is sealed for it")
        self.subject_no = subject_no


class JournalUnreadable(RegistryError):
    """An object with rows in the unlocked store was altered, or is of a newer version of this program."""

    problem = "journal-unreadable"
    hint = "bring the object back from a copy of the unlocked store"

    def __init__(self, path: str) -> None:
        super().__init__(f"the rows in {path} of the unlocked store cannot be read")
        self.path = path


class JournalNotWritten(RegistryError):
    """Rows were written to the unlocked store, and something else was read back."""

    problem = "journal-not-written"
    hint = "check the unlocked store; nothing was destroyed that needs these rows"

    def __init__(self, path: str) -> None:
        super().__init__(f"the unlocked store does not give back what was written to {path}")
        self.path = path


class NothingToRebuild(RegistryError):
    """The unlocked store holds no rows of a log, so nobody can say whose it is or what its keys are."""

    problem = "nothing-to-rebuild"
    hint = "bring the unlocked store back; headers and checkpoints can be verified without it"

    def __init__(self, log_id: str) -> None:
        super().__init__(f"the unlocked store holds no rows of log {log_id}")
        self.log_id = log_id


class NotAMemory(Conflict):
    """The artifact is of a class that holds no memories: nothing is remembered, confirmed or forgotten there."""

    def __init__(self, artifact: str) -> None:
        super().__init__(f"{artifact} is no memory; its class holds another kind of state")
        self.artifact = artifact


class MemoryGone(RegistryError):
    """The memory is erased, or its erasure has begun."""

    problem = "erased"

    def __init__(self, artifact: str, request_id: str | None) -> None:
        super().__init__(f"{artifact} is erased, or its erasure has begun")
        self.artifact = artifact
        self.request_id = request_id


class UnknownMachine(Unknown):
    """No machine of that name."""

    what = "machine"
