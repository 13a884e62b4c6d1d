"""The words in which certificates name states, levels, rules and kinds. Pure tables, without decisions."""

from __future__ import annotations

TITLES = {
    "erasure": "Certificate of erasure",
    "access": "Certificate of access",
    "portability": "Certificate of portability",
    "rectification": "Certificate of rectification",
    "restriction": "Certificate of restriction",
    "objection": "Certificate of objection",
}
RIGHTS = {
    "gdpr": {
        "erasure": "Erasure (GDPR Art. 17)",
        "access": "Access (GDPR Art. 15)",
        "portability": "Portability (GDPR Art. 20)",
        "rectification": "Rectification (GDPR Art. 16)",
        "restriction": "Restriction (GDPR Art. 18)",
        "objection": "Objection (GDPR Art. 21)",
    },
    "ccpa": {
        "erasure": "Deletion (Cal. Civ. Code § 1798.105)",
        "access": "Knowledge of and access to data (Cal. Civ. Code § 1798.110)",
        "portability": "Portability (Cal. Civ. Code § 1798.130)",
        "rectification": "Correction (Cal. Civ. Code § 1798.106)",
        "restriction": "Limited use (Cal. Civ. Code § 1798.121)",
        "objection": "Opting out (Cal. Civ. Code § 1798.120)",
    },
}
RECIPIENT_ANSWERS = {
    None: "not recorded",
    "done": "states that it did the same",
    "nothing_held": "states that it holds nothing",
    "refused": "refused",
    "impossible": "not told: impossible",
    "disproportionate": "not told: disproportionate effort",
}
RECIPIENTS_FROM = (
    "Recipients that no registered store names are not listed. What was noted after this document is not in it."
)
SCOPES = {
    "all": "all data of the person",
    "data_classes": "these classes of data",
    "conversation": "one conversation of the person",
    "memory": "one memory and what was made of it",
}
VERSIONS = {
    "interim": "Everything was looked for once. A quiet period and the grace of the key store follow; after the longer "
    "of the two everything is looked for again, and the final certificate is issued.",
    "final": "Final: after a quiet period everything was looked for again.",
}
VERDICTS = {
    "completed": "Complete. Every copy that was found is gone to the level its class requires, and was looked for by "
    "another actor than the one that erased it.",
    "completed_with_retained": "Complete but for what is kept. What may go is gone and was looked for; what stays is "
    "listed with its ground.",
    "completed_with_exceptions": "Ended with exceptions. Not every copy could be erased; that was accepted "
    "with a reason.",
}
SO_FAR = {
    "completed": "Interim: complete so far. Every copy that was found is gone to the level its class requires, and was "
    "looked for once by another actor than the one that erased it. The second look is still to come.",
    "completed_with_retained": "Interim: complete so far but for what is kept. What may go is gone and was looked for "
    "once; what stays is listed with its ground. The second look is still to come.",
    "completed_with_exceptions": "Interim: ended with exceptions. Not every copy could be erased; that was "
    "accepted with a reason. The second look at what is gone is still to come.",
}
STATES = {
    "erased_logical": "erased, not found by the store",
    "erased_physical": "erased from its files",
    "key_destroyed": "key destroyed",
    "regenerated": "made anew without the person",
    "already_absent": "was not there any more",
    "retained": "kept",
    "failed": "failed",
    "unreachable": "store not reached",
    "not_covered": "not covered",
}
LEVELS = (
    ("L0", "the store accepted the call; nothing more is claimed"),
    ("L1", "absent by every way of reading the store's interface"),
    ("L2", "absent from the store's files as well"),
    ("L3", "absent from its logs, snapshots and backups too"),
    ("key", "the only key that opens the sealed bytes is destroyed; «final» once no root opens a copy of it"),
)
RULES = {
    "hold": "legal hold",
    "restriction": "restriction of processing",
    "floor": "legal duty to keep",
    "exemption": "exemption",
    "request": "this request",
    "access_pending": "open request for access",
    "item_expiry": "the item's own end",
    "class_retention": "retention of its class",
    "source_end": "the end of its source",
    "none": "no rule",
}
WINDOWS = {
    "backup_retention": "backups",
    "log_retention": "logs of the store",
    "cache_ttl": "caches",
    "provider_retention": "kept by the provider",
}
EVENTS = {
    "request.received": "the request was received",
    "request.planned": "the plan was frozen",
    "request.approved": "that plan was approved",
    "request.state": "copies were added to the plan",
    "fence.set": "new data about the person is refused from here on",
    "key.destroying": "keys are about to be destroyed",
    "key.destroyed": "keys were destroyed",
    "copy.erased": "a store reported copies erased",
    "copy.verified": "copies were looked for and not found",
}
