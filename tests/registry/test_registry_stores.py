"""Stores: declarations, secrets, targets and locators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidDeclaration, StoreInUse, TargetNotAllowed, UnknownStore
from registry.locators import MalformedLocator, canonical_locator, normal_locator
from registry.stores import KINDS, get_store, in_force, parse_store, put_store, remove_store, secret_prefix, view
from registry.targets import Targets


def pointers(spec: Any, tenant: str = "acme") -> set[str]:
    with pytest.raises(InvalidDeclaration) as refused:
        parse_store(tenant, "main", spec)
    return {fault.pointer for fault in refused.value.faults}


@pytest.mark.parametrize(
    ("spec", "pointer"),
    [
        ({}, "/kind"), ({"kind": "fax"}, "/kind"), ({"kind": "sql"}, "/config"),
        ({"kind": "sql", "config": {}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "mysql://h/d"}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "sqlite:///relative.db"}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "postgresql://u:pw@h/d"}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "postgresql://h/d?password=pw"}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "sqlite:////a.db", "colour": 1}}, "/config/colour"),
        ({"kind": "sql", "config": {"url": "sqlite:////a.db", "children": "keep"}}, "/config/children"),
        ({"kind": "sql", "config": {"url": "postgresql://h/d?sslpass%77ord=pw"}}, "/config/url"),
        ({"kind": "sql", "config": {"url": ["sqlite:////a.db"]}}, "/config/url"),
        ({"kind": "sql", "config": {"url": 1}}, "/config/url"),
        ({"kind": "sql", "config": {"url": "sqlite:////a.db", "owner_field": 1}}, "/config/owner_field"),
        ({"kind": "sql", "config": {"url": "postgresql://h/d", "statement_timeout": True}},
         "/config/statement_timeout"),
        ({"kind": "files", "config": {"root": "relative"}}, "/config/root"),
        ({"kind": "files", "config": {"root": "/a", "hard_links": "x"}}, "/config/hard_links"),
        ({"kind": "qdrant", "config": {"path": "/a", "url": "http://h"}}, "/config"),
        ({"kind": "qdrant", "config": {"url": "http://h", "api_key": "hunter2"}}, "/config/api_key"),
        ({"kind": "qdrant", "config": {"url": "http://h", "api_key": "env:HOME"}}, "/config/api_key"),
        ({"kind": "qdrant", "config": {"url": "http://h", "api_key": "env:MUNIMENT_SECRET_OTHER_KEY"}},
         "/config/api_key"),
        ({"kind": "qdrant", "config": {"url": "http://h", "api_key": "file:../other/key"}}, "/config/api_key"),
        ({"kind": "files", "config": {"root": "/a"}, "country": "Germany"}, "/country"),
        ({"kind": "files", "config": {"root": "/a"}, "backup_retention": "a week"}, "/backup_retention"),
        ({"kind": "files", "config": {"root": "/a"}, "colour": "red"}, "/colour"),
    ],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_at_its_place(spec: Any, pointer: str) -> None:
    assert pointer in pointers(spec)


def test_every_kind_of_the_contract_can_be_registered_before_its_connector_is_built() -> None:
    needs = {"files": {"root": "/a"}, "s3": {"bucket": "b"}, "sql": {"url": "sqlite:////a.db"},
             "pgvector": {"url": "postgresql://h/d"}, "redis": {"url": "redis://h"}, "agent": {},
             "langgraph": {"url": "sqlite:////a.db"}, "langgraph_store": {"url": "sqlite:////a.db"},
             "http": {"url": "https://h/x"}}  # fmt: skip
    for kind in KINDS:
        config = needs.get(kind, {"path": "/a"})
        assert parse_store("acme", "main", {"kind": kind, "config": config})[:2] == (kind, config)


def test_mem0_over_another_vector_store_is_refused_by_name_when_it_is_registered() -> None:
    for config in (
        {"path": "/a", "vector_store": "qdrant"},
        {"path": "/a", "vector_store": "chroma"},
        {"path": "/a", "vector_store": "pgvector", "url": "postgresql://h/d", "wal_retention": "P7D"},
    ):
        assert parse_store("acme", "main", {"kind": "mem0", "config": config})[1] == config
    spec = {"kind": "mem0", "config": {"path": "/a", "vector_store": "faiss"}}
    assert pointers(spec) == {"/config/vector_store"}
    with pytest.raises(InvalidDeclaration) as refused:
        parse_store("acme", "main", spec)
    assert "over a folder of Chroma" in str(refused.value.faults)


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({"path": "/a", "vector_store": "pgvector"}, "/config/url"),
        ({"url": "postgresql://h/d", "vector_store": "pgvector"}, "/config/path"),
        ({"path": "/a", "url": "https://h/d", "vector_store": "pgvector"}, "/config/url"),
        ({"path": "/a", "wal_retention": "P7D"}, "/config/wal_retention"),
        ({"path": "/a", "url": "https://h/d"}, "/config"),
    ],
)
def test_mem0_in_postgresql_needs_its_folder_and_its_database(config: dict[str, Any], pointer: str) -> None:
    assert pointer in pointers({"kind": "mem0", "config": config})


@pytest.mark.parametrize(
    ("config", "pointer"),
    [
        ({}, "/config/url"),
        ({"folder": "threads"}, "/config/folder"),
        ({"folder": "/a", "url": "sqlite:////a.db"}, "/config/url"),
        ({"folder": "/a", "keys": "/k"}, "/config/keys"),
        ({"keys": "/k"}, "/config/url"),
        ({"url": "sqlite:////a.db", "keys": "k"}, "/config/keys"),
        ({"url": "sqlite:////a.db", "keys": "/k", "fence": "triggers"}, "/config/fence"),
    ],
)
def test_a_folder_of_threads_stands_alone_and_one_of_keys_beside_a_database(
    config: dict[str, Any], pointer: str
) -> None:
    assert pointer in pointers({"kind": "langgraph", "config": config})
    for good in ({"folder": "/a", "owner_field": "user_id"}, {"url": "sqlite:////a.db", "keys": "/k"}):
        assert parse_store("acme", "main", {"kind": "langgraph", "config": good})[1] == good


def test_a_secret_is_kept_as_a_reference_and_never_shown(house: Any) -> None:
    reference = f"env:{secret_prefix('alice')}URL"
    with house.session() as session:
        spec = {"kind": "sql", "config": {"url": reference}}
        row, _ = put_store(session, house.alice, "main", spec, house.now, check_target=house.targets.check)
        assert row.config["url"] == reference
        assert reference not in str(view(row))
        assert view(row)["country"] is None


def test_no_tenants_prefix_begins_anothers() -> None:
    assert secret_prefix("a-b") == "MUNIMENT_SECRET_A__B_"
    reference = f"env:{secret_prefix('a-b')}KEY"
    spec = {"kind": "qdrant", "config": {"url": "http://h", "api_key": reference}}
    assert pointers(spec, tenant="a") == {"/config/api_key"}
    parse_store("a-b", "main", spec)


@pytest.mark.scenario("C8")
def test_versions_change_only_with_the_declaration_and_live_artifacts_keep_the_store(house: Any) -> None:
    spec = house.stores()["app"]
    with house.session() as session:
        row, made = put_store(session, house.alice, "app", spec, house.now, check_target=house.targets.check)
        assert (row.version, made) == (1, False)
        longer = {**spec, "backup_retention": "P30D"}
        row, made = put_store(session, house.alice, "app", longer, house.now, check_target=house.targets.check)
        assert (row.version, made) == (2, True)
        session.commit()
    house.register([house.item(1), house.item(2)])
    with house.session() as session:
        with pytest.raises(StoreInUse) as refused:
            remove_store(session, house.alice, "app")
        assert refused.value.live == 2
        with pytest.raises(StoreInUse):
            put_store(session, house.alice, "app", house.stores()["files"], house.now, check_target=house.targets.check)
        remove_store(session, house.alice, "files")
        assert set(in_force(session, house.alice.tenant_id)) == {"app"}
        with pytest.raises(UnknownStore):
            get_store(session, house.alice.tenant_id, "files")


def test_a_store_outside_the_operators_list_is_refused_and_nothing_is_written(house: Any) -> None:
    with house.session() as session:
        spec = {"kind": "files", "config": {"root": "/etc"}}
        with pytest.raises(TargetNotAllowed):
            put_store(session, house.alice, "etc", spec, house.now, check_target=house.targets.check)
        assert "etc" not in in_force(session, house.alice.tenant_id)


@pytest.mark.parametrize(
    ("allowed", "kind", "config", "fits"),
    [
        ([], "files", {"root": "/srv/a"}, False),
        (["file:/srv/*"], "files", {"root": "/srv/a"}, True),
        (["file:/srv/*"], "files", {"root": "/srv/a/b"}, True),
        (["file:/srv/a"], "files", {"root": "/srv/ab"}, False),
        (["file:/srv/*"], "files", {"root": "/srv/../etc"}, False),
        (["file:/srv/*"], "files", {"root": "/srv"}, False),
        (["sqlite:/srv/*.db"], "sql", {"url": "sqlite:////srv/a.db"}, True),
        (["sqlite:/srv/*.db"], "sql", {"url": "sqlite:////srv/deep/a.db"}, False),
        (["file:/srv/**"], "sql", {"url": "sqlite:////srv/a.db"}, False),
        (["sqlite:/srv/**"], "sql", {"url": "sqlite:////srv/%2e%2e/etc/a.db"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app"}, True),
        (["db.example:5432"], "sql", {"url": "postgresql+psycopg://DB.example/app"}, True),
        (["db.example:5433"], "sql", {"url": "postgresql://db.example/app"}, False),
        (["*.example"], "redis", {"url": "redis://cache.example:6380"}, True),
        (["*.example"], "redis", {"url": "redis://example.evil"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app?host=169.254.169.254"}, False),
        # The driver goes to evil.example, or to another port or database than the one that is judged.
        (["*.example", "*:5432"], "sql", {"url": "postgresql://db.example#@evil.test/app"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example?@evil.example/app"}, False),
        (["db.example:5432"], "sql", {"url": "postgresql://db.example:5432/@evil.example/app"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app?ho%73t=evil.example"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app?hostaddr=10.0.0.1"}, False),
        (["db.example:5432"], "sql", {"url": "postgresql://db.example/app?port=22"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app?dbname=muniment"}, False),
        (["db.example"], "sql", {"url": "postgresql://db.example/app?passfile=/etc/shadow"}, False),
        (["db.example"], "sql", {"url": "postgresql://me:p%40ss%23@db.example/app?sslmode=require"}, True),
        (["db.example"], "sql", {"url": "postgresql://[::1]/app"}, False),
        (["::1"], "sql", {"url": "postgresql://[::1]:5432/app"}, True),
        (["cache.example:6379"], "redis", {"url": "redis://cache.example/0?port=22"}, False),
        (["cache.example"], "redis", {"url": "rediss://cache.example/0?ssl_cert_reqs=required"}, True),
        (["db.example"], "sql", {"url": "postgresql:///app"}, False),
        (["good.example"], "http", {"url": "https://good.example@evil.example/"}, False),
        ([], "s3", {"bucket": "b"}, False),
        (["s3.amazonaws.com"], "s3", {"bucket": "b"}, True),
        (["minio:9000"], "s3", {"bucket": "b", "endpoint_url": "http://minio:9000"}, True),
        ([], "agent", {}, True),
        ([], "langgraph", {"folder": "/srv/threads"}, False),
        (["file:/srv/**"], "langgraph", {"folder": "/srv/threads"}, True),
        (["sqlite:/srv/**"], "langgraph", {"url": "sqlite:////srv/a.db", "keys": "/srv/keys"}, False),
        (["sqlite:/srv/**", "file:/srv/**"], "langgraph", {"url": "sqlite:////srv/a.db", "keys": "/srv/keys"}, True),
    ],
)  # fmt: skip
def test_a_target_is_allowed_only_by_the_operators_patterns(
    allowed: list[str], kind: str, config: dict[str, str], fits: bool
) -> None:
    targets = Targets(allowed=allowed)
    if fits:
        targets.check(kind, config)
    else:
        with pytest.raises(TargetNotAllowed):
            targets.check(kind, config)


def test_our_own_data_is_refused_whatever_the_list_allows(tmp_path: Path) -> None:
    own = tmp_path / "data"
    own.mkdir()
    (tmp_path / "link").symlink_to(own)
    database, bucket = "postgresql://db.example/muniment", "s3://vault/log"
    targets = Targets(
        allowed=["file:/**", "sqlite:/**", "*"], own=[str(own), f"sqlite:///{tmp_path}/muniment.db", database, bucket]
    )
    refused: list[tuple[str, dict[str, str]]] = [
        ("files", {"root": str(own)}), ("files", {"root": str(own / "objects")}), ("files", {"root": str(tmp_path)}),
        ("files", {"root": str(tmp_path / "link")}), ("sql", {"url": f"sqlite:///{tmp_path}/muniment.db"}),
        ("sql", {"url": f"sqlite:///{tmp_path}/muniment.db-wal"}),
        ("sql", {"url": "postgresql+psycopg://DB.example:5432/muniment"}), ("s3", {"bucket": "vault"}),
    ]  # fmt: skip
    for kind, config in refused:
        with pytest.raises(TargetNotAllowed):
            targets.check(kind, config)
    targets.check("sql", {"url": "postgresql://db.example/app"})
    targets.check("files", {"root": str(tmp_path / "else")})


@pytest.mark.parametrize(
    ("kind", "locator"),
    [
        ("sql", {}), ("sql", None), ("sql", {"table": "t"}), ("sql", {"table": "t", "key": {}}),
        ("sql", {"table": "t", "key": {"id": None}}), ("sql", {"table": "t", "key": {"id": 1.5}}),
        ("sql", {"table": "t", "key": {"id": True}}), ("sql", {"table": 1, "key": {"id": 1}}),
        ("sql", {"table": "t", "key": {"id": 1}, "where": "1=1"}), ("files", {"path": "../etc/passwd"}),
        ("files", {"path": "/etc/passwd"}), ("files", {"path": "a/../../b"}), ("files", {"path": "."}),
        ("files", {"path": "a/"}), ("files", {"path": ""}), ("files", {"path": "a\0b"}),
        ("files", {"path": "a", "lines": {"field": "x"}}), ("files", {"path": "a", "line_field": "x"}),
        ("redis", {"field": "f"}), ("s3", {"key": "k", "bucket": "b"}), ("qdrant", {"collection": "c"}),
        ("langgraph", {"thread": "t"}), ("langgraph_store", {"namespace": "a", "key": "k"}),
        ("langgraph_store", {"namespace": [], "key": "k"}), ("mem0", {"memory_id": ["x"]}),
        ("http", {"id": {"deep": 1}}), ("files", {"path": "\ud800"}),
    ],
)  # fmt: skip
def test_a_locator_of_the_wrong_shape_is_refused(kind: str, locator: Any) -> None:
    with pytest.raises(MalformedLocator):
        normal_locator(kind, locator)


def test_one_place_is_written_one_way_and_types_stay_apart() -> None:
    same = [{"path": "a/b.txt"}, {"path": "./a//b.txt"}, {"path": "a/./b.txt"}]
    assert len({canonical_locator(normal_locator("files", one)) for one in same}) == 1
    lines = [{"path": "a", "line_field": "u", "line_value": "x"}, {"path": "a", "lines": {"field": "u", "value": "x"}}]
    assert len({canonical_locator(normal_locator("files", one)) for one in lines}) == 1
    number, text = ({"table": "t", "key": {"id": value}} for value in (1, "1"))
    assert canonical_locator(normal_locator("sql", number)) != canonical_locator(normal_locator("sql", text))


@pytest.mark.scenario("S8")
def test_namespace_labels_of_other_types_are_other_places() -> None:
    number, text = ({"namespace": ["u", label], "key": "k"} for label in (1, "1"))
    places = [canonical_locator(normal_locator("langgraph_store", one)) for one in (number, text)]
    assert places[0] != places[1]


def test_a_locator_of_a_mebibyte_is_refused() -> None:
    with pytest.raises(MalformedLocator):
        canonical_locator(normal_locator("s3", {"key": "x" * 2**20}))


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.one_of(st.integers(), st.text(min_size=1)), min_size=1))
def test_the_order_of_key_columns_changes_nothing(key: dict[str, Any]) -> None:
    def place(columns: dict[str, Any]) -> bytes | None:
        try:
            return canonical_locator(normal_locator("sql", {"table": "t", "key": columns}))
        except MalformedLocator:
            return None

    assert place(key) == place(dict(reversed(list(key.items()))))
