# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and responses beside the service's own model, as botocore has it.

In processes of their own: botocore lies in `.venv/sdk`, where nothing else finds it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from machine_speed import scaled

from tests.unit.sagemaker.sdk import sdk_folder

# Arguments of an estimator, the class, and those of fit(); each is sent as it is, and what
# describe() says is compared too.
SHAPES = """
import os

from smdistributed.launch.home import Home
from smdistributed.sagemaker.estimator import Estimator
from smdistributed.sagemaker.huggingface import HuggingFace
from smdistributed.sagemaker.inputs import ShuffleConfig, TrainingInput
from smdistributed.sagemaker.instance_group import InstanceGroup
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlow

here = os.getcwd()
with open("train.py", "w") as file:
    file.write("print('loss: 0.5')")
os.makedirs("data", exist_ok=True)
session = Session()
common = dict(
    source_dir=here,
    role="SageMakerRole",
    instance_count=1,
    instance_type="ml.p3.16xlarge",
    sagemaker_session=session,
)
script = dict(common, entry_point="train.py", framework_version="2.0", py_version="py310")
one = {"mpi": {"enabled": True, "processes_per_host": 1}}
shapes = {
    "plain": (PyTorch, script, {}),
    "a URI": (PyTorch, script, {"inputs": f"file://{here}/data"}),
    "all that is kept": (
        PyTorch,
        dict(
            script,
            role=None,
            hyperparameters={"epochs": 3, "lr": 0.1, "name": "x", "none": None},
            distribution=one,
            metric_definitions=[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
            environment={"A": "1", "B": 2},
            checkpoint_s3_uri="s3://kept/a",
            checkpoint_local_path="/opt/ml/checkpoints",
            tags=[{"Key": "a", "Value": "b"}],
            subnets=["subnet-1"],
            security_group_ids=["sg-1"],
            volume_size=50,
            volume_kms_key="v",
            output_kms_key="o",
            output_path=f"file://{here}/out",
            max_run=600,
            max_retry_attempts=2,
            keep_alive_period_in_seconds=60,
            debugger_hook_config={"S3OutputPath": "s3://debug/here"},
            tensorboard_output_config={"S3OutputPath": "s3://boards/here"},
            disable_profiler=True,
            enable_infra_check=True,
            enable_remote_debug=True,
            enable_session_tag_chaining=True,
            encrypt_inter_container_traffic=True,
            training_repository_access_mode="Vpc",
            instance_placement_config={"EnableMultipleJobs": True},
            image_uri="repo/image:1",
            enable_sagemaker_metrics=True,
        ),
        {
            "inputs": {
                "train": TrainingInput(f"file://{here}/data", content_type="text/csv"),
                "test": TrainingInput(
                    f"file://{here}/data",
                    distribution="FullyReplicated",
                    s3_data_type="S3Prefix",
                    input_mode="File",
                ),
            },
            "experiment_config": {"ExperimentName": "a", "TrialName": "b"},
        },
    ),
    "groups": (
        PyTorch,
        {key: value for key, value in script.items() if not key.startswith("instance_")}
        | {"instance_groups": [InstanceGroup("a", "ml.c5.large", 2)]},
        {},
    ),
    "what is not the default": (
        PyTorch,
        dict(script, disable_output_compression=True, input_mode="FastFile"),
        {
            "inputs": {
                "shares": TrainingInput(f"file://{here}/data", distribution="ShardedByS3Key"),
                "shuffled": TrainingInput(
                    f"file://{here}/data", input_mode="File", shuffle_config=ShuffleConfig(1)
                ),
            }
        },
    ),
    "spot": (PyTorch, dict(script, use_spot_instances=True, max_run=600, max_wait=1200), {}),
    "a name": (
        TensorFlow,
        dict(script, framework_version="2.11", py_version="py39"),
        {"job_name": "mine", "logs": "None"},
    ),
    "Hugging Face": (
        HuggingFace,
        {key: value for key, value in script.items() if key != "framework_version"}
        | {"transformers_version": "4.28", "pytorch_version": "2.0"},
        {},
    ),
    "any": (Estimator, dict(common, image_uri="repo/image:1", entry_point="train.py"), {}),
}
"""

RUN = """
import logging, time
from smdistributed.sagemaker import service_model

said = []
class Keep(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("smdistributed").addHandler(Keep())
asked = []
faults = service_model._faults
service_model._faults = lambda values, shape: asked.append(shape.name) or faults(values, shape)

running = []
for name, (kind, arguments, given) in shapes.items():
    estimator = kind(**arguments)
    estimator.fit(wait=False, **given)
    running.append((name, estimator.latest_training_job))
    running[-1][1].describe()
for name, job in running:
    job.wait("None")
    described = job.describe()
    assert described["TrainingJobStatus"] == "Completed", (name, described)
    # Unknown fields count here, where the model is new enough.
    shape = service_model._model("CreateTrainingJob").input_shape
    request = session.job(job.name).read().request
    assert faults(request, shape) == [], (name, faults(request, shape))
assert not [each for each in said if "not like the service's" in each], said
assert asked.count("CreateTrainingJobRequest") == len(shapes), asked
assert asked.count("DescribeTrainingJobResponse") == 2 * len(shapes), asked
"""


def run(folder: Path, code: str, *, with_botocore: bool = True) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SMD_HOME": str(folder / "home")}
    if with_botocore:
        environment["PYTHONPATH"] = str(sdk_folder())
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=scaled(110),
    )


def test_requests_and_responses_are_like_the_services(tmp_path: Path) -> None:
    done = run(tmp_path, SHAPES + RUN)
    assert done.returncode == 0, done.stderr


WRONG = {
    "ResourceConfig.VolumeSizeInGB": {"volume_size": "50"},
    "ResourceConfig.KeepAlivePeriodInSeconds": {"keep_alive_period_in_seconds": -1},
    "Tags[0]": {"tags": [{"Key": "a"}]},
    "VpcConfig.Subnets[0]": {"subnets": [1], "security_group_ids": ["b"]},
    "DebugHookConfig": {"debugger_hook_config": {"LocalPath": "x"}},
}


def test_a_wrong_request_names_the_field(tmp_path: Path) -> None:
    code = f"""
        kind, arguments, given = shapes["plain"]
        for field, changed in {WRONG!r}.items():
            try:
                kind(**dict(arguments, **changed)).fit()
            except ValueError as error:
                assert field in str(error), (field, error)
                assert "is not one that the service's model allows" in str(error), error
            else:
                raise AssertionError(field)
        assert not any(each[0] != "." for each in os.listdir(session.home.jobs))
        assert not os.listdir(session.home.buckets), "nor has it packed anything"
    """
    done = run(tmp_path, SHAPES + textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


def test_a_wrong_response_is_warned_of(tmp_path: Path) -> None:
    code = """
        import logging, sys
        from smdistributed.sagemaker.service_model import check_response
        logging.getLogger("smdistributed").addHandler(logging.StreamHandler(sys.stdout))
        check_response("DescribeTrainingJob", {"TrainingJobName": 5, "Local": {}, "Zebra": 1})
    """
    done = run(tmp_path, textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert "parameter TrainingJobName, value: 5" in done.stdout
    assert '"Zebra"' in done.stdout
    assert '"CreationTime"' in done.stdout
    assert 'Missing required parameter in input: "ModelArtifacts"' not in done.stdout
    assert '"Local", must' not in done.stdout


def test_an_older_model_may_lack_fields(tmp_path: Path) -> None:
    code = """
        from smdistributed.sagemaker.service_model import check_request
        request = {"TrainingJobName": "a", "RoleArn": "r" * 20, "OutputDataConfig":
            {"S3OutputPath": "s3://a"}, "LaterThanThis": 1}
        check_request("CreateTrainingJob", request)
    """
    done = run(tmp_path, textwrap.dedent(code))
    assert done.returncode == 0, done.stderr


def test_without_botocore_nothing_is_compared_and_fit_returns_at_once(tmp_path: Path) -> None:
    code = """
        import json, sys, time
        sys.modules["botocore"] = None  # as if it were not installed
        kind, arguments, given = shapes["plain"]
        estimator = kind(**arguments)
        before = time.monotonic()
        estimator.fit(wait=False)
        took = time.monotonic() - before
        estimator.latest_training_job.wait("None")
        print(json.dumps([took, sys.modules["botocore"] is not None]))
    """
    done = run(tmp_path, SHAPES + textwrap.dedent(code), with_botocore=False)
    assert done.returncode == 0, done.stderr
    took, is_loaded = json.loads(done.stdout)
    assert not is_loaded
    assert took < scaled(1.0)
