# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ray's nodes as tests have them: separate machines of one cluster, that take jobs from here."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from tests.clusters.ray import Ray, ray, why_not


def asked(cluster: Ray, path: str, body: dict[str, Any] | None = None) -> Any:
    """Its Jobs API, as any client asks it."""
    request = urllib.request.Request(
        f"{cluster.address}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
        return json.load(answer)


def test_a_job_runs_on_machines_that_share_no_temporary_files(
    ray_cluster: Ray, tmp_path: Path
) -> None:
    assert ray_cluster.nodes_alive() == 2
    command = f"ls {tmp_path} /tmp; hostname; env; {sys.executable} -c 'import smdistributed'"
    job = asked(ray_cluster, "/api/jobs/", {"entrypoint": command})["submission_id"]
    until = time.monotonic() + scaled(60)
    while (told := asked(ray_cluster, f"/api/jobs/{job}"))["status"] in ("PENDING", "RUNNING"):
        assert time.monotonic() < until
        time.sleep(0.1)
    logs = asked(ray_cluster, f"/api/jobs/{job}/logs")["logs"]
    assert told["status"] == "SUCCEEDED", logs
    assert f"cannot access '{tmp_path}'" in logs
    assert "host-0" in logs
    assert "PYTEST" not in logs  # none of our variables


@pytest.mark.slow
def test_a_node_can_be_lost_and_come_back() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with ray() as cluster:
        cluster.kill_raylet("host-1")
        cluster.wait_for_nodes(1)
        again = cluster.start_node("host-1")
        assert again.wait(scaled(60)) == 0, cluster.logs()
        cluster.wait_for_nodes(2)
        cluster.machines["host-1"].power_off()
        cluster.wait_for_nodes(1)


@pytest.mark.slow
def test_ray_for_a_person_ends_with_sigterm() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.clusters.ray", "--nodes", "1"]
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as here:
        assert here.stdout is not None
        line = next(line for line in here.stdout if "export RAY_ADDRESS=" in line)
        address = line.strip().removeprefix("export RAY_ADDRESS=")
        with urllib.request.urlopen(f"{address}/api/version", timeout=scaled(60)) as answer:
            assert json.load(answer)["ray_version"]
        here.terminate()
        assert here.wait(scaled(20)) == 0
    network = address.removeprefix("http://").rpartition(".")[0]
    assert network not in subprocess.check_output(["ip", "route"], text=True)
