"""Settings come from the environment, then the file, then defaults; secrets stay with their tenant."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from api.secrets import SecretRefused, Secrets
from api.settings import SettingRefused, Settings, environment_secret, load

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muniment.toml").write_text('quiet_period = "P2D"\nLOG_TERM = "P10Y"\napproval = "single"\n')
    monkeypatch.setenv("MUNIMENT_APPROVAL", "dual")
    found = load(tmp_path)
    assert found.quiet_period == timedelta(days=2)
    assert found.log_term == "P10Y"
    assert found.approval == "dual"
    assert found.kek_grace == timedelta(days=7)
    assert load(tmp_path, port=9).port == 9


def test_defaults_keep_keys_and_secrets_out_of_the_data_folder(tmp_path: Path) -> None:
    found = load(tmp_path / "data")
    assert found.key_root == f"file://{tmp_path}/data.keys"
    assert found.secrets_folder == tmp_path / "data.secrets"
    assert found.database == f"sqlite:///{tmp_path}/data/muniment.db"
    assert found.targets == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOG_TERM", "P"),
        ("LOG_TERM", "7 years"),
        ("QUIET_PERIOD", "soon"),
        ("QUIET_PERIOD", "-P1D"),
        ("KEK_GRACE", "-P7D"),
        ("UNVERIFIED_TERM", "P6D"),
        ("APPROVAL", "none"),
        ("PORT", "70000"),
    ],
)
def test_a_malformed_value_names_its_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"MUNIMENT_{name}", value)
    with pytest.raises(SettingRefused, match=name):
        load(tmp_path)


def test_a_moved_clock_is_refused_with_a_locked_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUNIMENT_CLOCK_OFFSET", "P200D")
    assert load(tmp_path).clock_offset == timedelta(days=200)
    monkeypatch.setenv("MUNIMENT_OBJECT_STORE", "s3://bucket/x")
    with pytest.raises(SettingRefused, match="CLOCK_OFFSET"):
        load(tmp_path)


@pytest.mark.parametrize(("processors", "expected"), [({3}, 1), ({0, 1}, 2), (set(range(64)), 4)])
def test_there_are_as_many_preparing_processes_as_processors_that_may_be_used_up_to_four(
    processors: set[int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors, raising=False)
    assert load(tmp_path).preparing_processes == expected
    assert load(tmp_path, preparing=0).preparing_processes == 0
    assert load(tmp_path, preparing=9).preparing_processes == 9


def test_every_setting_is_documented_with_its_own_words() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name, setting in Settings.model_fields.items():
        assert f"`MUNIMENT_{name.upper()}`" in text
        assert setting.description
        assert setting.description in text


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    (tmp_path / "a").mkdir()
    (tmp_path / "a-b").mkdir()
    (tmp_path / "a" / "db").write_text("hunter2\n")
    (tmp_path / "a-b" / "db").write_text("other\n")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a-b" / "db")
    monkeypatch.setenv("MUNIMENT_SECRET_A_DB", "one")
    monkeypatch.setenv("MUNIMENT_SECRET_A__B_DB", "two")
    return Secrets(tmp_path, environment_secret)


def test_a_tenant_reads_its_own_secrets(secrets: Secrets) -> None:
    assert secrets.resolve("a", "env:MUNIMENT_SECRET_A_DB") == "one"
    assert secrets.resolve("a-b", "env:MUNIMENT_SECRET_A__B_DB") == "two"
    assert secrets.resolve("a", "file:db") == "hunter2"


@pytest.mark.parametrize(
    "reference",
    [
        "env:MUNIMENT_SECRET_A__B_DB",
        "env:MUNIMENT_SECRET_B_DB",
        "env:PATH",
        "env:MUNIMENT_SECRET_A_",
        "env:MUNIMENT_SECRET_A_MISSING",
        "file:../a-b/db",
        "file:link",
        "file:/etc/passwd",
        "file:missing",
        "file:",
        "file:.",
        "hunter2",
        "",
    ],
)
def test_nothing_else_is_a_tenants_secret_and_no_refusal_holds_one(secrets: Secrets, reference: str) -> None:
    with pytest.raises(SecretRefused) as refused:
        secrets.resolve("a", reference)
    assert "two" not in str(refused.value)
    assert "hunter2" not in str(refused.value)
