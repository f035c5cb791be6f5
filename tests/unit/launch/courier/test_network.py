# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""At which address other machines reach this one."""

from __future__ import annotations

import socket

import pytest

from smdistributed.launch.courier import network
from smdistributed.launch.courier.network import interface_of, own_address


@pytest.mark.parametrize(
    ("connection", "address"),
    [
        ("10.0.0.9 50000 10.0.0.1 22", "10.0.0.1"),
        ("fd00::9 50000 fd00::1 22", "fd00::1"),
        ("10.0.0.9 50000 10.0.0.1 2222", "10.0.0.1"),
    ],
)
def test_that_to_which_ssh_has_come(connection: str, address: str) -> None:
    assert own_address({"SSH_CONNECTION": connection}) == address


def test_not_that_of_the_loopback_if_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", (each, 0)) for each in ("127.0.1.1", "10.9.9.9", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(network, "interface_of", lambda each: "eth0" * (each == "10.0.0.1"))
    assert own_address({"SSH_CONNECTION": "127.0.0.1 5 127.0.0.1 22"}) == "10.0.0.1"
    assert own_address({}) == "10.0.0.1"


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert own_address({}) == "127.0.0.1"
    assert own_address({"SSH_CONNECTION": "::1 5 ::1 22"}) == "::1"
    assert own_address({"SSH_CONNECTION": "nonsense"}) == "127.0.0.1"


def test_interfaces() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == ""
    assert interface_of("2001:db8::77") == ""
    assert interface_of("nonsense") == ""
