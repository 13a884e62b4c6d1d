"""Verifying a log and reading it need neither SQL nor HTTP: a process that has none of them does both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.audit.test_audit_service import Kept, kept

__all__ = ["kept"]
REPOSITORY = Path(__file__).resolve().parents[2]
ABSENT = ("sqlalchemy", "sqlmodel", "fastapi", "starlette", "uvicorn", "boto3", "psycopg", "pydantic", "apscheduler")

PROGRAM = """
import json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # importing it raises ImportError
from pathlib import Path
from audit.proof import verify_entry
from audit.reader import FolderReader
from audit.replay import Content, StoredEntry, Unsealed, fold
from audit.verify import verify
told = json.load(sys.stdin)
report = verify(FolderReader(Path(told["objects"])), log_id=told["log"], keys=[told["key"]],
                hot=FolderReader(Path(told["hot"])))
stored = [
    StoredEntry(index=one["index"], header=bytes.fromhex(one["header"]),
                inclusion=tuple(bytes.fromhex(node) for node in one["inclusion"]))
    for one in told["entries"]
]
note = told["note"].encode()
for one in stored:
    verify_entry(one.header, index=one.index, inclusion=one.inclusion, note=note, vkey=told["key"])


def unseal(entry, header):
    return Unsealed(parts=[Content(name="body", role="part.0", data=b'"body"')], facts={})


read = fold("conv_1", stored, unseal, note=note, vkey=told["key"], next_position=3)
print(json.dumps([report.word, report.size, [one.integrity.value for one in read.entries]]))
"""


def test_a_process_without_sql_and_http_verifies_a_log_and_reads_a_stream(kept: Kept) -> None:
    proofs = kept.services.log.proofs(kept.acting.tenant_id, [0, 1, 2], kept.services.clock.now())
    told = {
        "objects": str(kept.folder / "objects"),
        "hot": str(kept.folder / "hot"),
        "log": kept.acting.log_id,
        "key": kept.made.log_key,
        "note": proofs[0].checkpoint,
        "entries": [
            {"index": one.index, "header": one.header.hex(), "inclusion": [node.hex() for node in one.inclusion]}
            for one in proofs
        ],
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(ABSENT)],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode == 0, done.stderr
    word, size, integrity = json.loads(done.stdout)
    assert (word, integrity) == ("sound", ["verified"] * 3)
    assert size >= 5
