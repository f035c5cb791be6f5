# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smd cluster up --ray` and `smd cluster down`, with real Ray on machines with SSH servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.ray.node import MARK
from tests.clusters.machine import Machine
from tests.clusters.ray import why_not
from tests.clusters.ssh import SshHosts, ssh_hosts

TRAIN = """
import os
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
assert not any("RAY_AUTH" in name for name in os.environ)
"""
# Of tests: small, and the port that another test's cluster has is on other machines.
SMALL = ("-o", "--num-cpus=2", "-o", "--object-store-memory=100000000")


class Smd:
    """Who starts clusters, on machines of its own.

    Attributes:
        hosts: the machines.
        folder: with the home.
    """

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.refused = folder / "refused"
        client = folder / "ssh"  # does as if the machine that a file names did not answer
        client.write_text(
            "#!/bin/sh\n"
            f'for each in "$@"; do [ "$each" = "$(cat {self.refused} 2>/dev/null)" ] &&'
            ' { echo "no route" >&2; exit 255; }; done\n'
            f'exec {shutil.which("ssh")} -F {shlex.quote(str(hosts.config))} "$@"\n'
        )
        client.chmod(0o755)
        self.environ = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("SMD_", "RAY_", "PYTEST"))
        }
        self.environ["SMD_HOME"] = str(folder / "home")
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[ssh]\ncommand = ["{client}"]\n[ray]\npython = "{sys.executable}"\n'
        )
        (folder / "train.py").write_text(TRAIN)

    def __call__(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "smdistributed.smd.main", *words],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(100),
        )
        text = done.stdout + done.stderr
        assert done.returncode == status, text
        assert "Traceback" not in done.stderr
        return text

    def of_ours(self) -> dict[str, list[int]]:
        """By machine, the processes that have the mark."""
        return {name: with_mark(machine) for name, machine in self.hosts.machines.items()}

    def require_nothing(self) -> None:
        assert self.of_ours() == {"host-0": [], "host-1": []}
        for name in self.hosts.names:
            assert "smd-ray" not in self.hosts.run(name, "ls /tmp")
        kept = {path.name for path in (self.folder / "home" / "cluster").iterdir()}
        assert kept == {"lock"}


def with_mark(machine: Machine) -> list[int]:
    found = []
    for pid in machine.processes():
        with contextlib.suppress(OSError):
            if f"{MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


@pytest.fixture
def smd(tmp_path: Path) -> Iterator[Smd]:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ssh_hosts() as hosts:
        yield Smd(hosts, tmp_path)


def start_another(hosts: SshHosts, name: str) -> list[int]:
    """A Ray of somebody else's on a machine. Returns: its processes."""
    machine, address = hosts.machines[name], hosts.links[name].address
    command = ["ray", "start", "--head", "--port=6400", "--include-dashboard=false"]
    command += [f"--node-ip-address={address}", "--no-monitor", "--disable-usage-stats"]
    command += ["--num-cpus=1", "--object-store-memory=100000000"]
    command[0] = str(Path(sys.executable).parent / "ray")
    environ = {"PATH": os.environ["PATH"], "HOME": str(Path.home())}
    subprocess.run(
        machine.command(command), cwd="/", env=environ, check=True, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=scaled(90),
    )  # fmt: skip
    return [pid for pid in machine.processes() if "ray" in command_of(pid)]


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.timeout(240)
def test_up_a_job_and_down_beside_another_ray(smd: Smd) -> None:
    others = start_another(smd.hosts, "host-1")
    assert others
    current = smd.hosts.run("host-1", "cat /tmp/ray/ray_current_cluster")

    said = smd("cluster", "up", "--ray", "host-0", "host-1", *SMALL)
    assert "The cluster is up, with 2 nodes" in said
    exports = dict(re.findall(r"export (RAY_\w+)=(\S+)", said))
    address = exports["RAY_ADDRESS"]
    assert address == f"http://{smd.hosts.links['host-0'].address}:8265"
    assert all(smd.of_ours().values())
    for path in (smd.folder / "home" / "cluster").iterdir():
        assert path.stat().st_mode & 0o077 == 0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{address}/api/jobs/", timeout=scaled(20))

    stranger = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False)"
    head = f"{smd.hosts.links['host-0'].address}:6379"
    done = subprocess.run(
        smd.hosts.machines["host-1"].command([sys.executable, "-c", stranger, head]),
        cwd="/", env={"PATH": os.environ["PATH"], "HOME": str(Path.home())}, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=scaled(60),
    )  # fmt: skip
    assert done.returncode != 0
    assert "uthentication" in done.stderr, done.stderr

    assert "The cluster is up already" in smd("cluster", "up", "--ray", "host-0", "host-1")
    assert "smd cluster down" in smd("cluster", "up", "--ray", "host-1", status=2)

    smd.environ |= exports
    (home := smd.folder / "home" / "config.toml").write_text(
        home.read_text().replace("python =", "# python =")  # `python` there is that of Ray
    )
    told = smd("run", "--backend", "ray", "--instance-count", "2", "--data-parallel", "train.py")
    for rank in range(2):
        assert f"rank {rank} of 2" in told

    assert "The cluster is down" in smd("cluster", "down")
    smd.require_nothing()
    assert all(command_of(pid) for pid in others)
    assert smd.hosts.run("host-1", "cat /tmp/ray/ray_current_cluster") == current
    assert "No cluster was started" in smd("cluster", "down")


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.timeout(240)
def test_a_machine_that_does_not_answer_is_ended_later(smd: Smd) -> None:
    smd("cluster", "up", "--ray", "host-0", "host-1", *SMALL)
    smd.refused.write_text("host-1")
    said = smd("cluster", "down", status=3)
    assert "Ray may still run on host-1" in said
    assert "no route" in said
    assert smd.of_ours()["host-0"] == []
    assert smd.of_ours()["host-1"]
    assert "smd cluster down" in smd("cluster", "up", "--ray", "host-1", status=3)
    smd.refused.unlink()
    smd("cluster", "down")
    smd.require_nothing()


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.timeout(240)
def test_what_was_started_is_ended_if_another_machine_cannot_be(smd: Smd) -> None:
    """The second one has a port in use of which nobody has asked it."""
    machine = smd.hosts.machines["host-1"]
    listen = "import socket, time; s = socket.create_server(('', 7001)); print(1, flush=True);"
    with subprocess.Popen(
        machine.command([sys.executable, "-c", listen + "time.sleep(600)"]), stdout=subprocess.PIPE
    ) as taken:
        assert taken.stdout is not None
        taken.stdout.readline()
        said = smd(
            *("cluster", "up", "--ray", "host-0", "host-1", *SMALL),
            *("-o", "--node-manager-port=7001", "--timeout", str(scaled(60))),
            status=3,
        )
        taken.kill()
    assert "host-1" in said
    assert "What was started was ended." in said
    smd.require_nothing()


@pytest.mark.slow
@pytest.mark.fresh
def test_a_port_of_the_head_that_is_taken(smd: Smd) -> None:
    said = smd("cluster", "up", "--ray", "host-0", "--dashboard-port", "22", status=3)
    address = smd.hosts.links["host-0"].address
    assert f"host-0: port 22 of {address} cannot be used: Address already in use" in said
    assert json.loads(smd("jobs", "--json")) == []
    smd.require_nothing()


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_who_is_ended_meanwhile_leaves_nothing(smd: Smd, number: int) -> None:
    """After Ctrl-C at once; after SIGKILL with the next `down`, which knows of all of it."""
    command = [sys.executable, "-m", "smdistributed.smd.main", "cluster", "up", "--ray", "host-0"]
    with subprocess.Popen(
        [*command, *SMALL], env=smd.environ, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "Ray starts" in line)
        until = time.monotonic() + scaled(30)
        while not smd.hosts.machines["host-0"].processes("gcs_server"):
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(number)
        status = process.wait(scaled(60))
    if number == signal.SIGINT:
        assert status == 130
    else:
        assert "was never complete" in smd("cluster", "up", "--ray", "host-0", status=3)
        assert "The cluster is down" in smd("cluster", "down")
    smd.require_nothing()
