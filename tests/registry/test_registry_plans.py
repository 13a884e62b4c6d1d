"""No question about an item or a person reads the whole tenant: the plans of the statements that are really sent.

SQLite has no statistics here, as in every fresh deployment; it then takes a key that covers a query over an index that
narrows it, and one question costs as much as the registry is large, with no other sign than time.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa

from registry import artifacts, cones, origins, scope_reviews, subjects
from registry.identifiers import parse_subject
from retention.copies import copy_ends

LARGE = ("artifact", "derivation", "scope_key", "subject", "subject_identifier", "subject_set", "subject_set_member",
         "entry", "part_places", "vault_data_key", "tombstone")  # fmt: skip

ALIAS = re.compile(r"\b(?:FROM|JOIN)\s+[a-z_]+\s+(?:AS\s+)?[a-z_]+\b")


def place(number: int) -> dict[str, Any]:
    return {"store": "app", "locator": {"table": "memories", "key": {"id": number}}}


def test_every_statement_narrows_large_tables_by_more_than_the_tenant(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.register([house.item(n, subjects=[f"user:u{n}"], scope={"thread": f"t{n}"}) for n in range(30)])
    sent: dict[str, Any] = {}

    def keep(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if not many and not statement.startswith(("PRAGMA", "EXPLAIN")):
            sent.setdefault(statement, parameters)

    sa.event.listen(house.engine, "before_cursor_execute", keep)
    tenant = house.alice.tenant_id
    monkeypatch.setattr(origins, "INLINE", 0)
    made = house.register([house.item(100 + n, subjects=None, sources=[place(n), place(n + 1)]) for n in range(10)])
    names = [one["id"] for one in made]
    with house.session() as session:
        people = subjects.find_people(session, house.vault, house.alice, [parse_subject("user:u3")])["user:u3"]
        rows = artifacts.artifacts_of(session, tenant, people)
        assert artifacts.ids_of(session, tenant, people) == [row.id for row in rows]
        subjects.counts(session, tenant, people)
        copy_ends(session, tenant, rows)
        artifacts.views(session, tenant, rows)
        artifacts.lineage(session, tenant, names[0], direction="up")
        artifacts.lineage(session, tenant, artifacts.public_name(rows[0]), direction="down")
        origins.add_sources(session, house.vault, house.alice, names[0], [place(9)], now=house.now)
        cones.pending_about(session, tenant, people)
        cones.propagate_pending(session, tenant, house.now)
        scope_reviews.open_review(session, house.vault, house.alice, people, change="role", detail="d", now=house.now)
        artifacts.search(session, house.vault, house.alice, {"subject": "user:u3"})
        artifacts.bury(session, tenant, [rows[0].id], "req_1", house.now)
        session.commit()
    assert len(sent) > 25
    # A plan names tables by their aliases, which would be unknown here: there are none.
    assert not [statement for statement in sent if ALIAS.search(statement)]
    with house.engine.connect() as connection:
        for statement, parameters in sent.items():
            if not statement.startswith(("SELECT", "UPDATE", "DELETE")):
                continue
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            for line in (row[3] for row in plan):
                words = line.split()
                assert words[0] != "SCAN" or words[1] not in LARGE, f"{line}: {statement}"
                narrow = words[0] != "SEARCH" or words[1] not in LARGE or not line.endswith("(tenant_id=?)")
                assert narrow, f"{line}: {statement}"
