"""The gaps of an inventory by name, from worst to least, and what to do about each. Imports nothing of ours.

Guarantees: these are all there are; `registry.inventory` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

REMEDIES: Mapping[str, str] = MappingProxyType({
    "no_owner": "nobody answers for it: name an owner in its declaration (muniment classes apply), starter classes too",
    "no_retention": "nothing ends these items: a clock waits for an event that never came; give the class `latest`",
    "no_eraser": "no connector deletes there: register or enable the store, or move the items",
    "quarantined": "retention could not end these items and set them aside: muniment retention explain",
    "over_retained": "these items are past their end: let the scheduler run, or look at the last pass",
    "bare_hash_of_identifier": "a hash of a name is a name: key it, or leave it out",
    "body_in_checkpoint": "what was said lies in a checkpoint as well: keep a reference there",
    "keeps_deliberation": "the model's deliberation is kept: drop it before it is stored",
    "aggregate_undeclared": "very many people stand behind one item: declare the class an aggregate, or split it",
    "memory_without_source": "nobody can say where it came from: register source_type, or sources",
    "summary_without_source": "its sources cannot take it with them: register sources",
    "unscoped_thread": "these checkpoints name no scope: register scope, so that events and holds find them",
    "large_prompt_snapshot": "whole prompts are kept: keep the version and the references",
    "provider_keeps_longer": "the provider keeps it longer than the class: shorten it there, or say so in the class",
    "stream_not_recorded": "declared, and no entry came: see whether its recorder runs",
    "no_verifier": "nobody looks whether it is gone: a store with a connector is read again",
})  # fmt: skip
"""What to do about each gap, worst first."""
GAPS = tuple(REMEDIES)
