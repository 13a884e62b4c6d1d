"""What an agent's SDK kept of the service's receipts is checked against its stores, embedded and on servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from api import folder
from muniment import Recorder, subject
from tests.process.test_process_rebuild import command

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


def test_the_receipts_that_an_agent_kept_are_found_in_the_record(desk: Any, running: Any, tmp_path: Path) -> None:
    folder.mark_initialised(running.settings.data)
    kept = tmp_path / "receipts"
    with Recorder(running.url, desk.tokens["writer"], spool=tmp_path / "spool", receipts=kept) as recorder:
        for number in range(2):
            with subject("user:ada", conversation="conv_1"):
                recorder.record(kind="turn.user", body={"n": number})
            assert recorder.flush(30).pending == 0
    desk.client("auditor").send("GET", "/v1/log/checkpoint")
    done = command(running, "verify", "--receipt", str(kept), "--tenant", desk.tenant, "--key", desk.log_key)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [one["standing"] for one in found["receipts"]] == ["covered"] * 2
    assert "ada" not in kept.read_text()
