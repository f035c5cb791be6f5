# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host that has no address is told, one that gets an address in time is not."""

import socket
import threading
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.host_names import require_resolvable


def test_addresses_and_known_names_pass() -> None:
    require_resolvable("127.0.0.1")
    require_resolvable("::1")
    require_resolvable("localhost")


def test_a_name_without_address_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigurationError, match="Correct MASTER_ADDR") as caught:
        require_resolvable("algo-1.invalid", limit_s=0.01)
    assert "'algo-1.invalid' does not resolve" in str(caught.value)
    assert "Name or service not known" in str(caught.value)


def test_a_name_may_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [socket.gaierror(socket.EAI_AGAIN, "try again"), None]

    def second_time_known(*args: Any, **kwargs: Any) -> Any:
        if (error := answers.pop(0)) is not None:
            raise error
        return []

    monkeypatch.setattr(socket, "getaddrinfo", second_time_known)
    require_resolvable("late", limit_s=60)
    assert not answers


def test_a_resolver_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: released.wait(60))
    with pytest.raises(ConfigurationError, match="the resolver does not answer"):
        require_resolvable("silent", limit_s=0.01)
    released.set()


def test_a_name_that_cannot_be_one_is_told() -> None:
    with pytest.raises(ConfigurationError, match="does not resolve"):
        require_resolvable("a" * 70 + ".example", limit_s=0.01)
