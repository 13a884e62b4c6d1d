from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors import base
from connectors.base import KINDS, Deadline, Level, built_kinds, open_connector, owner_forms, resolve_secrets
from connectors.errors import DriverMissing, KindNotBuilt, KindUnknown


def test_levels_are_ordered_and_never_equal() -> None:
    assert Level.L0 < Level.L1 < Level.L2 < Level.L3


def test_an_unknown_kind_names_those_that_are_known() -> None:
    with pytest.raises(KindUnknown, match=r"'oracle'.*sql") as refused:
        open_connector("oracle", {}, secrets=str)
    assert set(refused.value.known) == set(KINDS)


@pytest.mark.scenario("C1", "C7")
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_not_built_is_refused_by_name_and_never_skipped(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(base._BUILT, kind)
    assert kind not in built_kinds()
    assert base.why_not_built(kind, {}) == f"stores of kind {kind} are not built in this version"
    with pytest.raises(KindNotBuilt, match=f"'{kind}' is not built"):
        open_connector(kind, {}, secrets=str)


def test_a_missing_driver_is_the_stores_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(base._BUILT, "redis", ("connectors.no_such_module", "redis>=7"))
    with pytest.raises(DriverMissing, match="install redis>=7"):
        open_connector("redis", {}, secrets=str)


def test_secrets_are_resolved_by_reference_only() -> None:
    asked: list[str] = []

    def secrets(reference: str) -> str:
        asked.append(reference)
        return "s3cret"

    config = {"url": "env:MUNIMENT_SECRET_T_URL", "root": "/srv", "n": 3, "password": "file:db"}
    assert resolve_secrets(config, secrets) == {"url": "s3cret", "root": "/srv", "n": 3, "password": "s3cret"}
    assert asked == ["env:MUNIMENT_SECRET_T_URL", "file:db"]


@given(kind=st.text(st.characters(codec="ascii", categories=["Ll"]), min_size=1), value=st.text(min_size=1))
def test_owner_forms_are_the_identifier_and_its_bare_value(kind: str, value: str) -> None:
    assert owner_forms([f"{kind}:{value}"]) == {f"{kind}:{value}", value}


def test_an_empty_identifier_matches_no_ownerless_row() -> None:
    assert owner_forms(["", "user:"]) == {"user:"}


def test_a_deadline_counts_down_and_says_which_limit_was_reached() -> None:
    limit = Deadline("erase", 0)
    assert limit.is_over()
    assert str(limit.error()) == "erase did not finish within 0 s"
    assert Deadline("erase", 60).left() > 59
