"""Whether a hold keeps an item, asked of one item and of the registry.

Guarantees: `is_held` is the first question of the one decision; `conditions_of` finds by index look-ups the artifacts
that it says yes of. Pure, but for the numbers of people and sets that are looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlmodel import Session, col

from registry.keyed import chunks
from registry.models import Artifact, ScopeKey
from registry.people import expand
from registry.sets import sets_of
from retention.decide import Hold, Item, decide
from retention.events import ARTIFACT_KIND

_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def is_held(item: Item, holds: Sequence[Hold]) -> bool:
    """Whether any of the holds names the item: the first question of the one decision, asked alone."""
    return decide(item, None, holds, (), (), _ANY_TIME).rule == "hold"


def conditions_of(session: Session, tenant_id: int, hold: Hold) -> Iterator[sa.ColumnElement[bool]]:
    """Conditions on artifacts, any of which a held one meets; each is an index look-up."""
    for chunk in chunks(sorted(sets_of(session, tenant_id, expand(session, tenant_id, hold.subjects)))):
        yield col(Artifact.set_id).in_(chunk)
    for some in chunks(sorted(hold.artifacts)):
        yield col(Artifact.id).in_(some)
    if hold.data_classes:
        yield col(Artifact.data_class).in_(sorted(hold.data_classes))
    if hold.scopes:
        yield col(Artifact.id).in_(
            sa.select(col(ScopeKey.item)).where(
                col(ScopeKey.tenant_id) == tenant_id,
                col(ScopeKey.kind) == ARTIFACT_KIND,
                col(ScopeKey.lookup).in_([bytes.fromhex(scope) for scope in sorted(hold.scopes)]),
            )
        )
