# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the description of a job says: its estimator's arguments, its model, its sources.

Source: launch specification, sections 6.1, 9 and 10.1.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed.launch.contract.hyperparameters import decode
from smdistributed.launch.data.buckets import local_copy
from smdistributed.launch.home import Home
from smdistributed.launch.storage import TEMPORARY
from smdistributed.sagemaker.instance_group import InstanceGroup

__all__ = ["arguments_of", "model_of", "require_model", "sources_with"]

# Hyperparameters that fit() sets. Others of such a name are the user's: the SDK's line 1.x had no
# other word for a distribution than sagemaker_distributed_dataparallel_enabled.
_OF_EVERY_JOB = (
    "sagemaker_program",
    "sagemaker_submit_directory",
    "sagemaker_container_log_level",
    "sagemaker_job_name",
    "sagemaker_region",
)


def model_of(described: Mapping[str, Any]) -> str | dict[str, Any] | None:
    """The URI of the model that a job has made; None if there is none.

    With `disable_output_compression` it is a dict, `{"S3DataSource": {"S3Uri": ...}}`.
    """
    artifacts: Mapping[str, str] = described.get("ModelArtifacts", {})
    uri = artifacts.get("S3ModelArtifacts")
    if uri is None or described["OutputDataConfig"].get("CompressionType") != "NONE":
        return uri
    return {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}}


def require_model(described: Mapping[str, Any]) -> str | dict[str, Any]:
    """As `model_of`.

    Raises:
        ValueError: there is none; says why.
    """
    model = model_of(described)
    if model is not None:
        return model
    status = described["TrainingJobStatus"]
    why = described.get("FailureReason") or (
        "it has not ended yet"
        if status in ("InProgress", "Stopping")
        else "nothing was in SM_MODEL_DIR (/opt/ml/model) at its end"
    )
    raise ValueError(
        f"training job {described['TrainingJobName']} ({status}) has made no model: {why}; expected"
        " a job that writes one. Deploy the model of another job, or call fit() again."
    )


def sources_with(entry_point: str, described: Mapping[str, Any], home: Home) -> str | None:
    """The archive of a job's sources, if the file is in it; else None.

    Args:
        entry_point: the file, below the root of the sources.
        described: the job.
        home: where buckets lie.
    """
    uri = str(decode(described["HyperParameters"])["sagemaker_submit_directory"])
    with (
        tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder,
        tarfile.open(local_copy(uri, home, Path(folder))) as archive,
    ):
        is_there = os.path.normpath(entry_point) in map(os.path.normpath, archive.getnames())
    return uri if is_there else None


def arguments_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """Of an estimator, by the description of its job."""
    values = decode(described["HyperParameters"])
    resources = described["ResourceConfig"]
    algorithm = described["AlgorithmSpecification"]
    kept = described.get("CheckpointConfig", {})
    network = described.get("VpcConfig", {})
    groups = [
        InstanceGroup(each["InstanceGroupName"], each["InstanceType"], each["InstanceCount"])
        for each in resources.get("InstanceGroups", ())
    ]
    return {
        "entry_point": values["sagemaker_program"],
        "source_dir": values["sagemaker_submit_directory"],
        "container_log_level": values["sagemaker_container_log_level"],
        "hyperparameters": {
            key: value for key, value in values.items() if key not in _OF_EVERY_JOB
        },
        "role": described["RoleArn"],
        "instance_count": resources.get("InstanceCount"),
        "instance_type": resources.get("InstanceType"),
        "instance_groups": groups or None,
        "volume_size": resources["VolumeSizeInGB"],
        "max_run": described["StoppingCondition"]["MaxRuntimeInSeconds"],
        "max_wait": described["StoppingCondition"].get("MaxWaitTimeInSeconds"),
        "use_spot_instances": described.get("EnableManagedSpotTraining", False),
        "max_retry_attempts": described.get("RetryStrategy", {}).get("MaximumRetryAttempts"),
        "input_mode": algorithm["TrainingInputMode"],
        "output_path": described["OutputDataConfig"]["S3OutputPath"],
        "disable_output_compression": (
            described["OutputDataConfig"].get("CompressionType") == "NONE"
        ),
        "metric_definitions": algorithm.get("MetricDefinitions"),
        "checkpoint_s3_uri": kept.get("S3Uri"),
        "checkpoint_local_path": kept.get("LocalPath"),
        "environment": described.get("Environment"),
        "image_uri": algorithm.get("TrainingImage"),
        "subnets": network.get("Subnets"),
        "security_group_ids": network.get("SecurityGroupIds"),
    }
