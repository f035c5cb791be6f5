# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who calls at a door of which the name, or all, goes away."""

from __future__ import annotations

import pytest

from smdistributed.launch.courier import caller


@pytest.fixture
def called_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where somebody calls; nobody is there at first, and then it is over."""
    found: list[str] = []

    def called(address: str, port: int, number: int, secret: bytes) -> None:
        found.append(address)
        if len(found) < 3:
            raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(caller, "called", called)
    monkeypatch.setattr(caller, "_AGAIN_S", 0.0)
    return found


def test_a_name_that_goes_first_is_known_still(
    called_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the job's objects its names go; who is not sent away is waited for."""
    known = ["", "10.0.0.1", ""]
    monkeypatch.setattr(caller, "_found", lambda name: known.pop(0))
    assert caller.call("first", 1, 1, b"", "127.0.0.1", 60.0, lambda text: None)
    assert called_at == ["first", "10.0.0.1", "10.0.0.1"]


def test_who_is_to_end_waits_for_nobody(called_at: list[str]) -> None:
    assert not caller.call(
        "127.0.0.1", 1, 1, b"", "127.0.0.1", 60.0, lambda text: None, lambda: True
    )
    assert called_at == ["127.0.0.1"]
