# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who starts a cluster, where machines cannot be used: nothing is started, and it is said why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.cluster import RayNodes, Record
from smdistributed.launch.backends.ray.node import Answer
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.files import Lock

A = Answer(ray="2.60.0", python="3.11.9", address="10.0.0.1")
B = dataclasses.replace(A, address="10.0.0.2")

# Answers as a machine would that has the name of a file here.
CLIENT = """#!/bin/sh
folder=$(dirname "$0")
while [ "$1" != -- ]; do shift; done
cat > "$folder/$2.asked"
cat "$folder/$2" || exit 255
"""


def nodes_of(folder: Path, answers: Mapping[str, Answer], more: str = "") -> RayNodes:
    home = Home(folder / "home")
    home.make()
    client = folder / "ssh"
    client.write_text(CLIENT)
    client.chmod(0o755)
    home.config.write_text(f'[ssh]\ncommand = ["{client}"]\n{more}')
    for name, answer in answers.items():
        (folder / name).write_text(f"Welcome\n{answer.to_json()}\n")
    return RayNodes(home, print)


def refused(nodes: RayNodes, *hosts: str) -> str:
    with pytest.raises((BackendError, ConfigurationError)) as raised:
        nodes.start(hosts, (6379, 8265), [], 30.0)
    assert nodes.record() is None
    return str(raised.value)


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"ray": "2.9.0"}, "b: its version of ray is 2.9.0, expected 2.60.0, as a has"),
        ({"python": "3.12.1"}, "b: its version of python is 3.12.1, expected 3.11.9, as a has"),
        ({"version": "1.0"}, "b: it has version 1.0 of this package, expected "),
        ({"problem": "Ray is missing"}, "b: Ray is missing"),
        ({"address": "10.0.0.1"}, "b: its address is 10.0.0.1, and so is that of a"),
    ],
)
def test_machines_that_do_not_fit(tmp_path: Path, second: Mapping[str, str], said: str) -> None:
    nodes = nodes_of(tmp_path, {"a": A, "b": dataclasses.replace(B, **second)})
    text = refused(nodes, "a", "b")
    assert text.startswith(f"no cluster was started. {said}")
    assert not nodes.token.exists()
    assert "secret" not in text


def test_a_machine_that_cannot_be_reached(tmp_path: Path) -> None:
    text = refused(nodes_of(tmp_path, {"a": A}), "a", "b")
    assert "b: the connection ended with status 255: " in text
    assert "Try by hand: " in text
    assert "BatchMode=yes b " in text


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, {"a": A})
    assert "names a machine twice" in refused(nodes, "a", "a")
    assert "expected names as ssh takes them" in refused(nodes, "-x")
    with pytest.raises(ConfigurationError, match="'--port=1' is no option to be given here"):
        nodes.start(["a"], (6379, 8265), ["--port=1"], 30.0)


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", ""])
def test_what_is_no_machine_is_said_of_the_command(tmp_path: Path, host: str) -> None:
    assert f"{host!r} is no machine; expected names" in refused(nodes_of(tmp_path, {}), "a", host)


def test_two_ports_are_two(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected two"):
        nodes_of(tmp_path, {}).start(["a"], (8265, 8265), [], 30.0)


def test_a_machine_that_starts_no_ray(tmp_path: Path) -> None:
    """What it says comes up, with the record gone that was there meanwhile."""
    nodes = nodes_of(tmp_path, {"a": A})
    client = tmp_path / "ssh"
    failed = Answer("port 6379 is taken").to_json()
    client.write_text(
        CLIENT.replace(
            'cat "$folder/$2" ||',
            f'grep -q \'"start"\' "$folder/$2.asked" && {{ cp {nodes.token} {tmp_path}/seen;'
            f" cp {nodes._kept} {tmp_path}/kept; echo '{failed}'; exit 0; }}\n"
            'cat "$folder/$2" ||',
        ).replace("cat >", "head -n 1 >")
    )
    text = refused(nodes, "a")
    assert "a: port 6379 is taken" in text
    assert "What was started was ended." in text
    assert not nodes.token.exists()
    assert (tmp_path / "seen").read_text() not in text
    assert json.loads((tmp_path / "kept").read_text())["hosts"] == {"a": "10.0.0.1"}
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0
    assert '"end"' in (tmp_path / "a.asked").read_text()


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, {})
    nodes._folder.mkdir()
    nodes._kept.write_text('{"id": 1')
    with pytest.raises(ConfigurationError, match=r"is damaged: .*SMD_RAY_CLUSTER"):
        nodes.end()


def test_one_at_a_time(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, {"a": A})
    nodes._folder.mkdir()
    lock = Lock(nodes._folder / "lock")
    assert lock.acquire()
    assert "expected one at a time" in refused(nodes, "a")
    lock.release()
    assert nodes.end() is None


def test_a_record_comes_as_it_went(tmp_path: Path) -> None:
    nodes = nodes_of(tmp_path, {"a": Answer(num_ended=3)})
    nodes._folder.mkdir()
    record = Record("1", "python", {"a": "10.0.0.1"}, "http://10.0.0.1:8265", True)
    nodes._write(record)
    assert nodes.record() == record
    assert nodes.end() == record
    assert nodes.record() is None
