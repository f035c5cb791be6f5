# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What clusters say of themselves, to who asks before a job is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from smdistributed.launch.backends.answers import answers
from smdistributed.launch.home import Home
from tests.clusters.kubernetes_api import Kubernetes
from tests.clusters.ray import Ray
from tests.clusters.slurm import Slurm


def test_slurm(slurm_cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    said = answers("slurm", Home(tmp_path))["slurm"]
    assert "all* up: 2 nodes" in said or "all* up: 1 nodes" in said  # others may have a job there


@pytest.mark.slow
def test_ray(ray_cluster: Ray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_cluster.address)
    said = answers("ray", Home(tmp_path))["ray"]
    assert said.startswith("Ray 2.")
    assert said.endswith(f"answers at {ray_cluster.address}")


def test_kubernetes(
    kubernetes_cluster: Kubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_cluster.kubeconfig))
    home = Home(tmp_path)
    home.config.write_text('[kubernetes]\nimage = "train:1"\n')
    said = answers("kubernetes", home)["kubernetes"]
    assert "namespace" in said
    assert "TrainJob" in said or "Indexed Job" in said
