"""Settings: one table, read from the environment, never silently wrong."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pytest
from _engine_tests.session import hmac_sha256

from omnihvd.engine import EngineError, session

ROOT = Path(__file__).parents[2]
DECIDED_AT_START = ("streams",)  # where it is auto


def test_every_setting_is_documented_and_accepts_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, default, allowed, text in session.setting_docs():
        assert name.startswith("OMNIHVD_") and allowed and text
        monkeypatch.setenv(name, default)
    made, plain = session.settings_from_environment(), session.Settings()
    for name, value in vars(session.Settings).items():
        if isinstance(value, property) and name not in DECIDED_AT_START:
            assert getattr(made, name) == getattr(plain, name), name


def test_the_table_of_the_documents_is_the_engine_s() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*) \|$",
        (ROOT / "docs" / "settings.md").read_text(),
        re.MULTILINE,
    )
    docs = [(name, default or "none", *words) for name, default, *words in session.setting_docs()]
    assert rows == docs


def test_documents_name_settings_that_exist() -> None:
    known = {name for name, *_ in session.setting_docs()}
    known.update(re.findall(r"OMNIHVD_\w+", (ROOT / "setup.py").read_text()))
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        named = set(re.findall(r"OMNIHVD_\w*[A-Z]\b", document.read_text()))
        assert named <= known, document.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMNIHVD_MIN_BYTES", "-1"),
        ("OMNIHVD_MIN_BYTES", "64k"),
        ("OMNIHVD_BLOCK_SIZE", "0"),
        ("OMNIHVD_STREAMS", "65"),
        ("OMNIHVD_ENABLE", "perhaps"),
        ("OMNIHVD_HIERARCHY", "maybe"),
        ("OMNIHVD_AGGREGATORS", "host"),
        ("OMNIHVD_AGGREGATORS", "host:0"),
        ("OMNIHVD_TIMEOUT", "soon"),
        ("OMNIHVD_TIMEOUT", "nan"),
        ("OMNIHVD_LOG", "loud"),
        ("OMNIHVD_MINBYTES", "1"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=name):
        session.settings_from_environment()


@pytest.mark.parametrize(
    ("name", "value", "member", "expected"),
    [
        ("OMNIHVD_ENABLE", "false", "enable", False),
        ("OMNIHVD_ENABLE", "Off", "enable", False),
        ("OMNIHVD_DETERMINISTIC", "TRUE", "deterministic", True),
        ("OMNIHVD_LOG", "INFO", "min_bytes", 262144),
        ("OMNIHVD_HIERARCHY", "On", "min_bytes", 262144),
    ],
)
def test_words_in_any_case(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, member: str, expected: object
) -> None:
    monkeypatch.setenv(name, value)
    assert getattr(session.settings_from_environment(), member) == expected


def test_what_the_build_is_told_may_stay_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    documented = re.findall(r"OMNIHVD_\w+", (ROOT / "setup.py").read_text().split('"""')[1])
    assert documented
    for name in documented:
        monkeypatch.setenv(name, "/usr")
    session.settings_from_environment()


def test_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMNIHVD_SECRET", "short")
    with pytest.raises(EngineError, match="16 characters") as error:
        session.settings_from_environment()
    assert "short" not in str(error.value)
    monkeypatch.delenv("OMNIHVD_SECRET")
    monkeypatch.setenv("OMNIHVD_AGGREGATORS", "host:7000")
    with pytest.raises(EngineError, match="OMNIHVD_SECRET"):
        session.settings_from_environment()
    file = tmp_path / "secret"
    file.write_text("sixteen characters\n")
    file.chmod(0o604)
    monkeypatch.setenv("OMNIHVD_SECRET_FILE", str(file))
    with pytest.raises(EngineError, match=f"OMNIHVD_SECRET_FILE: .*chmod 600 {file}"):
        session.settings_from_environment()
    file.chmod(0o640)
    assert session.settings_from_environment().secret == "sixteen characters"


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_hmac_sha256_is_the_standard_one(size: int) -> None:
    data = bytes(i * 7 % 256 for i in range(size))
    for key in (b"", data, b"key"):
        assert hmac_sha256(key, data) == hmac.digest(key, data, hashlib.sha256)
