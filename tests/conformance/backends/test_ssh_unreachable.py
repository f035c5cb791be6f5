# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Machines that cannot be used: who submits a job knows within 10 s, and what to try by hand."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ssh_settings import SshSettings
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.states import Secondary, Status
from tests.clusters.ssh import SshHosts
from tests.conformance.backends.ssh_jobs import SshJobs

KNOWN_S = 10.0
PRINTS = "print('here')"


class Bad:
    """A client's configuration with machines that cannot be reached, beside those that can."""

    def __init__(self, folder: Path, hosts: SshHosts) -> None:
        self.config = folder / "config"
        self.known = folder / "known_hosts"
        self.known.write_text((hosts.folder / "known_hosts").read_text())
        first = hosts.links[hosts.names[0]].address
        (folder / "no_key").write_text("")
        self.closed = _free_port()
        self.silent = socket.create_server(("127.0.0.1", 0))
        common = "User root\n  IdentitiesOnly yes\n  GlobalKnownHostsFile /dev/null\n"
        key = f"  IdentityFile {hosts.folder}/key\n"
        strict = "  StrictHostKeyChecking yes\n"
        self.config.write_text(
            f"Host unknown\n  HostName {first}\n  {common}{key}{strict}"
            f"  UserKnownHostsFile /dev/null\n"
            f"Host refused\n  HostName {first}\n  {common}{strict}"
            f"  IdentityFile {folder}/no_key\n  UserKnownHostsFile {self.known}\n"
            f"Host nameless\n  HostName no-such-name.invalid\n  {common}{key}"
            f"Host closed\n  HostName 127.0.0.1\n  Port {self.closed}\n  {common}{key}"
            f"Host silent\n  HostName 127.0.0.1\n  Port {self.silent.getsockname()[1]}\n"
            f"  {common}{key}" + hosts.config.read_text()
        )


@pytest.fixture
def bad(tmp_path: Path, two_ssh_hosts: SshHosts) -> Iterator[Bad]:
    made = Bad(tmp_path, two_ssh_hosts)
    with contextlib.closing(made.silent):
        yield made


def jobs_on(folder: Path, hosts: SshHosts, bad: Bad, *names: str) -> SshJobs:
    jobs = SshJobs(folder, hosts, names)
    text = jobs.home.config.read_text().replace(str(hosts.config), str(bad.config))
    jobs.home.config.write_text(text)
    return jobs


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown", "Host key verification failed"),
        ("refused", "Permission denied"),
        ("nameless", "Could not resolve hostname"),
        ("closed", "Connection refused"),
        pytest.param("silent", "timed out|said nothing", marks=pytest.mark.slow),
    ],
)
def test_a_machine_that_is_not_there(name, said, bad, two_ssh_hosts, tmp_path) -> None:
    jobs = jobs_on(tmp_path, two_ssh_hosts, bad, "host-0", name)
    job = jobs.create(PRINTS)
    began = time.monotonic()
    with pytest.raises(BackendError, match=said) as raised:
        jobs.backend.submit(job)
    assert time.monotonic() - began < scaled(KNOWN_S)
    text = str(raised.value)
    assert text.startswith(f"{name} cannot be reached: ")
    assert f"Try by hand: ssh -F {bad.config} -o BatchMode=yes {name} " in text
    record = jobs.backend.poll(job)
    assert record.status is Status.FAILED
    assert record.failure_reason.startswith(f"ClientError: {name} cannot be reached: ")
    jobs.require_nothing_left()


@pytest.mark.slow
def test_a_machine_that_is_not_there_is_not_needed(bad, two_ssh_hosts, tmp_path) -> None:
    jobs = jobs_on(tmp_path, two_ssh_hosts, bad, "silent", "closed", "host-0", "host-1")
    job = jobs.started(PRINTS)
    assert jobs.ended(job).secondary is Secondary.COMPLETED
    events = list(job.events())
    assert [each["machine"] for each in events if each["event"] == "host"] == ["host-0", "host-1"]
    assert "closed cannot be reached" in str(
        [each["why"] for each in events if each["event"] == "host-left-out"]
    )


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/no/such/python", "/no/such/python"),
        ("/usr/bin/env -i python3", "No such file"),
        ("false", "ended with status 1"),
    ],
)
def test_a_python_that_cannot_run_it(python, said, two_ssh_hosts, tmp_path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    text = jobs.home.config.read_text()
    jobs.home.config.write_text(text.replace(json.dumps(sys.executable), json.dumps(python)))
    with pytest.raises(BackendError, match=said):
        jobs.backend.submit(jobs.create(PRINTS))


def test_a_package_of_another_version(two_ssh_hosts, tmp_path) -> None:
    """Its messages may have other fields, and its courier other habits."""
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    fake = (
        "import json, struct, sys; from smdistributed.launch.courier.messages import MARK;"
        ' head = json.dumps({"kind": "Hello", "version": "0.0.1", "strange": 1}).encode();'
        ' sys.stdout.buffer.write(MARK + struct.pack(">4sII", b"SMD1", len(head), 0) + head);'
        " sys.stdout.flush(); sys.stdin.read()"
    )
    script = f"#!/bin/sh\nexec {sys.executable} -c '{fake}'\n"
    for name in two_ssh_hosts.names:
        two_ssh_hosts.run(name, f"cat > /tmp/old <<'END'\n{script}END\nchmod +x /tmp/old")
    text = jobs.home.config.read_text()
    jobs.home.config.write_text(text.replace(json.dumps(sys.executable), '"/tmp/old"'))
    with pytest.raises(BackendError, match=r"version '0.0.1' of smdistributed-open is there"):
        jobs.backend.submit(jobs.create(PRINTS))


def test_the_command_to_try_by_hand_can_be_typed(two_ssh_hosts, tmp_path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    command = SshSettings.of(jobs.home).trial("host-1")
    assert subprocess.run(command, shell=True, stdin=subprocess.DEVNULL).returncode == 0
    text = jobs.home.config.read_text()
    jobs.home.config.write_text(text.replace(json.dumps(sys.executable), '"~/no python/bin"'))
    command = SshSettings.of(jobs.home).trial("host-1")
    outcome = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert f"{Path.home()}/no python/bin" in outcome.stderr


def test_what_a_login_shell_prints_is_no_message(two_ssh_hosts, tmp_path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    names = two_ssh_hosts.names
    try:
        for name in names:
            two_ssh_hosts.run(
                name, "printf 'Welcome to SMD1\\n\\0' > ~/text; echo 'cat ~/text' >> ~/.bashrc"
            )
        assert "Welcome" in two_ssh_hosts.run(names[0], "true")  # else this tests nothing
        assert jobs.ended(jobs.started(PRINTS)).secondary is Secondary.COMPLETED
    finally:
        for name in names:
            two_ssh_hosts.run(name, "rm -f ~/.bashrc ~/text", check=False)


def test_more_hosts_than_machines(two_ssh_hosts, tmp_path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    with pytest.raises(BackendError, match=r"asks for 3 hosts, and ssh\.hosts names 2 machines"):
        jobs.backend.submit(jobs.create(PRINTS, hosts=3))


def test_a_rank_of_another_machine_has_no_terminal_here(two_ssh_hosts, tmp_path) -> None:
    jobs = SshJobs(tmp_path, two_ssh_hosts)
    job = jobs.create(PRINTS)
    record = job.read()
    record.local["debug_rank"] = 0  # type: ignore[index]
    job.write(record)
    with pytest.raises(ConfigurationError, match="of the backend 'ssh'; expected 'local'"):
        jobs.backend.submit(job)


def test_smd_run_ends_with_status_3(bad, two_ssh_hosts, tmp_path) -> None:
    jobs = jobs_on(tmp_path, two_ssh_hosts, bad, "closed", "unknown")
    script = tmp_path / "train.py"
    script.write_text(PRINTS)
    began = time.monotonic()
    outcome = subprocess.run(
        [sys.executable, "-m", "smdistributed.smd.main", "run", "--backend", "ssh", str(script)],
        env={**os.environ, "SMD_HOME": str(jobs.home.root)},
        capture_output=True,
        text=True,
    )
    assert time.monotonic() - began < scaled(KNOWN_S)
    assert outcome.returncode == 3, outcome
    assert "Try by hand: ssh " in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("", "has no ssh.hosts"),
        ('hosts = ["a", "a"]', "each machine once"),
        ('hosts = ["-oProxyCommand=x"]', "names as ssh takes them"),
        ('hosts = ["a b"]', "names as ssh takes them"),
        ('hosts = "a"', "a list of texts"),
        ('hosts = ["a"]\nshared = ["data"]', "absolute paths"),
        ('hosts = ["a"]\nnopython = "x"', "ssh.nopython"),
        ('hosts = ["a"]\naddresses.b = "10.0.0.1"', "names that ssh.hosts has"),
        ('hosts = ["a"]\naddresses.a = "b"', "an IP address"),
    ],
)
def test_settings_that_are_wrong(table: str, said: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.config.write_text(f"[ssh]\n{table}\n")
    with pytest.raises(ConfigurationError, match=said):
        SshSettings.of(home)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
