"""Stores of kind `http` over the API: recipes by name, secrets by reference, and checks that claim nothing unseen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import base
from tests.connectors.http_vendor import KEY, OWN, Vendor, running


@pytest.fixture
def vendor(service: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Vendor]]:
    """A vendor that the operator allows: the service's own list names files only."""
    monkeypatch.setattr(service.services.targets, "_hosts", ("127.0.0.1",))
    with running() as made:
        yield made


@pytest.fixture
def secrets(service: Any) -> Path:
    """The folder of the tenant's secrets, with the vendor's key and a recipe of its own."""
    tenant = service.role("admin").get("/v1/tokens/self").json()["tenant"]
    folder: Path = service.services.settings.secrets_folder / tenant
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("vendor", KEY), ("wrong", "sk-of-somebody-else"), ("own.yaml", OWN)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return folder


def put(service: Any, name: str, url: str, **config: str) -> Any:
    spec = {"kind": "http", "config": {"url": url, **config}}
    return service.role("platform").put(f"/v1/stores/{name}", json=spec)


def check(service: Any, name: str) -> dict[str, Any]:
    answer = service.role("platform").post(f"/v1/stores/{name}/check")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_vendor_is_checked_with_a_canary_of_its_recipe(
    service: Any, vendor: tuple[str, Vendor], secrets: Path
) -> None:
    url, state = vendor
    own = {"recipe": "file:own.yaml", "owner_field": "meta.person"}
    assert put(service, "vendor", url, secret="file:vendor", **own).status_code == 201
    found = check(service, "vendor")
    assert (found["reachable"], found["can_erase"], found["level_reached"]) == (True, True, "L1"), found
    assert found["owner_check"] == "enforced"
    assert state.things["note"] == {}
    assert put(service, "wrong", url, secret="file:wrong", **own).status_code == 201
    refused = check(service, "wrong")
    assert (refused["reachable"], refused["can_erase"], refused["level_reached"]) == (False, False, None)
    assert "somebody-else" not in str(refused)
    shown = service.role("platform").get("/v1/stores/vendor").json()["config"]
    assert (shown["secret"], shown["recipe"]) == ("(secret)", "(secret)")


def test_a_recipe_that_cannot_delete_in_front_of_our_eyes_claims_no_level(
    service: Any, vendor: tuple[str, Vendor], secrets: Path
) -> None:
    url, _ = vendor
    assert put(service, "traces", url, secret="file:vendor", recipe="langfuse").status_code == 201
    found = check(service, "traces")
    assert (found["reachable"], found["can_erase"], found["level_reached"]) == (True, False, None)
    assert "writes no canary" in found["findings"][0]


def test_secrets_in_the_open_unknown_recipes_and_foreign_hosts_are_refused(
    service: Any, vendor: tuple[str, Vendor], secrets: Path
) -> None:
    url, _ = vendor
    assert put(service, "open", url, recipe="openai", secret="sk-in-the-open").status_code == 422
    assert put(service, "odd", url, recipe="nobody", secret="file:vendor").status_code == 422
    assert put(service, "far", "https://vendor.example", recipe="openai", secret="file:vendor").status_code == 422


def test_what_is_missing_or_not_built_is_found_before_anything_is_reached(
    service: Any, vendor: tuple[str, Vendor], secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, state = vendor
    assert put(service, "bare", url, secret="file:vendor").status_code == 201
    found = check(service, "bare")
    assert (found["reachable"], found["can_erase"], found["level_reached"]) == (False, False, None)
    assert "recipe is one of" in found["findings"][0]
    assert put(service, "later", url, secret="file:vendor", recipe="openai").status_code == 201
    built = dict(base._BUILT)
    monkeypatch.setattr(base, "_BUILT", {**built, "http": ("connectors.no_such_module", "muniment-server[http]")})
    found = check(service, "later")
    assert (found["reachable"], found["can_erase"]) == (False, False)
    assert "install muniment-server[http]" in found["findings"][0]
    monkeypatch.setattr(base, "_BUILT", {name: each for name, each in built.items() if name != "http"})
    found = check(service, "later")
    assert (found["reachable"], found["can_erase"]) == (False, False)
    assert "is not built" in found["findings"][0]
    assert state.requests == []
