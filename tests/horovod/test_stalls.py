"""Horovod's own stall check, as omnihvd's settings have it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from omnihvd.intercept import install

CHECK = "HOROVOD_STALL_CHECK_TIME_SECONDS"
ENDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


@pytest.mark.parametrize(
    ("warning", "timeout", "expected"),
    [
        (60, 0, {CHECK: "60"}),
        (0, 0, {"HOROVOD_STALL_CHECK_DISABLE": "1"}),
        (60, 300, {CHECK: "60", ENDS: "300"}),
        (60, 8, {CHECK: "2", ENDS: "8"}),  # it must have warned before it ends the job
        (0, 8, {CHECK: "2", ENDS: "8"}),
        (0.5, 1.2, {CHECK: "1", ENDS: "2"}),
    ],
)
def test_variables(
    warning: float, timeout: float, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr(install, "os", SimpleNamespace(environ=environ))
    install.cover_negotiation(SimpleNamespace(stall_warning_s=warning, timeout_s=timeout))
    assert environ == expected


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {CHECK: "7"}
    monkeypatch.setattr(install, "os", SimpleNamespace(environ=environ))
    install.cover_negotiation(SimpleNamespace(stall_warning_s=60, timeout_s=300))
    assert environ == {CHECK: "7", ENDS: "300"}
