"""Settings: one table, read from the environment, never silently wrong."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path
from typing import Any

import pytest
from _engine_tests.session import agree_on_settings, hmac_sha256, pack_agreed, siphash

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
    for document in [ROOT / "README.md", *ROOT.glob("*/*.md")]:
        named = set(re.findall(r"OMNIHVD_\w*[A-Z]\b", document.read_text()))
        assert named <= known, document.name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OMNIHVD_MIN_BYTES", "-1"),
        ("OMNIHVD_MIN_BYTES", "64k"),
        ("OMNIHVD_MIN_BYTES", "9" * 20),  # no 64 bits hold it
        ("OMNIHVD_BLOCK_SIZE", "0"),
        ("OMNIHVD_STREAMS", "65"),
        ("OMNIHVD_ENABLE", "perhaps"),
        ("OMNIHVD_HIERARCHY", "maybe"),
        ("OMNIHVD_AGGREGATORS", "host"),
        ("OMNIHVD_AGGREGATORS", "host:0"),
        ("OMNIHVD_TIMEOUT", "soon"),
        ("OMNIHVD_TIMEOUT", "nan"),
        ("OMNIHVD_LOG", "loud"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=f"{name}={value}: not allowed; allowed: "):
        session.settings_from_environment()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("OMNIHVD_MINBYTES", "1", "unknown setting OMNIHVD_MINBYTES: did you mean OMNIHVD_MIN_"),
        ("OMNIHVD_QWERTYUIOP", "1", "QWERTYUIOP: see `omnihvd check --settings` for all settings"),
        ("OMNIHVD_SECRET_FILE", "/no/such/file", "OMNIHVD_SECRET_FILE: the file cannot be read"),
        ("OMNIHVD_INLINE", "h:1", "h is no IPv4 address: in-network aggregation supports IPv4"),
        ("OMNIHVD_INLINE", "10.0.0.1:1", "OMNIHVD_INLINE needs OMNIHVD_SECRET or OMNIHVD_SECRET_F"),
    ],
)
def test_a_setting_that_cannot_be_is_explained(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match=re.escape(said)):
        session.settings_from_environment()


@pytest.mark.parametrize(
    ("name", "value", "member", "expected"),
    [
        ("OMNIHVD_ENABLE", "false", "enable", False),
        ("OMNIHVD_ENABLE", "Off", "enable", False),
        ("OMNIHVD_DETERMINISTIC", "TRUE", "deterministic", True),
        ("OMNIHVD_LOG", "INFO", "log", "info"),
        ("OMNIHVD_MIN_BYTES", "", "min_bytes", None),
        ("OMNIHVD_MIN_BYTES", "0", "min_bytes", 0),
        ("OMNIHVD_HIERARCHY", "On", "hierarchy", "on"),
        ("OMNIHVD_WAY", "Stream", "way", "stream"),
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
    with pytest.raises(EngineError, match="a secret needs at least 16 characters") as error:
        session.settings_from_environment()
    assert "short" not in str(error.value)
    monkeypatch.delenv("OMNIHVD_SECRET")
    monkeypatch.setenv("OMNIHVD_AGGREGATORS", "host:7000")
    with pytest.raises(EngineError, match="OMNIHVD_AGGREGATORS needs OMNIHVD_SECRET or"):
        session.settings_from_environment()
    file = tmp_path / "secret"
    file.write_text("sixteen characters\n")
    file.chmod(0o604)
    monkeypatch.setenv("OMNIHVD_SECRET_FILE", str(file))
    with pytest.raises(
        EngineError,
        match=f"every user of this host can read the file or write to it: chmod 600 {file}",
    ):
        session.settings_from_environment()
    file.chmod(0o640)
    assert session.settings_from_environment().secret == "sixteen characters"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("OMNIHVD_SECRET_FILE", str(pipe))
    with pytest.raises(EngineError, match="a secret is read more than once: name a regular file"):
        session.settings_from_environment()


def agree(*ranks: dict[str, Any]) -> tuple[Any, list[str]]:
    """The settings of a rank that has none of its own, and the messages."""
    packed = []
    for values in ranks:
        one = session.Settings()
        for name, value in values.items():
            setattr(one, name, value)
        packed.append(pack_agreed(one))
    used = session.Settings()
    said = agree_on_settings(packed, [f"rank {r} (h{r})" for r in range(len(ranks))], used)
    return used, said


def test_ranks_that_agree_say_nothing() -> None:
    alike = {"block_size": 128, "way": "union", "timeout_s": 1.5, "aggregators": ["a:1", "b:2"]}
    used, said = agree(alike, alike, alike)
    assert said == []
    assert {name: getattr(used, name) for name in alike} == alike


def test_what_is_a_ranks_own_may_differ() -> None:
    own = {"spin_us": 7, "trace": "t", "host_id": "h", "log": "debug", "secret": "s" * 16}
    used, said = agree(own, {"streams": 4})  # "auto" may find other links on other hosts
    assert said == []
    assert used.trace == "" and used.streams == session.Settings().streams


@pytest.mark.parametrize(
    ("name", "first", "second", "variable"),
    [
        ("block_size", 256, 128, "OMNIHVD_BLOCK_SIZE"),
        ("way", "stream", "auto", "OMNIHVD_WAY"),
        ("min_bytes", 262144, 0, "OMNIHVD_MIN_BYTES"),
        ("deterministic", False, True, "OMNIHVD_DETERMINISTIC"),
        ("enable", True, False, "OMNIHVD_ENABLE"),
        ("gpu_min_bytes", 1, 2, "OMNIHVD_GPU_MIN_BYTES"),
    ],
)
def test_where_ranks_differ_rank_0_is_followed_and_it_is_said(
    name: str, first: Any, second: Any, variable: str
) -> None:
    used, said = agree({name: first}, {name: first}, {name: second}, {name: second})
    assert getattr(used, name) == first
    (sentence,) = said
    shown = {False: "0", True: "1"} if isinstance(first, bool) else {}
    assert sentence.startswith(
        f"{variable} is {shown.get(second, second)} on rank 2 (h2), "
        f"and {shown.get(first, first)} on rank 0 (h0), which all ranks use"
    )


def test_transports_that_differ_are_an_error_that_names_both() -> None:
    with pytest.raises(EngineError, match=r"OMNIHVD_TRANSPORT is udp on rank 1 .h1., and ucx"):
        agree({}, {"transport": "udp"})
    with pytest.raises(EngineError, match=r"OMNIHVD_TRANSPORT is ucx on rank 2 .h2., and udp"):
        agree({"transport": "udp"}, {"transport": "udp"}, {})


def test_arithmetics_that_differ_are_an_error_that_names_both() -> None:
    said = r"OMNIHVD_ARITHMETIC is integer on rank 1 .h1., and float on rank 0"
    with pytest.raises(EngineError, match=said):
        agree({}, {"arithmetic": "integer"})
    used, said_ = agree({"arithmetic": "fpisa-a"}, {"arithmetic": "fpisa-a"})
    assert used.arithmetic == "fpisa-a" and not said_


def test_aggregators_in_the_data_path_that_differ_are_an_error_that_names_both() -> None:
    one = {"inline": "10.0.0.1:47800"}
    with pytest.raises(
        EngineError,
        match=r"OMNIHVD_INLINE is none on rank 1 .h1., and 10.0.0.1.*: set it alike everywhere",
    ):
        agree(one, {})
    used, said = agree(one, one)
    assert used.inline == "10.0.0.1:47800" and not said


def test_arithmetic_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIHVD_ARITHMETIC", "Integer")
    assert session.settings_from_environment().way == "stream"
    for way in ("shared", "union", "original", "coded"):
        monkeypatch.setenv("OMNIHVD_WAY", way)
        with pytest.raises(EngineError, match=rf"requires OMNIHVD_WAY=stream .now: {way}."):
            session.settings_from_environment()
    monkeypatch.setenv("OMNIHVD_ARITHMETIC", "float")
    assert session.settings_from_environment().way == "coded"


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (0, 2)])
def test_of_what_protects_the_strictest_is_used(ranks: tuple[int, int]) -> None:
    """Whichever rank asks for it: the messages of all would else be read."""
    values: list[dict[str, Any]] = [{}, {}, {}]
    values[ranks[1]] = {"encrypt": True}
    used, said = agree(*values)
    assert used.encrypt
    (sentence,) = said
    assert sentence.startswith(f"OMNIHVD_ENCRYPT is 0 on rank {ranks[0]} (h{ranks[0]}), and 1 on ")
    assert f"on rank {ranks[1]} (h{ranks[1]}), which all" in sentence


def test_settings_that_nobody_sends_are_refused() -> None:
    packed = pack_agreed(session.Settings())
    for broken, why in [
        (packed[:-1], "malformed description of a group: it ends early"),
        (
            packed.replace(b"256", b"-25"),
            "description of a group: impossible OMNIHVD_BLOCK_SIZE",
        ),
    ]:
        with pytest.raises(EngineError, match=why):
            agree_on_settings([broken], ["rank 0"], session.Settings())


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_hmac_sha256_is_the_standard_one(size: int) -> None:
    data = bytes(i * 7 % 256 for i in range(size))
    for key in (b"", data, b"key"):
        assert hmac_sha256(key, data) == hmac.digest(key, data, hashlib.sha256)


# The vectors of the reference implementation: key 00 01 .. 0f, message 00 01 .. of each length.
SIPHASH_2_4 = {
    0: "310e0edd47db6f72",
    1: "fd67dc93c539f874",
    2: "5a4fa9d909806c0d",
    7: "37d1018bf50002ab",
    8: "6224939a79f5f593",
    9: "b0e4a90bdf82009e",
    15: "e545be4961ca29a1",
    63: "724506eb4c328a95",
}


@pytest.mark.parametrize("size", SIPHASH_2_4)
def test_siphash_is_the_standard_one(size: int) -> None:
    code = siphash(bytes(range(16)), bytes(range(size)))
    assert code.to_bytes(8, "little").hex() == SIPHASH_2_4[size]
