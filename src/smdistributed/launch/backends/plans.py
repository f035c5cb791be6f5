# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent of each host is to do: made of a job's request, and of what its machines are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.agent.plan import Plan
from smdistributed.launch.backends.hosts import Machine
from smdistributed.launch.contract.files import channel_config
from smdistributed.launch.contract.hyperparameters import Hyperparameters, decode
from smdistributed.launch.contract.processes import (
    MIRRORED,
    is_distributed,
    processes_per_host,
)
from smdistributed.launch.contract.resources import (
    HOMOGENEOUS,
    InstanceGroup,
    Resources,
    host_names,
)
from smdistributed.launch.data.places import keep_settings, s3_place, s3_settings
from smdistributed.launch.data.sources import sources_of
from smdistributed.launch.data.stores.download import fetch
from smdistributed.launch.debugging import WITHOUT_LIMIT
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.storage import local_path

__all__ = ["environment_of", "hosts_of", "members_of", "plans_of", "prepare_stores"]

_MPI_OPTIONS = (
    "sagemaker_mpi_custom_mpi_options",
    "sagemaker_distributed_dataparallel_custom_mpi_options",
)
_SOURCES = "sourcedir.tar.gz"
# What runs scripts in Amazon's containers.
_MODULES = {
    "pytorch": "sagemaker_pytorch_container.training:main",
    "tensorflow": "sagemaker_tensorflow_container.training:main",
}


def hosts_of(record: JobRecord) -> list[str]:
    """Names of a job's hosts, in the order of their ranks."""
    return [host for host, _ in members_of(record.request)]


def members_of(request: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Of each host of a request, in the order of their ranks: its name, and its group's."""
    groups = _groups(request["ResourceConfig"])
    return [(host, group.name) for group in groups for host in group.hosts]


def environment_of(record: JobRecord) -> dict[str, str]:
    """Further variables of a job's ranks, on all hosts."""
    texts: dict[str, str] = dict(record.request.get("HyperParameters", {}))
    kind = record.local.get("BaseFramework") or record.local.get("Framework")
    module = _MODULES.get(str(kind), "")
    return {
        **({"SM_FRAMEWORK_MODULE": module} if module else {}),
        **_exported(Hyperparameters.of(decode(texts)).framework),
        **({} if record.local.get("debug_rank") is None else WITHOUT_LIMIT),
        **record.request.get("Environment", {}),
    }


def prepare_stores(record: JobRecord, home: Home, job: Path) -> None:
    """What is to be done with an S3 store before there are plans.

    The job keeps how the store is reached, until its end. Buckets for results are looked for, or
    nobody would know before the end that there are none. The sources come to the job's directory.

    Args:
        record: of the job.
        home: has buckets and settings.
        job: the directory.

    Raises:
        StoreError: something is not there, or the store does not answer.
        OSError: the directory cannot be written.
    """
    settings = s3_settings(home)
    if settings is None:
        return
    keep_settings(job, settings)
    request = record.request
    job_values = Hyperparameters.of(decode(dict(request.get("HyperParameters", {})))).job
    results = {
        request["OutputDataConfig"]["S3OutputPath"],
        request.get("CheckpointConfig", {}).get("S3Uri"),
        job_values.get("sagemaker_s3_output"),
    }
    for bucket in {
        place.bucket: place for uri in results if uri and (place := s3_place(str(uri), home))
    }.values():
        bucket.store().require_bucket()
    archive = str(job_values.get("sagemaker_submit_directory", ""))
    if archive and (place := s3_place(archive, home)) is not None:
        fetch(place.store(), place.key, job / _SOURCES)


def plans_of(record: JobRecord, home: Home, machines: Sequence[Machine]) -> list[Plan]:
    """What the agent of each host is to do.

    Args:
        record: of the job.
        home: where the store lies.
        machines: of the hosts, in the order of `hosts_of`.

    Raises:
        ConfigurationError: the request cannot be met.
    """
    request = record.request
    groups = _groups(request["ResourceConfig"])
    members = members_of(request)
    hosts = [host for host, _ in members]
    texts: dict[str, str] = dict(request.get("HyperParameters", {}))
    hyperparameters = Hyperparameters.of(decode(texts))
    framework = hyperparameters.framework
    mode = request["AlgorithmSpecification"].get("TrainingInputMode", "File")
    channels = {each["ChannelName"]: each for each in request.get("InputDataConfig", [])}
    data = {name: sources_of(each, mode, members, home) for name, each in channels.items()}
    archive = str(hyperparameters.job.get("sagemaker_submit_directory", ""))
    s3 = s3_settings(home)
    debug_rank = record.local.get("debug_rank")
    environment = environment_of(record)
    kept = request.get("CheckpointConfig", {})
    # The ranks of all hosts are counted alike, so that of the host with the fewest decides.
    num_gpus = min(_gpus_of_host(each) for each in machines)
    processes = processes_per_host(framework, groups[0].instance_type, num_gpus)
    if debug_rank is not None and debug_rank >= processes * len(hosts):
        raise ConfigurationError(
            f"rank {debug_rank} is to be debugged, and the job has {processes * len(hosts)};"
            " expected one of them, counted from 0."
        )
    # Hosts may share an address, so each needs a port of its own in the place of 8890.
    is_mirrored = framework.get(MIRRORED) is True
    workers = [f"{each.address}:{each.ports[1]}" for each in machines] if is_mirrored else []
    return [
        Plan(
            host=host,
            index=index,
            num_hosts=len(hosts),
            processes=processes,
            is_distributed=is_distributed(framework),
            master_address=machines[0].address,
            master_port=machines[0].ports[0],
            addresses={name: each.address for name, each in zip(hosts, machines, strict=True)},
            machine_index=machine.index,
            machine_hosts=machine.count,
            resources=Resources(host, groups, network_interface=machine.interface).to_json(),
            hyperparameters=texts,
            channels={
                name: channel_config(each, mode)
                for name, each in channels.items()
                if host in data[name]
            },
            sources={name: vars(each[host]) for name, each in data.items() if host in each},
            archive=_archive_of(archive, record.name, home),
            environment=environment,
            metrics=list(request["AlgorithmSpecification"].get("MetricDefinitions", [])),
            checkpoints=_place_of(kept["S3Uri"], home) if kept else "",
            checkpoints_here=kept.get("LocalPath") or "/opt/ml/checkpoints",
            intermediate=_intermediate(hyperparameters, record.name, home),
            tf_workers=workers,
            cpu_shim=record.local.get("cpu_shim", True),
            emulate_gpus=record.local.get("emulate_gpus", False),
            debug_rank=debug_rank,
            terminal=record.local.get("terminal", ""),
            s3=dataclasses.asdict(s3) if s3 is not None else None,
            job=record.name,
        )
        for index, (host, machine) in enumerate(zip(hosts, machines, strict=True))
    ]


def _gpus_of_host(machine: Machine) -> int:
    """Of a host that may share its machine (`agent`)."""
    is_shared = machine.num_gpus >= machine.count
    return machine.num_gpus // machine.count if is_shared else machine.num_gpus


def _exported(framework: Mapping[str, Any]) -> dict[str, str]:
    """Variables of `custom_mpi_options`, split at spaces as Amazon's containers split them.

    `-x NAME=VALUE`, and `--NCCL_DEBUG LEVEL`. `-x NAME` hands on what is there, as all is here.
    """
    words = [
        word for name in _MPI_OPTIONS for word in str(framework.get(name) or "").strip('"').split()
    ]
    found = {}
    for word, following in itertools.pairwise([*words, ""]):
        name, is_set, value = following.partition("=")
        if word == "-x" and is_set:
            found[name] = value
        elif word == "--NCCL_DEBUG":
            found["NCCL_DEBUG"] = following
    return found


def _intermediate(hyperparameters: Hyperparameters, name: str, home: Home) -> str:
    """Where intermediate output goes; empty if the request does not say."""
    uri = hyperparameters.job.get("sagemaker_s3_output")
    if not uri:
        return ""
    return _place_of(f"{str(uri).rstrip('/')}/{name}/output/intermediate", home)


def _archive_of(uri: str, name: str, home: Home) -> str:
    """The file of the sources; empty if there are none."""
    if not uri:
        return ""
    return str(
        local_path(uri, home) if s3_place(uri, home) is None else home.jobs / name / _SOURCES
    )


def _place_of(uri: str, home: Home) -> str:
    """A folder of this machine; or a URI, of what is in an S3 store."""
    place = s3_place(uri, home)
    return str(local_path(uri, home)) if place is None else f"s3://{place.bucket}/{place.key}"


def _groups(config: dict[str, Any]) -> tuple[InstanceGroup, ...]:
    asked = config.get("InstanceGroups") or [
        {
            "InstanceGroupName": HOMOGENEOUS,
            "InstanceType": config["InstanceType"],
            "InstanceCount": config["InstanceCount"],
        }
    ]
    groups: list[InstanceGroup] = []
    first = 1
    for each in asked:
        names = host_names(each["InstanceCount"], first)
        groups.append(InstanceGroup(each["InstanceGroupName"], each["InstanceType"], names))
        first += len(names)
    return tuple(groups)
