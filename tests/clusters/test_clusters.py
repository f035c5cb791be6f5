# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The clusters that tests start: they are what they say, and nothing of them is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_speed import scaled

from tests.clusters import kubernetes_api, ray, slurm, ssh
from tests.clusters.slurm import Slurm
from tests.clusters.ssh import SshHosts

REPOSITORY = Path(__file__).parents[2]

# What is started there must go with the cluster, also what has left its parents.
SLURM_AND_DIE = """
import os
from tests.clusters.slurm import slurm
with slurm(1) as cluster:
    job = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "setsid sleep 4711")
    while not cluster.nodes["n1"].processes("sleep", "4711"):
        pass
    print(cluster.conf, *cluster.nodes["n1"].processes(), flush=True)
    os.kill(os.getpid(), 9)
"""
SSH_AND_DIE = """
import os
from tests.clusters.ssh import ssh_hosts
with ssh_hosts() as hosts:
    hosts.run("host-0", "setsid sleep 4712 </dev/null >/dev/null 2>&1 &")
    print(hosts.config, *hosts.machines["host-0"].processes(), flush=True)
    os.kill(os.getpid(), 9)
"""

KUBERNETES_AND_DIE = """
import json, os, time, urllib.request
from smdistributed.launch.backends.kubernetes.manifests import PodJob, indexed_job, secret
from tests.clusters.kubernetes_api import kubernetes
from tests.clusters.kubernetes_store import JOBS, PODS, SECRETS
with kubernetes(1) as cluster:
    job = PodJob("job", "job", "default", 1, "image", ["bash", "-c", "setsid sleep 4713 & wait"])
    cluster.store.create(JOBS, "default", indexed_job(job))
    cluster.store.create(SECRETS, "default", secret(job, {}))
    while not (pods := cluster.store.select(PODS, "default")[1]) or (
        pods[0]["status"]["phase"] != "Running"
    ):
        time.sleep(0.05)
    pid = cluster.nodes.process_of("default", pods[0]["metadata"]["name"])
    print(cluster.kubeconfig, pid, pid, flush=True)
    os.kill(os.getpid(), 9)
"""
RAY_AND_DIE = """
import os
from tests.clusters.ray import ray
with ray(1) as cluster:
    print(cluster.folder / "there", *cluster.machines["host-0"].processes(), flush=True)
    os.kill(os.getpid(), 9)
"""


def gone(path: Path, pids: list[int]) -> bool:
    until = time.monotonic() + scaled(20)
    while path.exists() or any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_slurm_runs_tasks_on_two_nodes(slurm_cluster: Slurm) -> None:
    said = slurm_cluster.run(
        "srun", "-N2", "--ntasks-per-node=1", "--label", "sh", "-c", "hostname; ps ax | grep -c ps"
    )
    assert {line for line in said.splitlines() if "n" in line} == {"0: n1", "1: n2"}
    until = time.monotonic() + scaled(20)
    while slurm_cluster.jobs():  # the last one completes
        assert time.monotonic() < until, slurm_cluster.jobs()
        time.sleep(0.02)


def test_a_node_that_is_switched_off_takes_its_tasks_along() -> None:
    require(slurm.why_not())
    with slurm.slurm(2) as cluster:
        cluster.run("sbatch", "-N1", "-wn2", "-o/dev/null", "--wrap", "exec sleep 100")
        node = cluster.nodes["n2"]
        while not node.processes("sleep", "100"):
            time.sleep(0.02)
        pids = node.processes()
        node.power_off()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert [each["job_state"] for each in cluster.jobs()] == ["RUNNING"]  # nobody was told


def test_hosts_with_ssh_share_no_temporary_files(two_ssh_hosts: SshHosts, tmp_path: Path) -> None:
    for name in two_ssh_hosts.names:
        assert two_ssh_hosts.run(name, "hostname") == f"{name}\n"
        assert two_ssh_hosts.run(name, f"test -e {tmp_path} || echo none") == "none\n"
        two_ssh_hosts.run(name, "touch ~/left /tmp/left")
        other = next(each for each in two_ssh_hosts.names if each != name)
        assert two_ssh_hosts.run(other, "ls ~ /tmp | grep -c left || true") == "0\n"
        two_ssh_hosts.run(name, "rm ~/left /tmp/left")
    assert not Path("/tmp/left").exists()
    assert not (Path.home() / "left").exists()


def test_hosts_with_ssh_have_this_package_and_reach_one_another(two_ssh_hosts: SshHosts) -> None:
    first, second = two_ssh_hosts.names
    address = two_ssh_hosts.links[second].address
    said = two_ssh_hosts.run(
        first,
        f"{sys.executable} -P -c 'import smdistributed, socket;"
        f' print(socket.create_connection(("{address}", 22)).recv(4))\'',
    )
    assert said == "b'SSH-'\n"


@pytest.mark.parametrize(
    ("why_not", "script"),
    [
        (slurm.why_not, SLURM_AND_DIE),
        (ssh.why_not, SSH_AND_DIE),
        (kubernetes_api.why_not, KUBERNETES_AND_DIE),
        pytest.param(ray.why_not, RAY_AND_DIE, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_when_the_maker_is_killed(why_not, script) -> None:
    require(why_not())
    outcome = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert outcome.returncode == -signal.SIGKILL
    path, *pids = outcome.stdout.split()
    assert len(pids) >= 2
    assert gone(Path(path).parent, list(map(int, pids)))


def test_slurm_for_a_person_ends_with_ctrl_c() -> None:
    require(slurm.why_not())
    with process("--nodes", "1") as here:
        assert here.stdout is not None
        line = next(line for line in here.stdout if "export SLURM_CONF=" in line)
        conf = Path(line.strip().removeprefix("export SLURM_CONF="))
        environ = {**os.environ, "SLURM_CONF": str(conf)}
        said = subprocess.run(
            ["srun", "hostname"], env=environ, check=True, capture_output=True, text=True
        ).stdout
        assert said == "n1\n"
        here.send_signal(signal.SIGINT)
        assert here.wait(scaled(20)) == 0
    assert not conf.parent.exists()


@contextlib.contextmanager
def process(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.clusters.slurm", *options]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def require(reason: str | None) -> None:
    if reason is not None:
        pytest.skip(reason)
