# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table `kubernetes` of the settings."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.kubernetes import settings as module
from smdistributed.launch.backends.kubernetes.manifests import Claim
from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings
from smdistributed.launch.home import Home


def settings_of(tmp_path: Path, text: str) -> KubernetesSettings:
    home = Home(tmp_path)
    home.config.write_text(text)
    return KubernetesSettings.of(home)


def test_the_example_of_the_module_is_read(tmp_path: Path) -> None:
    assert module.__doc__ is not None
    example = re.findall(r"^    (.*)$", module.__doc__, re.M)
    found = settings_of(tmp_path, "\n".join(example))
    assert found.claims == (
        Claim("fsx-claim", PurePosixPath("/mnt/fsx"), is_read_only=False),
        Claim("data-claim", PurePosixPath("/mnt/data"), is_read_only=True),
    )
    assert found.shared == [Path("/mnt/fsx"), Path("/mnt/data")]
    job = found.pod_job(name="smd-j", job="j", namespace="n", hosts=2, module=["a.b", "c"])
    assert job.command == ["python", "-P", "-m", "a.b", "c"]
    assert job.resources == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}
    assert job.tolerations == ({"key": "nvidia.com/gpu", "operator": "Exists"},)
    assert job.labels == {"kueue.x-k8s.io/queue-name": "queue"}
    assert (job.image, job.service_account) == ("registry.example/training:1", "trainer")


def test_little_is_enough(tmp_path: Path) -> None:
    found = settings_of(tmp_path, '[kubernetes]\nimage = "i"\n')
    job = found.pod_job(name="smd-j", job="j", namespace="n", hosts=1, module=["m"])
    assert not job.resources
    assert not job.claims


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no image"),
        ('imge = "i"', "kubernetes.imge in .* is a key that nobody knows"),
        ('image = ""', "names no image"),
        ("image = 1", "kubernetes.image in .* is 1; expected text"),
        ("cpus_per_host = -1", "cpus_per_host in .* is -1; expected a whole number from 0"),
        ("gpus_per_host = true", "gpus_per_host in .* is True; expected a whole number"),
        ('pull_secrets = "one"', "expected a list of texts"),
        ('image = "i"\nclaims = ["a"]', "expected a table whose values are texts"),
        ('image = "i"\nclaims = {"mnt" = "a"}', "has 'mnt' = 'a'; expected an absolute path"),
        ('image = "i"\nclaims = {"/a/../b" = "a"}', "expected an absolute path"),
        ('image = "i"\nclaims = {"/mnt" = ":ro"}', "has '/mnt' = ':ro'"),
        ('image = "i"\nclaims = {"/mnt" = "a:rw"}', "has '/mnt' = 'a:rw'"),
        ('tolerations = ["a"]', "expected a list of tables"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        settings_of(tmp_path, f"[kubernetes]\n{text}\n")
