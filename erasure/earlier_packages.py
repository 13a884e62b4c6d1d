"""Packages from before packages named everybody who is in them: whoever is missing is named, or the package ends.

Guarantees: a package that is there is registered as about everybody in it once this looked at it, so that a later
erasure of one of them finds it; one that holds data of somebody who cannot be named any more, or of too many, is past
its date from now on, and the next pass of retention ends it unless a hold keeps it. Each package is looked at once. Not
here: how packages are made (`erasure.exporting`).
"""

from __future__ import annotations

from datetime import datetime

from erasure import history
from erasure.export import EXPORT_CLASS
from erasure.package_people import names_for, others_of
from erasure.packages import STORE, packages_of
from erasure.parts import Parts
from erasure.plan import instant_text
from registry import artifacts
from registry.acting import Acting
from registry.artifact_rows import by_numbers
from registry.item import MAX_SUBJECTS, ItemRejected
from registry.sets import members

_SEEN = "named"
"""Under which name a request keeps that its package was looked at."""


def name_everybody(parts: Parts, acting: Acting, now: datetime) -> int:
    """Look at each package of a tenant that was not looked at; returns how many lacked somebody.

    Raises: ItemRejected for one that the registry refuses to change, after the others; it is looked at again.
    """
    with parts.transactions(acting.tenant_id, write=False) as session:
        there = packages_of(session, acting.tenant_id)
        rows = {request: history.load(session, acting.tenant_id, request) for request in there}
        unseen = {request: there[request] for request, row in rows.items() if not row.details["export"].get(_SEEN)}
    count, refused = 0, []
    for request, number in sorted(unseen.items()):
        try:
            count += _name(parts, acting, request, number, now)
        except ItemRejected as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return count


def _name(parts: Parts, acting: Acting, request_id: str, number: int, now: datetime) -> bool:
    tenant_id = acting.tenant_id
    with parts.transactions(tenant_id) as session:
        row = history.load(session, tenant_id, request_id, lock=True)
        package = by_numbers(session, tenant_id, [number])[number]
        inside = frozenset[int]().union(*others_of(session, tenant_id, request_id, row.subjects).values())
        named = members(session, tenant_id, [package.set_id])[package.set_id]
        kept = row.details["export"]
        row.details = {**row.details, "export": {**kept, _SEEN: True}}
        session.add(row)
        session.flush()
        missing = inside - named
        if not missing or package.status == "erased":
            return False
        names = names_for(session, parts.vault, tenant_id, named)
        others = [names_for(session, parts.vault, tenant_id, [one]) for one in sorted(missing)]
        item = {"data_class": EXPORT_CLASS, "store": STORE, "locator": {"path": kept["file"]}, "subjects": names}
        if all(others) and len(names) + len(others) <= MAX_SUBJECTS:
            item["subjects"] = sorted({*names, *(name for some in others for name in some)})
        else:
            item["expires_at"] = instant_text(now)
        [answer] = artifacts.register(session, parts.vault, acting, [item], now)
        if answer["status"] == "rejected":
            raise ItemRejected(answer["problem"]["type"], answer["problem"]["detail"])
        return True
