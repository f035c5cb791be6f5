# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Each row of the table of launch specification, section 7.2, on one host and on two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import Hyperparameters
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.resources import InstanceGroup, Resources, host_names
from smdistributed.launch.contract.variables import (
    Machine,
    Script,
    training_environment,
    variables,
)

P4D = "ml.p4d.24xlarge"
# The master is the first host of the group, and not of the sorted list.
TWO = Resources("algo-1", (InstanceGroup("homogeneousCluster", P4D, ("algo-2", "algo-1")),))
ONE = Resources("algo-1", (InstanceGroup("homogeneousCluster", "local", ("algo-1",)),))
SCRIPT = Script(
    "train.py",
    "s3://bucket/job/source/sourcedir.tar.gz",
    "sagemaker_pytorch_container.training:main",
    "job-1",
    region="eu-west-1",
    torch_version="2.13.0",
)
CHANNELS = {
    "train": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"},
    "my-data": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated"},
}
HYPERPARAMETERS = Hyperparameters.of(
    {
        "batch-size": 64,
        "lr": 0.1,
        "name": "x y",
        "sagemaker_distributed_dataparallel_enabled": True,
        "sagemaker_program": "train.py",
    }
)


def of(resources: Resources = TWO, **changed: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "paths": Paths(),
        "resources": resources,
        "hyperparameters": HYPERPARAMETERS,
        "channels": CHANNELS,
        "script": SCRIPT,
        "machine": Machine(num_cpus=4),
    }
    return variables(**{**values, **changed})


GROUP = (
    '{"hosts":["algo-2","algo-1"],"instance_group_name":"homogeneousCluster",'
    '"instance_type":"ml.p4d.24xlarge"}'
)
ROWS = {
    "SM_MODEL_DIR": "/opt/ml/model",
    "SM_OUTPUT_DIR": "/opt/ml/output",
    "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
    "SM_OUTPUT_INTERMEDIATE_DIR": "/opt/ml/output/intermediate",
    "SM_INPUT_DIR": "/opt/ml/input",
    "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
    "SM_CHANNELS": '["my-data","train"]',
    "SM_CHANNEL_TRAIN": "/opt/ml/input/data/train",
    "SM_CHANNEL_MY-DATA": "/opt/ml/input/data/my-data",
    "SM_HPS": '{"batch-size":64,"lr":0.1,"name":"x y"}',
    "SM_HP_BATCH-SIZE": "64",
    "SM_HP_LR": "0.1",
    "SM_HP_NAME": "x y",
    "SM_USER_ARGS": '["--batch-size","64","--lr","0.1","--name","x y"]',
    "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled":true}',
    "SM_HOSTS": '["algo-1","algo-2"]',
    "SM_CURRENT_HOST": "algo-1",
    "SM_CURRENT_INSTANCE_TYPE": P4D,
    "SM_CURRENT_INSTANCE_GROUP": "homogeneousCluster",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS": '["algo-2","algo-1"]',
    "SM_INSTANCE_GROUPS": '["homogeneousCluster"]',
    "SM_INSTANCE_GROUPS_DICT": '{"homogeneousCluster":' + GROUP + "}",
    "SM_DISTRIBUTION_INSTANCE_GROUPS": '["homogeneousCluster"]',
    "SM_IS_HETERO": "false",
    "SM_NUM_GPUS": "0",
    "SM_NUM_CPUS": "4",
    "SM_NUM_NEURONS": "0",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
    "SM_RESOURCE_CONFIG": (
        '{"current_group_name":"homogeneousCluster","current_host":"algo-1",'
        '"current_instance_type":"ml.p4d.24xlarge","hosts":["algo-1","algo-2"],'
        '"instance_groups":[' + GROUP + '],"network_interface_name":"eth0"}'
    ),
    "SM_INPUT_DATA_CONFIG": (
        '{"my-data":{"S3DistributionType":"FullyReplicated","TrainingInputMode":"File"},'
        '"train":{"S3DistributionType":"FullyReplicated","TrainingInputMode":"File"}}'
    ),
    "SM_MODULE_NAME": "train",
    "SM_MODULE_DIR": "s3://bucket/job/source/sourcedir.tar.gz",
    "SM_USER_ENTRY_POINT": "train.py",
    "SM_FRAMEWORK_MODULE": "sagemaker_pytorch_container.training:main",
    "SM_LOG_LEVEL": "20",
    "SM_DLC_TORCH_VERSION": "2.13.0",
    "TRAINING_JOB_NAME": "job-1",
    "TRAINING_JOB_ARN": "arn:aws:sagemaker:eu-west-1:000000000000:training-job/job-1",
    "AWS_REGION": "eu-west-1",
    "SAGEMAKER_REGION": "eu-west-1",
    "SAGEMAKER_JOB_NAME": "job-1",
    "CURRENT_HOST": "algo-1",
    "SAGEMAKER_PROGRAM": "train.py",
    "SAGEMAKER_SUBMIT_DIRECTORY": "s3://bucket/job/source/sourcedir.tar.gz",
    "MASTER_ADDR": "algo-2",
    "MASTER_PORT": "7777",
    "NCCL_SOCKET_IFNAME": "eth0",
    "SAGEMAKER_BASE_DIR": "/opt/ml",
}


@pytest.mark.parametrize(("name", "text"), ROWS.items())
def test_the_table(name: str, text: str) -> None:
    assert of()[name] == text


def test_there_is_nothing_else() -> None:
    assert set(of()) == {*ROWS, "SM_TRAINING_ENV"}


def test_the_training_environment_has_everything() -> None:
    known = json.loads(of()["SM_TRAINING_ENV"])
    assert known == training_environment(
        Paths(), TWO, HYPERPARAMETERS, CHANNELS, SCRIPT, Machine(num_cpus=4)
    )
    assert known["additional_framework_parameters"] == HYPERPARAMETERS.framework
    assert known["hyperparameters"] == HYPERPARAMETERS.user
    assert known["job_name"] == "job-1"
    assert (known["is_master"], known["master_hostname"]) == (False, "algo-2")
    for name in ("hosts", "model_dir", "num_cpus", "resource_config", "user_entry_point"):
        assert name in known


def test_one_host_without_a_distribution() -> None:
    found = of(ONE, hyperparameters=Hyperparameters.of({}), channels={})
    assert found["SM_DISTRIBUTION_INSTANCE_GROUPS"] == "[]"
    assert found["SM_FRAMEWORK_PARAMS"] == found["SM_HPS"] == "{}"
    assert found["SM_USER_ARGS"] == found["SM_CHANNELS"] == "[]"
    assert found["MASTER_ADDR"] == "algo-1"
    assert json.loads(found["SM_TRAINING_ENV"])["is_master"] is True


def test_several_groups_of_which_one_trains() -> None:
    groups = (
        InstanceGroup("readers", "ml.c5.large", host_names(2)),
        InstanceGroup("trainers", P4D, host_names(2, first=3)),
    )
    framework = {"sagemaker_distribution_instance_groups": ["trainers"]}
    found = of(Resources("algo-4", groups), hyperparameters=Hyperparameters.of(framework))
    assert found["SM_IS_HETERO"] == "true"
    assert found["SM_INSTANCE_GROUPS"] == '["readers","trainers"]'
    assert found["SM_DISTRIBUTION_INSTANCE_GROUPS"] == '["trainers"]'
    assert found["SM_CURRENT_INSTANCE_GROUP"] == "trainers"
    assert found["MASTER_ADDR"] == "algo-3"


def test_a_distribution_over_a_group_that_is_not_there() -> None:
    framework = {"sagemaker_distribution_instance_groups": ["others"]}
    with pytest.raises(ConfigurationError, match="no instance group 'others'; expected one of: h"):
        of(hyperparameters=Hyperparameters.of(framework))


def test_the_layout_may_lie_elsewhere(tmp_path: Path) -> None:
    found = of(paths=Paths(tmp_path))
    assert found["SM_CHANNEL_TRAIN"] == str(tmp_path / "input/data/train")
    assert not [name for name, text in found.items() if "/opt/ml" in text]


def test_topology_only_where_there_is_one() -> None:
    assert of(TWO._replace(topology={"racks": 2}))["SM_TOPOLOGY"] == '{"racks":2}'


def test_other_frameworks_have_no_version_of_torch() -> None:
    assert "SM_DLC_TORCH_VERSION" not in of(script=SCRIPT._replace(torch_version=None))


@pytest.mark.parametrize("text", ["$(id)", "a\nb", "'\"", "", "ä😀", "x" * 60_000])
def test_a_process_finds_them_unchanged(text: str) -> None:
    key = "odd $name\n-x"
    found = of(hyperparameters=Hyperparameters.of({key: text}))
    program = "import os, json; print(json.dumps(dict(os.environ)))"
    output = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONUTF8": "1", **found},
        capture_output=True,
        check=True,
    ).stdout
    there = json.loads(output)
    assert {name: there.get(name) for name in found} == found
    assert there["SM_HP_ODD $NAME\n-X"] == text


def test_what_no_process_can_be_given_is_refused_by_name() -> None:
    too_long = Hyperparameters.of({"short": 1, "prompt": "x" * 140_000})
    with pytest.raises(ConfigurationError, match=r"variable SM_HPS .*the longest is 'prompt'"):
        of(hyperparameters=too_long)
    limit = os.sysconf("SC_PAGE_SIZE") * 32
    assert limit == 128 << 10, "the limit of the kernel is 32 pages"


def test_names_that_differ_in_case_are_the_same_on_every_host() -> None:
    for order in ({"lr": 1, "LR": 2}, {"LR": 2, "lr": 1}):
        assert of(hyperparameters=Hyperparameters.of(order))["SM_HP_LR"] == "1"
