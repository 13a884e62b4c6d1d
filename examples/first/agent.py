"""A very small agent: it records a conversation, keeps a note of it in its own database, and registers that copy.

Run it with a writer's token: `MUNIMENT_TOKEN=… python examples/first/agent.py`. Run again, it changes nothing.
"""

import os
import sqlite3
import sys
from pathlib import Path

from muniment import Recorder, subject
from muniment.registry import Client

HOME = Path(os.environ.get("AGENT_HOME", "/tmp/muniment-first"))  # noqa: S108 - an example's own folder
WHO = "email:ada@example.org"


def main() -> int:
    """Talk once, note once."""
    url, token = os.environ.get("MUNIMENT_URL", "http://127.0.0.1:8811"), os.environ["MUNIMENT_TOKEN"]
    HOME.mkdir(parents=True, exist_ok=True)

    recorder = Recorder(url, token, spool=HOME / "spool", data_class="conversation")
    with subject(WHO, conversation="conv_71"):
        asked = recorder.record(kind="turn.user", body={"role": "user", "content": "Where is my refund?"})
        recorder.record(kind="turn.assistant", body={"role": "assistant", "content": "It left today."}, sources=[asked])
    recorder.close()

    db = sqlite3.connect(HOME / "notes.db")
    with db:
        db.execute("CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, owner TEXT, body TEXT)")
        db.execute("INSERT OR REPLACE INTO note VALUES (42, ?, 'Ada waits for a refund')", (WHO,))
    db.close()

    copy = {
        "data_class": "note",
        "store": "notes",
        "locator": {"table": "note", "key": {"id": 42}},
        "subjects": [WHO],
        "sources": [f"entry:{asked}"],
    }
    with Client(url, token) as client:
        (result,) = client.artifacts([copy])
    # Each copy of a batch has its own answer: one that is refused would be missed by every erasure.
    if result["status"] == "rejected":
        print(f"not registered: {result['problem']}", file=sys.stderr)
        return 1
    print(f"recorded conv_71, registered {result['id']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
