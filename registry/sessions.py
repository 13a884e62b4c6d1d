"""The life of a stream and of a run: what a class's timers say of one, what a pause does to the other.

Guarantees: pure. A stream is `active`, then `resumable` for as long as its class lets the same session go on, then
`idle`, then `expired`; without timers it is `active` for ever. A run goes on only from a checkpoint: what cannot be
resumed requires recovery and says so, because a run is never rebuilt from what was said.

    active ──idle──▶ resumable ──idle + resume_within──▶ idle ──expire──▶ expired        (each since the last activity)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from registry.declaration import Session

Lifecycle = Literal["active", "resumable", "idle", "expired"]
RUN_STATES = ("active", "waiting", "completed", "failed", "cancelled", "requires_recovery")
RUN_ENDED = ("completed", "failed", "cancelled")
PAUSED = ("waiting", "failed", "requires_recovery")
"""States after which «active» means that somebody resumes the run."""
RECOVERY = "requires_recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMove:
    """The state of a run after somebody declared one, and why it is another than was asked for."""

    status: str | None
    because: str | None = None


def lifecycle(timers: Session | None, last_activity: datetime, now: datetime) -> Lifecycle:
    """Where a stream stands now by its class's timers. Source: DESIGN §5."""
    if timers is None or now < timers.idle.add_to(last_activity):
        return "active"
    if now >= timers.expire.add_to(last_activity):
        return "expired"
    within = now < timers.resume_within.add_to(timers.idle.add_to(last_activity))
    return "resumable" if within else "idle"


def move_run(before: str | None, wanted: str | None, *, has_checkpoint: bool) -> RunMove:
    """The state of a run that is declared `wanted`; one that has no checkpoint to go on from requires recovery.

    A fresh run may be active without one: nothing was paused yet. None is «says nothing», before or now.
    """
    status = wanted if wanted is not None else before
    if status == "waiting" and not has_checkpoint:
        return RunMove(status=RECOVERY, because="it waits without a checkpoint_ref: nothing can resume it")
    if wanted == "active" and before in PAUSED and not has_checkpoint:
        return RunMove(status=RECOVERY, because="it was to be resumed without a checkpoint_ref")
    if status == RECOVERY and wanted is None and has_checkpoint:
        return RunMove(status=RECOVERY, because="a checkpoint is there; declare the run active to resume it")
    return RunMove(status=status)
