"""Stores of vectors over HTTP: a missing driver is refused when the store is applied, a check reaches the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import base


@pytest.fixture
def folder(service: Any) -> Path:
    made: Path = service.services.settings.data.parent / "stores" / "vectors"
    made.mkdir(parents=True, exist_ok=True)
    return made


def test_a_store_whose_driver_is_missing_is_refused_when_it_is_applied(
    service: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = service.role("platform")
    monkeypatch.setitem(base._BUILT, "lancedb", ("connectors.no_such_module", "muniment-server[lancedb]"))
    spec = {"kind": "lancedb", "config": {"path": str(folder)}}
    answer = platform.put("/v1/stores/tables", json=spec)
    assert answer.status_code == 422
    assert answer.json()["type"].endswith("bad-store")
    assert "install muniment-server[lancedb]" in answer.json()["detail"]
    assert platform.get("/v1/stores/tables").status_code == 404


def test_a_check_reaches_the_files_of_a_vector_store(service: Any, folder: Path) -> None:
    platform = service.role("platform")
    (folder / "meta.json").write_text('{"collections": {}, "aliases": {}}')
    spec = {"kind": "qdrant", "config": {"path": str(folder), "owner_field": "user_id"}}
    assert platform.put("/v1/stores/points", json=spec).status_code in (200, 201)
    report = platform.post("/v1/stores/points/check").json()
    assert report["findings"] == []
    assert (report["can_erase"], report["level_reached"], report["owner_check"]) == (True, "L2", "enforced")
