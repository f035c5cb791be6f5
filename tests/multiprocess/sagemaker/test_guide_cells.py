# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The published guides' estimators, with their arguments as they stand, as an ordinary user.

Of the developer guide's page on the data parallel library's API (TensorFlow and PyTorch), and of
the SDK's page on model parallelism (PyTorch). The pages show no training script, so there is a
small one of ours in its place. It imports no framework, but for one job: eight ranks do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.agent.mounts import Step
from tests.multiprocess.sagemaker.ordinary_user import NOBODY, command_of_nobody
from tests.packages import require

ROOT = Path(__file__).parents[3]

_DATA_PARALLEL = {"smdistributed": {"dataparallel": {"enabled": True}}}

# What the page says, and nothing else: class, arguments, and the data of fit().
CELLS: dict[str, tuple[str, dict[str, Any], str]] = {
    "TensorFlow data parallel": (
        "TensorFlow",
        {
            "base_job_name": "training_job_name_prefix",
            "entry_point": "tf-train.py",
            "role": "SageMakerRole",
            "framework_version": "2.3",
            "py_version": "py36",
            "instance_count": 1,
            "instance_type": "ml.p3.16xlarge",
            "distribution": _DATA_PARALLEL,
        },
        "s3://bucket/path/to/training/data",
    ),
    "PyTorch data parallel": (
        "PyTorch",
        {
            "base_job_name": "training_job_name_prefix",
            "entry_point": "pt-train.py",
            "role": "SageMakerRole",
            "py_version": "py36",
            "framework_version": "1.6.0",
            "instance_count": 1,
            "instance_type": "ml.p3.16xlarge",
            "distribution": _DATA_PARALLEL,
        },
        "s3://bucket/path/to/training/data",
    ),
    "PyTorch model parallel": (
        "PyTorch",
        {
            "entry_point": "training-script.py",
            "source_dir": "utils",
            "role": "<role>",
            "instance_type": "ml.p3.16xlarge",
            "sagemaker_session": "<session>",
            "framework_version": "1.6.0",
            "py_version": "py3",
            "instance_count": 1,
            "distribution": {
                "smdistributed": {
                    "modelparallel": {
                        "enabled": True,
                        "parameters": {
                            "microbatches": 4,
                            "placement_strategy": "spread",
                            "pipeline": "interleaved",
                            "optimize": "speed",
                            "partitions": 2,
                            "ddp": True,
                        },
                    }
                },
                "mpi": {
                    "enabled": True,
                    "processes_per_host": 8,
                    "custom_mpi_options": "--mca btl_vader_single_copy_mechanism none ",
                },
            },
            "base_job_name": "SMD-MP-demo",
        },
        "s3://my_bucket/my_training_data/",
    ),
}

NOTEBOOK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import smdistributed_sagemaker_alias  # so that the imports are the pages' own
import sagemaker
from sagemaker.pytorch import PyTorch
from sagemaker.tensorflow import TensorFlow

kind, arguments, data = json.loads(sys.argv[2])
os.environ["PATH"] = sys.argv[3]
bucket, _, key = data.removeprefix("s3://").partition("/")
folder = os.path.expanduser(f"~/.smdistributed/buckets/{bucket}/{key}")
os.makedirs(folder, mode=0o700)
open(os.path.join(folder, "images"), "w").close()
known = {
    "<role>": sagemaker.get_execution_role,
    "<session>": lambda: sagemaker.session.Session(boto_session=object()),
}
arguments = {
    name: known[value]() if value in ("<role>", "<session>") else value
    for name, value in arguments.items()
}
estimator = {"PyTorch": PyTorch, "TensorFlow": TensorFlow}[kind](**arguments)
estimator.fit(data)
job = estimator.latest_training_job
events = sagemaker.Session().job(job.name).events()
(step,) = [(event["step"], event["why"]) for event in events if event.get("event") == "opt-ml"]
print("RESULT", json.dumps([os.getuid(), job.name, estimator.model_data, *step]))
"""

SMALL = """
import json, os, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert os.listdir(os.environ["SM_CHANNEL_TRAINING"]) == ["images"]
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("RANK", json.dumps([rank, size, os.environ["LOCAL_RANK"], arguments]))
if rank == 0:
    os.mkdir(os.environ["SM_MODEL_DIR"] + "/1")
    with open(os.environ["SM_MODEL_DIR"] + "/1/saved_model.pb", "w") as file:
        file.write("weights")
"""

REAL = """
import torch
import torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
value = torch.ones(3)
dist.all_reduce(value)
assert value.tolist() == [dist.get_world_size()] * 3, value
dist.destroy_process_group()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty home, in a place that others may enter, unlike pytest's own folders."""
    path = Path(tempfile.mkdtemp(prefix="smd-home-"))
    if os.getuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def run_cell(
    home: Path, name: str, hosts: int, script: str, programs: str = os.environ["PATH"]
) -> tuple[str, str, list[Any]]:
    """What is printed, and said beside it; and the notebook's result.

    Args:
        programs: where the job finds other programs: its PATH.
    """
    kind, arguments, data = CELLS[name]
    work = home / "work"
    source = work / arguments.get("source_dir", ".")
    source.mkdir(parents=True)
    (source / arguments["entry_point"]).write_text(textwrap.dedent(script))
    cell = json.dumps([kind, {**arguments, "instance_count": hosts}, data])
    alias = str(ROOT / "packages" / "sagemaker-alias")
    command = command_of_nobody(["-c", NOTEBOOK, alias, cell, programs])
    # A user's own variables, and no others: nothing of this test run.
    done = subprocess.run(
        command,
        cwd=work,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=scaled(110),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    (result,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    return done.stdout, done.stderr, json.loads(result.removeprefix("RESULT"))


def ranks_in(printed: str) -> list[list[Any]]:
    lines = [line.partition("RANK ")[2] for line in printed.splitlines() if "RANK " in line]
    return sorted(json.loads(line) for line in lines)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_trains(home: Path, name: str, hosts: int) -> None:
    is_real = name == "PyTorch data parallel" and hosts == 1
    if is_real:
        require("torch")
    printed, said, result = run_cell(home, name, hosts, SMALL + (REAL if is_real else ""))
    uid, job, model, step, _ = result
    assert uid == (NOBODY if os.getuid() == 0 else os.getuid())
    # Eight GPUs are what the type names, and eight processes what mpi asks for.
    ranks = ranks_in(printed)
    assert [rank[:3] for rank in ranks] == [
        [rank, 8 * hosts, str(rank % 8)] for rank in range(8 * hosts)
    ]
    given = ranks[0][3]
    if name.startswith("TensorFlow"):
        assert given["--model_dir"].endswith("/model")
        assert job.startswith("training-job-name-prefix-20"), "a name has no underscores"
    elif name.endswith("model parallel"):
        assert job.startswith("SMD-MP-demo-20")
        parameters = dict(each.split("=") for each in given["--mp_parameters"].split(","))
        assert parameters["partitions"] == "2"
        assert parameters["placement_strategy"] == "spread"
    else:
        assert given == {}
    assert model == f"s3://sagemaker-us-east-1-000000000000/{job}/output/model.tar.gz"
    # /opt/ml is the user's own if the system lets users make namespaces; else the log says so.
    assert step in (Step.USER_NAMESPACE.name, Step.NONE.name)
    assert "Error" not in said
    for line in said.splitlines():
        assert "framework_version is" in line, f"nothing else is worth a warning: {line}"


def test_without_namespaces_the_next_step_is_taken(home: Path) -> None:
    script = SMALL + "\nassert not os.path.isdir('/opt/ml')  # /opt/ml\n"
    printed, _, result = run_cell(home, "PyTorch data parallel", 1, script, programs="")
    assert result[3:] == [Step.NONE.name, "there is no command unshare (of util-linux)"]
    assert len(ranks_in(printed)) == 8
    assert "/opt/ml" in printed.partition("RANK")[0], "the log says which lines name it"
