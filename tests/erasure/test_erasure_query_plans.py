"""No request reads the whole tenant, nor the plans of other people: the statements that are really sent, explained.

SQLite has no statistics here, as in every fresh deployment.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import sqlalchemy as sa

ADA, BO = "email:ada@example.org", "email:bo@example.org"
LARGE = ("artifact", "copy", "derivation", "scope_key", "subject", "subject_identifier", "subject_set",
         "subject_set_member", "entry", "part_places", "vault_data_key", "tombstone", "request_event")  # fmt: skip
ALIAS = re.compile(r"\b(?:FROM|JOIN)\s+[a-z_]+\s+(?:AS\s+)?[a-z_]+\b")
_WHOLE = ("(tenant_id=?)", "(tenant_id=? AND tenant_id=?)")
_SMALL = "ix_artifact_erasing"
"""An index of what is being erased, and of nothing else."""


@pytest.mark.scenario("D8")
def test_every_statement_of_a_request_narrows_large_tables_by_more_than_the_tenant(world: Any) -> None:
    for person in (BO, ADA):
        for place in range(3):
            world.note(f"{person}{place}", f"note {place} of {person}", person)
        world.file(f"{person}.txt", f"cv of {person}", (person,))
        world.say(f"hello from {person}", (person,), stream=f"conv_{person[6:8]}")
    world.erase(BO)
    sent: dict[str, Any] = {}

    def keep(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if not many and statement.startswith(("SELECT", "UPDATE", "DELETE")):
            sent.setdefault(statement, parameters)

    engine = world.services.database.engine
    sa.event.listen(engine, "before_cursor_execute", keep)
    request = world.erase(ADA)
    sa.event.remove(engine, "before_cursor_execute", keep)
    assert world.state(request) == "completed"
    assert len(sent) > 80
    # A plan names tables by their aliases, which would be unknown here.
    plain = {statement: given for statement, given in sent.items() if not ALIAS.search(statement)}
    assert len(plain) > 0.9 * len(sent)
    found = []
    with engine.connect() as connection:
        for statement, parameters in plain.items():
            for line in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters):
                words = line[3].split()
                is_wide = words[0] == "SCAN" or (
                    words[0] == "SEARCH" and line[3].endswith(_WHOLE) and _SMALL not in words
                )
                if is_wide and words[1] in LARGE:
                    found.append(f"{line[3]}: {statement}")
    assert found == []
