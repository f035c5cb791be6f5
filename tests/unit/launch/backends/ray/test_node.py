# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a machine does that is told to look for Ray, or to end a cluster's processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.ray import node
from smdistributed.launch.backends.ray.node import MARK, Action, Answer, Order


@contextlib.contextmanager
def started(cluster: str, script: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["sh", "-c", f"{script}; echo; while :; do sleep 0.05; done"]
    with subprocess.Popen(
        command, env={**os.environ, MARK: cluster}, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process
        finally:
            process.kill()


def test_what_has_the_mark_is_ended_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_GRACE_S", 0.2)
    own, another = secrets.token_hex(4), secrets.token_hex(4)
    with (
        started(own, "sleep 100 & true") as first,
        started(own, "trap '' TERM") as stubborn,
        started(another, "true") as other,
        started(own + "0", "true") as longer,
    ):
        assert len(node.marked(own)) >= 3
        assert node.end_marked(own) >= 3
        assert node.marked(own) == {}
        assert first.wait(scaled(5)) == -signal.SIGTERM
        assert stubborn.wait(scaled(5)) == -signal.SIGKILL
        assert other.poll() is None
        assert longer.poll() is None


def test_what_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = secrets.token_hex(4)
    with (
        started(cluster, "true") as process,
        monkeypatch.context() as patch,
    ):
        patch.setattr(node, "_GRACE_S", 0.05)
        patch.setattr(node, "_KILLED_S", 0.05)
        patch.setattr(node.os, "kill", lambda pid, number: None)
        with pytest.raises(TimeoutError, match=f"{process.pid}.* do not end"):
            node.end_marked(cluster)


def test_why_ray_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_version_of_ray", lambda: "")
    order = Order(Action.LOOK, "1", "127.0.0.1")
    assert "Ray is missing in " in node._look(order).problem
    monkeypatch.setattr(node, "_version_of_ray", lambda: "2.60.0")
    monkeypatch.setattr(node.importlib.util, "find_spec", lambda name: None)
    assert "has no dashboard" in node._look(order).problem
    monkeypatch.setattr(node.importlib.util, "find_spec", lambda name: name)
    assert node._look(order).problem == ""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = node._look(Order(Action.LOOK, "1", "127.0.0.1", [port])).problem
    assert said == f"port {port} of 127.0.0.1 cannot be used: Address already in use"
    said = node._look(Order(Action.LOOK, "1", "192.0.2.1")).problem
    assert said.startswith("the address 192.0.2.1 cannot be used: ")


def test_orders_and_answers_come_as_they_went() -> None:
    order = Order(Action.START, "1", "10.0.0.1", [1], "10.0.0.2", ["-x"], "secret", 3.0)
    assert Order.of_json(order.to_json().decode()) == order
    answer = Answer("why", "1", "2", "3", "4", 5)
    assert Answer.of_text(f"Welcome!\n{answer.to_json()}\n") == answer
    assert Answer.of_text("Welcome!\n") is None
    assert Answer.of_text(f"{node.BEGIN}[1]") is None


@pytest.mark.parametrize("cluster", ["", "a/../..", "a b", "../a"])
def test_a_name_that_leads_elsewhere_is_refused(cluster: str) -> None:
    with pytest.raises(ValueError, match="names no cluster"):
        Order.of_json(Order(Action.END, cluster).to_json().decode())
