"""What remains of an entry when its content is gone, beside its header: the facts that name nobody.

Pure. Guarantees: a fact that was not sent is not there; no content, no caller's identifier of a person. Not here: the
key it is sealed under.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from vault.packing import pack


def packed_skeleton(  # noqa: PLR0917 - what a skeleton says, in its order
    agent: str | None,
    model: str | None,
    prompt_version: str | None,
    policy: str | None,
    actor: str | None,
    run_id: str | None,
    sources: Sequence[str],
    parts: Iterable[tuple[str, str, str, bool, str]],
) -> bytes:
    """Return the packed skeleton. `parts` are role, name, form, whether pinned, class of what a reader cannot guess."""
    facts: dict[str, Any] = {
        "agent": agent,
        "model": model,
        "prompt_version": prompt_version,
        "policy": policy,
        "actor": actor,
        "run": run_id,
        "sources": sources,
    }
    kept: dict[str, Any] = {name: value for name, value in facts.items() if value}
    if parts:
        kept["parts"] = [
            {"role": role, "name": name, "form": form, "pinned": pinned, "class": data_class}
            for role, name, form, pinned, data_class in parts
        ]
    return pack(msgspec.json.encode(kept))
