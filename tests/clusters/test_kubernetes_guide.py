# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/kubernetes.md, as they stand there, on the stand-in.

Not run: the first one, which installs what is here; and kubectl, which tells its token over TLS
alone, and the stand-in has none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings
from smdistributed.launch.home import Home
from tests.clusters.kubernetes_api import Kubernetes

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()

TRAIN = """
import os
print("here is", os.environ["SM_CURRENT_HOST"], "of", os.environ["SM_HOSTS"], flush=True)
"""


def commands() -> list[str]:
    (block,) = re.findall(r"## From zero.*?```bash\n(.*?)```", PAGE, re.DOTALL)
    return [re.sub(r"\s+# \d.*", "", line) for line in block.splitlines()]


@pytest.mark.fresh
def test_commands(kubernetes_cluster: Kubernetes, tmp_path: Path) -> None:
    install, *rest = commands()
    assert install == "pip install 'smdistributed-open[launch,kubernetes]'"
    assert len(rest) == 4
    rest = [each for each in rest if not each.startswith("kubectl")]
    (tmp_path / "train.py").write_text(TRAIN)
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SMD_")}
    environ |= {"HOME": str(tmp_path), "KUBECONFIG": str(kubernetes_cluster.kubeconfig)}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", "\n".join(rest)],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for host in ("algo-1", "algo-2"):
        assert f'here is {host} of ["algo-1","algo-2"]' in done.stdout.replace(", ", ",")
    settings = KubernetesSettings.of(Home(tmp_path / ".smdistributed"))
    assert (settings.image, settings.namespace) == ("REGISTRY/train:1", "team")
