"""Working state ends with its run: what an agent keeps only while it works is due when the work is over.

Guarantees: an item of a class of `working` state that names its run ends, at the latest, when that run is declared
completed, failed or cancelled, or when it is registered after that; nothing is ever made to end later. Only the end is
set here: whether and when the item goes is `retention.decide`, so that a hold still wins. Nobody ends by a run what
the token may not register. The caller commits.
Source: DESIGN §5, «working state ends with its run».
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import sqlalchemy as sa
from sqlmodel import Session, col

from registry import classes
from registry.acting import Acting
from registry.errors import OutsideTokenScope
from registry.keyed import Lookups, chunks
from registry.models import Artifact, RunRow, ScopeKey
from registry.streams import RUN
from vault.vault import Vault

WORKING = "working"
SCOPE = "run"
"""The name under which a working item is found by its run, as if its scope said `run=<name>`."""
_KIND = "a"


def end_with_run(session: Session, vault: Vault, acting: Acting, run: str, ended_at: datetime) -> int:
    """Let the working items of a run end now; how many.

    Raises: OutsideTokenScope where one of them is of a class or in a store that the token does not carry.
    """
    tenant_id = acting.tenant_id
    names = sorted(classes.in_force(session, tenant_id, state=WORKING))
    if not names:
        return 0
    lookup = Lookups(vault, tenant_id).scope(SCOPE, run)
    items = sa.select(col(ScopeKey.item)).where(
        col(ScopeKey.tenant_id) == tenant_id, col(ScopeKey.lookup) == lookup, col(ScopeKey.kind) == _KIND
    )
    ending = (
        col(Artifact.tenant_id) == tenant_id,
        col(Artifact.id).in_(items),
        col(Artifact.data_class).in_(names),
        col(Artifact.status) != "erased",
        sa.or_(col(Artifact.expires_at).is_(None), col(Artifact.expires_at) > ended_at),
    )
    for data_class, store in session.execute(
        sa.select(col(Artifact.data_class), col(Artifact.store)).where(*ending).distinct()
    ):
        if not acting.may_use_class(data_class):
            raise OutsideTokenScope("class", data_class)
        if not acting.may_use_store(store):
            raise OutsideTokenScope("store", store)
    changes = sa.update(Artifact).where(*ending).values(expires_at=ended_at, ends_at=ended_at)
    done = session.connection().execute(changes)
    session.expire_all()
    return done.rowcount


def ended_runs(session: Session, vault: Vault, tenant_id: int, runs: Collection[str]) -> Mapping[str, datetime]:
    """Since when those of these runs are over that are."""
    lookups = Lookups(vault, tenant_id)
    hashes = {lookups.of(RUN, name): name for name in runs}
    found: dict[str, datetime] = {}
    for chunk in chunks(sorted(hashes)):
        rows = session.execute(
            sa.select(col(RunRow.lookup), col(RunRow.ended_at)).where(
                col(RunRow.tenant_id) == tenant_id, col(RunRow.lookup).in_(chunk), col(RunRow.ended_at).is_not(None)
            )
        )
        found.update((hashes[row.lookup], row.ended_at) for row in rows)
    return found
