"""Tenants, tokens, and what a token lets in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from registry.acting import Acting
from registry.errors import InvalidDeclaration, NameTaken, NotAuthenticated, UnknownTenant, UnknownToken
from registry.tenants import create_tenant, get_tenant, list_tenants
from registry.tokens import authenticate, list_tokens, mint, revoke


@pytest.mark.parametrize("name", ["", "A", "a_b", "a.b", "x" * 33, "ä", "a/b", "a b"])
def test_a_tenants_name_can_stand_in_a_file_name(house: Any, name: str) -> None:
    with house.session() as session, pytest.raises(InvalidDeclaration):
        create_tenant(session, name, house.now)


def test_tenants_are_listed_by_name_and_unique(house: Any) -> None:
    with house.session() as session:
        create_tenant(session, "acme", house.now)
        with pytest.raises(NameTaken):
            create_tenant(session, "acme", house.now)
        assert [tenant.name for tenant in list_tenants(session)] == ["acme", "alice"]
        assert get_tenant(session, "acme").log_id != get_tenant(session, "alice").log_id
        with pytest.raises(UnknownTenant):
            get_tenant(session, "nobody")


def test_a_tenants_number_is_short_free_and_not_one_that_somebody_had_before(
    house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with house.session() as session:
        numbers = {create_tenant(session, f"t{number}", house.now).id for number in range(5)}
        assert len(numbers) == 5
        assert all(1_000 <= number < 2**15 for number in numbers), "two bytes in each row and index on SQLite"
        assert house.alice.tenant_id not in numbers
        free = min(set(range(1_000, 1_020)) - numbers - {house.alice.tenant_id})
        monkeypatch.setattr("registry.tenants._NUMBERS", range(1_000, 1_020))
        monkeypatch.setattr("registry.tenants._TRIES", 20)
        assert create_tenant(session, "late", house.now, is_taken=lambda number: number != free).id == free
        # Without a free one it is a surrogate like any other.
        assert create_tenant(session, "last", house.now, is_taken=lambda _: True).id > 2**32


def test_a_secret_speaks_for_its_principal_and_only_its_hash_is_kept(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        secret, token = mint(
            session, tenant, "bot", ["writer"], stores=["app"], classes=["memory"], now=house.now
        )  # fmt: skip
        session.commit()
        acting = authenticate(session, secret)
    assert (acting.tenant, acting.principal, acting.token_id) == ("alice", "bot", token.token_id)
    assert len(token.token_id) == 16, "it stands in every row that the token registers"
    assert acting.has_role("writer", "legal")
    assert not acting.has_role("admin")
    assert (acting.may_use_store("app"), acting.may_use_store("files")) == (True, False)
    assert (acting.may_use_class("memory"), acting.may_use_class("tool")) == (True, False)
    for path in house.folder.glob("muniment.db*"):
        assert secret.encode() not in path.read_bytes()


@pytest.mark.parametrize("secret", ["", "mun_", "mun_" + "a" * 43, "Bearer x", "mun_" + "\u00e4" * 43, "a" * 10_000])
def test_an_unknown_secret_is_refused_alike_whatever_it_looks_like(house: Any, secret: str) -> None:
    with house.session() as session, pytest.raises(NotAuthenticated) as refused:
        authenticate(session, secret)
    assert str(refused.value) == "the token is unknown or revoked"


def test_a_revoked_token_is_refused_from_then_on(house: Any) -> None:
    tenant = house.alice.tenant_id
    with house.session() as session:
        secret, token = mint(session, tenant, "bot", ["writer"], now=house.now)
        # By a process whose clock is ahead.
        revoke(session, tenant, token.token_id, house.now + timedelta(hours=1))
        with pytest.raises(NotAuthenticated):
            authenticate(session, secret)
        with pytest.raises(UnknownToken):
            revoke(session, tenant, token.token_id, house.now)
        with pytest.raises(UnknownToken):
            revoke(session, tenant + 1, token.token_id, house.now)
        assert {one.principal for one in list_tokens(session, tenant)} == {"alice-agent", "bot"}


@pytest.mark.parametrize(
    "more",
    [{"principal": ""}, {"principal": "a b"}, {"roles": []}, {"roles": ["king"]}, {"stores": ["../x"]},
     {"classes": ["A B"]}],
)  # fmt: skip
def test_a_malformed_token_is_not_minted(house: Any, more: dict[str, Any]) -> None:
    given: dict[str, Any] = {"principal": "bot", "roles": ["writer"]} | more
    with house.session() as session, pytest.raises(InvalidDeclaration):
        mint(session, house.alice.tenant_id, given.pop("principal"), given.pop("roles"), **given, now=house.now)


def test_nobody_becomes_two_by_the_case_of_a_letter(house: Any) -> None:
    # Ann asked, and ann approved: the same person under two tokens, told apart by how a name was typed.
    tenant, other = house.alice.tenant_id, house.tenant("other").tenant_id
    with house.session() as session:
        mint(session, tenant, "Ann@acme.example", ["legal"], now=house.now)
        mint(session, tenant, "Ann@acme.example", ["auditor"], now=house.now)
        for spelt in ("ann@acme.example", "ANN@ACME.EXAMPLE"):
            with pytest.raises(InvalidDeclaration, match="differs in case alone"):
                mint(session, tenant, spelt, ["legal"], now=house.now)
        mint(session, tenant, "annie@acme.example", ["legal"], now=house.now)
        mint(session, other, "ann@acme.example", ["legal"], now=house.now)


def test_the_service_itself_has_every_store_and_no_role() -> None:
    system = Acting.system(tenant_id=1, tenant="acme", log_id="0" * 32)
    assert system.may_use_store("any")
    assert system.may_use_class("any")
    assert not system.has_role("admin", "legal", "platform", "writer", "auditor")
