"""Query parameters that nobody declared are refused on every route, like unknown fields of a body."""

from __future__ import annotations

from importlib import import_module

import pytest

from api.app import ROUTERS
from api.errors import Problem
from api.requests import Route, _refuse_unknown

KNOWN = frozenset({"preview", "limit"})


def test_every_route_of_the_contract_is_one_that_refuses_them() -> None:
    routes = [route for name in ROUTERS for route in import_module(f"api.routes.{name}").router.routes]
    assert len(routes) > 100
    assert [route.path for route in routes if not isinstance(route, Route)] == []


def test_known_parameters_pass() -> None:
    _refuse_unknown(["limit", "preview", "limit"], KNOWN)
    _refuse_unknown([], KNOWN)


@pytest.mark.parametrize(
    ("name", "pointer"), [("previw", "/query/previw"), ("ada@example.org", "/query/"), ("x" * 40, "/query/")]
)
def test_an_unknown_one_is_named_unless_it_could_be_somebodys_data(name: str, pointer: str) -> None:
    with pytest.raises(Problem) as refused:
        _refuse_unknown(["limit", name], KNOWN)
    assert [error["pointer"] for error in refused.value.errors] == [pointer]
    assert "ada@" not in str(refused.value.errors)
    assert "limit, preview" in refused.value.detail
