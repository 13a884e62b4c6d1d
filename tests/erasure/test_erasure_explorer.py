"""Every interleaving of two erasures, a hold, a foreign restriction, a late write, a lying store and a crash.

The two are under one regulation, where one of them does the work, or under one each, where both do.

The moves are the product's own pure functions: `request.move`, `completion`, `is_duplicate`, `plan.build`, `addendum`,
`redecide` and through them `decide`. What is modelled here is only the order of things: which transaction reads and
writes what (`erasure.planning`, `execute`, `dispatch`, `confirm`, `worker`), and a store that may say it erased and did
not. Breadth first, so that a broken invariant comes with the shortest way to it.

Invariants, after every step:
 1. no request is completed with an open, failed, unverified or present copy, be it in its plan or late;
 2. at most one request of the person, right and regulation is active (planned and not ended);
 3. nothing is sent to a store under a hold or a restriction;
 4. a fenced incarnation gains no copy: what comes late is never left to itself, and no erasure is under way unfenced;
 5. nothing is sent to a store without an approval of that plan by a second person.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from erasure import request
from erasure.additions import addendum
from erasure.errors import ErasureError
from erasure.facts import ArtifactFact, ClassFact, PlanInput, SourceFact, StoreFact
from erasure.plan import Plan, PlanCopy, build, redecide
from erasure.request import (
    BROKEN,
    CONTENDING,
    DONE,
    GONE,
    WAITING,
    Completion,
    CopyFact,
    CopyState,
    Extent,
    Facts,
    Move,
    Rival,
    State,
    completion,
    is_duplicate,
    is_settled,
    move,
)
from registry.duration import Duration
from retention.decide import DESTRUCTIVE, Claim, Hold, Item, Restriction, Rules

NOW = datetime(2026, 6, 1, tzinfo=UTC)
ADA, BOB = 1, 2
ROOT, SHARED, LATE = 1, 2, 3
"""Ada's own item, one made from it that is about Bob too, and one that is registered later."""
RULES = Rules(name="note", keep=Duration.parse("P90D"), starts="created")
CLASS = ClassFact(name="note", version=1, required="L1", rules=RULES)
STORE = StoreFact(name="db", kind="sql")
ACTIVE = frozenset({State.PLANNED, State.APPROVED, State.EXECUTING, State.VERIFYING, State.PARTIALLY_FAILED})
UNDER_WAY = frozenset({State.APPROVED, State.EXECUTING, State.VERIFYING})
EXTENT = Extent(subjects=frozenset({ADA}), right="erasure", regulation="gdpr")


@dataclass(frozen=True, slots=True)
class Line:
    """A copy of a request's plan as it stands; `sent`: the store did what it was asked, or says so."""

    item: int
    state: str
    verified: bool = False
    done: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request."""

    state: State = State.RECEIVED
    lines: tuple[Line, ...] = ()
    plan: str | None = None
    approved: str | None = None
    late: frozenset[int] = frozenset()
    destructive: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """Everything. `present`: what the store holds, `known`: the registry, `marked`: what came late of it, to be erased.

    `waiting`: late copies that the next pass of a worker joins.
    """

    asked: tuple[Asked, ...]
    present: frozenset[int] = frozenset({ROOT, SHARED})
    known: frozenset[int] = frozenset({ROOT, SHARED})
    waiting: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    held: bool = False
    restricted: bool = False
    fence: int | None = None
    apart: bool = False
    """Whether each request is under a regulation of its own."""
    holds: int = 0
    restrictions: int = 0
    lates: int = 0
    lies: int = 0
    failures: int = 0
    crashes: int = 0
    cancels: int = 0


def facts(number: int, actor: str, asked: Asked, given: str = "") -> Facts:
    return Facts(
        actor=actor,
        now=NOW,
        created_by="ann",
        identity_by=frozenset({"ben"}),
        plan_hash=asked.plan,
        given_hash=given,
        destructive=asked.destructive,
        approved_by=frozenset({"carol"}) if asked.approved else frozenset(),
        ground=f"{number}",
    )


@cache
def given(number: int, known: frozenset[int], held: bool, restricted: bool, only: frozenset[int] | None) -> PlanInput:
    """What the selector would load; `only`: the decision at the moment of dispatch looks at these."""
    artifacts = []
    for item in sorted(known if only is None else only):
        people = frozenset({ADA, BOB}) if item == SHARED else frozenset({ADA})
        source = SourceFact(kind="a", ref=ROOT, name="root", status="live" if ROOT in known else "erased")
        artifacts.append(
            ArtifactFact(
                artifact_id=item,
                name=str(item),
                store="db",
                item=Item(
                    item_id=item,
                    data_class="note",
                    created=NOW - timedelta(days=1),
                    subjects=people,
                    own_subjects=people,
                ),
                sources=(source,) if item == SHARED else (),
            )
        )
    claim = Claim(f"req_{number}", "erasure", frozenset({ADA}), NOW, NOW + timedelta(days=30))
    return PlanInput(
        owner=f"req_{number}",
        subjects=frozenset({ADA}),
        claim=claim,
        artifacts=artifacts,
        keys=(),
        classes={"note": CLASS},
        stores={"db": STORE},
        holds=[Hold("hold_1", artifacts=frozenset({ROOT}))] if held else [],
        restrictions=[Restriction("req_bob", BOB, NOW - timedelta(days=1))] if restricted else [],
        now=NOW,
    )


@dataclass(frozen=True, slots=True)
class Made:
    """A plan as the model keeps it."""

    lines: tuple[Line, ...]
    hash: str
    plan: Plan = field(compare=False)


@cache
def planned(number: int, known: frozenset[int], held: bool, restricted: bool) -> Made:
    plan = build(given(number, known, held, restricted, None))
    return Made(tuple(Line(int(copy.ref), copy.state) for copy in plan.copies), plan.hash, plan)


@cache
def decided(number: int, known: frozenset[int], held: bool, restricted: bool, item: int) -> str:
    """The decision of one item, made again in the transaction that dispatches it."""
    return redecide(given(number, known, held, restricted, frozenset({item})))[str(item)].action


def fact(line: Line) -> CopyFact:
    level = "L1" if line.state in GONE else None
    return CopyFact(copy_no=line.item, state=line.state, required="L1", level=level, verified=line.verified)


def put(world: World, number: int, asked: Asked) -> World:
    return replace(world, asked=(*world.asked[:number], asked, *world.asked[number + 1 :]))


def put_line(world: World, number: int, line: Line) -> World:
    asked = world.asked[number]
    lines = tuple(line if one.item == line.item else one for one in asked.lines)
    return put(world, number, replace(asked, lines=lines))


@dataclass(frozen=True, slots=True)
class Budget:
    """How often the world may interfere."""

    holds: int
    restrictions: int
    lates: int
    lies: int
    failures: int
    crashes: int
    cancels: int


def steps(world: World, budget: Budget) -> Iterator[tuple[str, World]]:
    """Every next world, with what led there."""
    for number in range(len(world.asked)):
        yield from desk(world, number, budget)
        yield from worker(world, number, budget)
    yield from outside(world, budget)


def attempt(what: str, number: int, make: World | None) -> Iterator[tuple[str, World]]:
    if make is not None:
        yield f"{what} {number}", make


# ── the desk ──────────────────────────────────────────────────────────────────────────────────────────────────────


def desk(world: World, number: int, budget: Budget) -> Iterator[tuple[str, World]]:
    asked = world.asked[number]
    if asked.state in (State.RECEIVED, State.PLANNED):
        yield from attempt("verify", number, verify(world, number))
    if asked.state in (State.VERIFIED, State.PLANNED):
        yield from attempt("plan", number, plan(world, number))
    for actor in ("ann", "ben", "carol"):
        for hash_ in ("stale", asked.plan or ""):
            yield from attempt(f"approve as {actor}", number, approve(world, number, actor, hash_))
    if world.cancels < budget.cancels:
        yield from attempt("cancel", number, cancel(world, number))
    if asked.state is State.PARTIALLY_FAILED:
        state = move(asked.state, Move.RETRY, facts(number, "ann", asked))
        lines = tuple(
            replace(line, state=CopyState.PENDING.value, verified=False) if line.state in BROKEN else line
            for line in asked.lines
        )
        yield f"retry {number}", put(world, number, replace(asked, state=state, lines=lines))


def extent(world: World, number: int) -> Extent:
    return replace(EXTENT, regulation=f"law {number}") if world.apart else EXTENT


def rivals(world: World, number: int, *, left: bool) -> bool:
    mine = Rival(number=number, state=world.asked[number].state, extent=extent(world, number))
    others = [
        Rival(number=other, state=one.state, extent=extent(world, other))
        for other, one in enumerate(world.asked)
        if other != number
        and (one.state in CONTENDING or one.state is State.COMPLETED_WITH_RETAINED or other == world.fence)
    ]
    return any(is_duplicate(mine, other, something_left=left) for other in others)


def verify(world: World, number: int) -> World:
    asked = world.asked[number]
    state = move(asked.state, Move.VERIFY, facts(number, "ben", asked))
    made = put(world, number, replace(asked, state=state, plan=None))
    if rivals(made, number, left=False):
        return put(made, number, replace(made.asked[number], state=State.DUPLICATE))
    return made


def plan(world: World, number: int) -> World:
    asked = world.asked[number]
    left = bool(world.known)
    if asked.state is State.VERIFIED and (
        rivals(world, number, left=False) or (left and rivals(world, number, left=True))
    ):
        state = move(asked.state, Move.FIND_DUPLICATE, facts(number, "ann", asked))
        return put(world, number, replace(asked, state=state))
    if not left:
        state = move(asked.state, Move.FIND_NOBODY, facts(number, "ann", asked))
        return put(world, number, replace(asked, state=state))
    made = planned(number, world.known, world.held, world.restricted)
    state = move(asked.state, Move.PLAN, facts(number, "ann", asked))
    return put(world, number, replace(asked, state=state, lines=made.lines, plan=made.hash))


def approve(world: World, number: int, actor: str, hash_: str) -> World | None:
    asked = world.asked[number]
    try:
        state = move(asked.state, Move.APPROVE, facts(number, actor, asked, hash_))
    except ErasureError:
        return None
    fresh = planned(number, world.known, world.held, world.restricted)
    more = addendum(frozen(number, world, asked), fresh.plan)
    if more.needs_approval:
        return put(world, number, replace(asked, plan=None))
    added = tuple(Line(int(copy.ref), copy.state) for copy in more.added)
    made = replace(asked, state=state, approved=asked.plan, lines=(*asked.lines, *added))
    fence = number if world.fence is None else world.fence
    return replace(put(world, number, made), fence=fence)


def frozen(number: int, world: World, asked: Asked) -> list[PlanCopy]:
    """The plan's lines as the table keeps them: what was decided when it was made."""
    everything = {copy.ref: copy for copy in planned(number, frozenset({ROOT, SHARED, LATE}), False, False).plan.copies}
    return [
        replace(
            everything[str(line.item)],
            action="restrict"
            if line.state == CopyState.RETAINED and world.restricted
            else everything[str(line.item)].action,
            copy_no=place,
        )
        for place, line in enumerate(asked.lines, start=1)
    ]


def cancel(world: World, number: int) -> World | None:
    asked = world.asked[number]
    try:
        state = move(asked.state, Move.CANCEL, facts(number, "ann", asked))
    except ErasureError:
        return None
    fence = successor(world, number) if world.fence == number else world.fence
    made = replace(put(world, number, replace(asked, state=state)), fence=fence, cancels=world.cancels + 1)
    # What waited for this request is free again with its fence.
    return replace(made, waiting=frozenset(), marked=frozenset()) if fence is None else made


def successor(world: World, number: int) -> int | None:
    """To which other erasure under way the fence of one that is cancelled goes over."""
    others = (other for other, one in enumerate(world.asked) if other != number and one.state in UNDER_WAY)
    return next(others, None)


# ── the worker ────────────────────────────────────────────────────────────────────────────────────────────────────


def worker(world: World, number: int, budget: Budget) -> Iterator[tuple[str, World]]:
    asked = world.asked[number]
    if asked.state is State.APPROVED:
        yield f"start {number}", begin(put(world, number, replace(asked, state=State.EXECUTING)), number)
    if asked.state is State.EXECUTING:
        if not asked.destructive:
            yield f"close keys {number}", put(world, number, replace(asked, destructive=True))
        else:
            for line in asked.lines:
                yield from copy_steps(world, number, line, budget)
        if asked.destructive and not any(line.state in (CopyState.PENDING, CopyState.RUNNING) for line in asked.lines):
            state = move(asked.state, Move.CONFIRM, facts(number, "worker", asked))
            yield f"hand over {number}", put(world, number, replace(asked, state=state))
    if asked.state is State.VERIFYING:
        yield from verifying(world, number)
    if asked.state is State.COMPLETED_WITH_RETAINED and any(
        line.state == CopyState.RETAINED and may_go(world, number, line.item) for line in asked.lines
    ):
        state = move(asked.state, Move.REOPEN, facts(number, "worker", asked))
        yield f"wake {number}", begin(put(world, number, replace(asked, state=state)), number)
    if world.waiting and world.fence == number:
        yield "join", join(world)


def begin(world: World, number: int) -> World:
    """What a dead worker left running is pending; what was retained is decided again."""
    asked = world.asked[number]
    lines = []
    for line in asked.lines:
        state = line.state
        if state == CopyState.RUNNING or (state == CopyState.RETAINED and may_go(world, number, line.item)):
            state = CopyState.PENDING.value
        lines.append(replace(line, state=state, done=False))
    return put(world, number, replace(asked, lines=tuple(lines)))


def may_go(world: World, number: int, item: int) -> bool:
    return item not in world.known or decided(number, world.known, world.held, world.restricted, item) in DESTRUCTIVE


def copy_steps(world: World, number: int, line: Line, budget: Budget) -> Iterator[tuple[str, World]]:
    asked = world.asked[number]
    if line.state == CopyState.PENDING:
        # One transaction: decide again, mark as running.
        if may_go(world, number, line.item):
            yield (
                f"dispatch {number}/{line.item}",
                put_line(world, number, replace(line, state=CopyState.RUNNING.value)),
            )
        else:
            yield f"keep {number}/{line.item}", put_line(world, number, replace(line, state=CopyState.RETAINED.value))
    elif line.state == CopyState.RUNNING and not line.done:
        done = replace(line, done=True)
        yield f"erase {number}/{line.item}", replace(put_line(world, number, done), present=world.present - {line.item})
        if world.lies < budget.lies and line.item in world.present:
            yield f"lie {number}/{line.item}", replace(put_line(world, number, done), lies=world.lies + 1)
        if world.failures < budget.failures:
            broken = replace(line, state=CopyState.FAILED.value)
            yield f"fail {number}/{line.item}", replace(put_line(world, number, broken), failures=world.failures + 1)
    elif line.state == CopyState.RUNNING:
        told = replace(line, state=CopyState.ERASED_LOGICAL.value, done=False)
        yield f"record {number}/{line.item}", put_line(world, number, told)
    if world.crashes < budget.crashes and any(one.state == CopyState.RUNNING for one in asked.lines):
        yield f"crash {number}", replace(begin(world, number), crashes=world.crashes + 1)


def verifying(world: World, number: int) -> Iterator[tuple[str, World]]:
    asked = world.asked[number]
    for line in asked.lines:
        if line.state in GONE and not line.verified:
            if line.item in world.present:
                seen = replace(line, state=CopyState.PENDING.value)
                yield f"find {number}/{line.item}", put_line(world, number, seen)
            else:
                shown = put_line(world, number, replace(line, verified=True))
                yield f"confirm {number}/{line.item}", replace(shown, known=shown.known - {line.item})
    if any(line.state in (CopyState.PENDING, CopyState.RUNNING) for line in asked.lines):
        state = move(asked.state, Move.REOPEN, facts(number, "worker", asked))
        yield f"reopen {number}", begin(put(world, number, replace(asked, state=state)), number)
        return
    if missing := lacking(world, number):
        yield f"join {number} at its end", join_one(world, number, missing)
        return
    found = completion(fact(line) for line in asked.lines).state
    if found is not None:
        yield f"complete {number}", put(world, number, replace(asked, state=found))


def joining(world: World) -> list[int]:
    """Which requests a late copy joins: the one behind the fence, and every other under way."""
    return [number for number, one in enumerate(world.asked) if number == world.fence or one.state in UNDER_WAY]


def join(world: World) -> World:
    """Late copies become lines of the requests that have to see them gone."""
    made = world
    for number in joining(world):
        made = join_one(made, number, world.waiting)
    return replace(made, waiting=frozenset())


def lacking(world: World, number: int) -> frozenset[int]:
    """Late copies that are not erased yet, and that a request looks for once more before it is complete."""
    return (world.marked & world.known) - {line.item for line in world.asked[number].lines}


def join_one(world: World, number: int, items: frozenset[int]) -> World:
    """One that was over goes on."""
    asked = world.asked[number]
    new = items - {line.item for line in asked.lines}
    if not new:
        return world
    lines = (*asked.lines, *(Line(item, CopyState.PENDING.value) for item in sorted(new)))
    state = asked.state
    if state in DONE or state is State.PARTIALLY_FAILED:
        state = move(state, Move.REOPEN, facts(number, "worker", asked))
    made = replace(asked, state=state, lines=lines, late=asked.late | new)
    return put(world, number, made)


# ── the world outside ─────────────────────────────────────────────────────────────────────────────────────────────


def outside(world: World, budget: Budget) -> Iterator[tuple[str, World]]:
    if world.held:
        yield "release", replace(world, held=False)
    elif world.holds < budget.holds:
        yield "hold", replace(world, held=True, holds=world.holds + 1)
    if world.restricted:
        yield "lift", replace(world, restricted=False)
    elif world.restrictions < budget.restrictions:
        yield "restrict", replace(world, restricted=True, restrictions=world.restrictions + 1)
    if world.lates < budget.lates and LATE not in world.known:
        late = frozenset({LATE})
        made = replace(world, present=world.present | late, known=world.known | late, lates=world.lates + 1)
        # Registration marks what is about a fenced person for removal, under the request that set the fence.
        yield "late", made if world.fence is None else replace(made, waiting=late, marked=late)


# ── the invariants ────────────────────────────────────────────────────────────────────────────────────────────────


def broken(before: World, what: str, after: World) -> str | None:
    """Which invariant this step breaks."""
    return (
        broken_ends(what, after)
        or broken_twice(after)
        or broken_sending(before, what, after)
        or broken_fence(before, after)
        or broken_approval(before, what, after)
        or broken_open(after)
    )


def broken_twice(after: World) -> str | None:
    active = sum(one.state in ACTIVE for one in after.asked)
    return "2: two requests are active" if active > 1 and not after.apart else None


def broken_ends(what: str, after: World) -> str | None:
    for number, asked in enumerate(after.asked):
        is_open = any(line.state in WAITING | BROKEN for line in asked.lines)
        if asked.state in (State.COMPLETED, State.COMPLETED_WITH_RETAINED) and is_open:
            return f"1: request {number} ended with an open copy"
        if asked.state is State.COMPLETED and not all(is_settled(fact(line)) for line in asked.lines):
            return f"1: request {number} is completed with a copy that is not settled"
        ended = what == f"complete {number}" and asked.state is not State.PARTIALLY_FAILED
        left = after.present - {line.item for line in asked.lines if line.state == CopyState.RETAINED}
        if ended and left:
            return f"1: request {number} ended and {left} is in its store"
    return None


def broken_sending(before: World, what: str, after: World) -> str | None:
    if not what.startswith(("dispatch", "erase", "lie")):
        return None
    number, item = (int(part) for part in what.split()[1].split("/"))
    if what.startswith("dispatch") and item in before.known:
        if before.held and item == ROOT:
            return "3: sent under a hold"
        if before.restricted and item == SHARED:
            return "3: sent under a restriction"
    return "5: sent without an approval" if after.asked[number].approved is None else None


def broken_fence(before: World, after: World) -> str | None:
    if before.fence is None or after.fence != before.fence:
        return None
    if LATE in after.known - before.known and LATE not in after.waiting:
        return "4: a fenced person gained a copy"
    lost = before.waiting - after.waiting - {line.item for line in after.asked[before.fence].lines}
    return "4: a late copy was left to itself" if lost else None


def broken_open(after: World) -> str | None:
    is_under_way = any(one.state in UNDER_WAY for one in after.asked)
    return "4: an erasure is under way and nothing is closed" if is_under_way and after.fence is None else None


def broken_approval(before: World, what: str, after: World) -> str | None:
    for old, new in zip(before.asked, after.asked, strict=True):
        if new.approved != old.approved and (
            what.split()[:3] != ["approve", "as", "carol"] or new.approved != old.plan
        ):
            return "5: approved by who may not, or another plan than the one that stands"
        if new.state in (State.EXECUTING, State.VERIFYING, *DONE) and new.approved is None:
            return "5: at work without an approval"
    return None


def explore(start: World, budget: Budget, limit: int) -> tuple[int, set[State], str | None]:
    """How many worlds were seen, which states requests reached, and the way to the first broken invariant."""
    seen: dict[World, tuple[World, str] | None] = {start: None}
    queue = deque([start])
    states: set[State] = set()
    while queue and len(seen) < limit:
        world = queue.popleft()
        states.update(asked.state for asked in world.asked)
        for what, following in steps(world, budget):
            why = broken(world, what, following)
            if why is not None:
                return len(seen), states, f"{why}\n" + "\n".join([*way_to(seen, world), what])
            if following not in seen:
                seen[following] = (world, what)
                queue.append(following)
    assert not queue, f"the space is larger than {limit} worlds"
    return len(seen), states, None


def way_to(seen: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    way = []
    while (came := seen[world]) is not None:
        world, what = came
        way.append(what)
    return way[::-1]


ONE = World(asked=(Asked(),))
TWO = World(asked=(Asked(), Asked()))
APART = replace(TWO, apart=True)
NONE = Budget(holds=0, restrictions=0, lates=0, lies=0, failures=0, crashes=0, cancels=0)
CASES = {
    "one request, a hold, a late copy, a lie and a crash": (ONE, replace(NONE, holds=1, lates=1, lies=1, crashes=1)),
    "one request, a restriction, a failure and a cancellation": (
        ONE, replace(NONE, restrictions=1, failures=1, cancels=1, crashes=1)
    ),
    "two requests, a hold and a late copy": (TWO, replace(NONE, holds=1, lates=1)),
    "two requests, a restriction, a cancellation and a crash": (
        TWO, replace(NONE, restrictions=1, cancels=1, crashes=1)
    ),
    "two laws and a cancellation": (APART, replace(NONE, cancels=1)),
}  # fmt: skip
FULL = {
    "one request, everything else once": (
        ONE, replace(NONE, holds=1, restrictions=1, lates=1, lies=1, failures=1, crashes=1, cancels=1)
    ),
    "two requests, a hold, a late copy and a crash": (TWO, replace(NONE, holds=1, lates=1, crashes=1)),
    "two requests, a hold, a late copy and a lie": (TWO, replace(NONE, holds=1, lates=1, lies=1)),
    "two requests, a hold, a failure and a cancellation": (TWO, replace(NONE, holds=1, failures=1, cancels=1)),
    "two laws and a late copy": (APART, replace(NONE, lates=1)),
    "two laws, a late copy and a cancellation": (APART, replace(NONE, lates=1, cancels=1)),
}  # fmt: skip


@pytest.mark.scenario("D5")
@pytest.mark.parametrize("name", sorted(CASES))
def test_no_interleaving_breaks_an_invariant(name: str) -> None:
    start, budget = CASES[name]
    worlds, states, way = explore(start, budget, 400_000)
    assert way is None, way
    assert worlds > 500
    assert {State.COMPLETED, State.VERIFYING} <= states


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FULL))
def test_no_interleaving_breaks_an_invariant_at_full_length(name: str) -> None:
    start, budget = FULL[name]
    _, states, way = explore(start, budget, 1_000_000)
    assert way is None, way
    assert State.COMPLETED in states


def never(*_: object, **__: object) -> bool:
    return False


def ever(*_: object) -> bool:
    return True


def only_open_ones(this: Rival, other: Rival, **_: bool) -> bool:
    """As it was before this explorer: what ended and may go on did not count."""
    return request.is_duplicate(this, other) and other.state in CONTENDING


def nobody(*_: object) -> None:
    """As it was before: the fence went with the request that had set it."""


def forget(world: World) -> World:
    return replace(world, waiting=frozenset())


def behind_the_fence(world: World) -> list[int]:
    """As it was before: the other request under way was not told."""
    return [] if world.fence is None else [world.fence]


def nothing(*_: object) -> frozenset[int]:
    return frozenset()


def done(_: object) -> Completion:
    return Completion(state=State.COMPLETED)


def by_anybody(world: World, number: int, *_: str) -> World | None:
    asked = world.asked[number]
    if asked.state is not State.PLANNED:
        return None
    return put(world, number, replace(asked, state=State.APPROVED, approved=asked.plan))


@pytest.mark.parametrize(
    ("name", "wrong", "found"),
    [
        ("is_duplicate", never, "2: two requests are active"),
        ("is_duplicate", only_open_ones, "2: two requests are active"),
        ("may_go", ever, "3: sent under a hold"),
        ("join", forget, "4: a late copy was left to itself"),
        ("completion", done, "1: request 0"),
        ("approve", by_anybody, "5: approved by who may not"),
    ],
)
def test_a_rule_that_is_wrong_is_found_with_the_way_that_leads_there(
    name: str, wrong: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), name, wrong)
    _, _, way = explore(TWO, replace(NONE, holds=1, lates=1), 400_000)
    assert way is not None
    assert way.startswith(found)
    assert "verify 0" in way


def test_a_fence_that_is_not_handed_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "successor", nobody)
    _, _, way = explore(APART, replace(NONE, cancels=1), 400_000)
    assert way is not None
    assert way.startswith("4: an erasure is under way and nothing is closed")


def test_a_late_copy_that_one_of_two_requests_is_not_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "joining", behind_the_fence)
    monkeypatch.setitem(globals(), "lacking", nothing)
    _, _, way = explore(APART, replace(NONE, lates=1), 400_000)
    assert way is not None
    assert way.startswith("1: request")
    assert "is in its store" in way
