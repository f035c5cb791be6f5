# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a host find in their environment: the plan, the machine and the contract."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from smdistributed._common.discovery import Membership, membership_variables
from smdistributed.launch.agent.plan import Plan
from smdistributed.launch.agent.without_gpus import on_cpus
from smdistributed.launch.contract.hyperparameters import Hyperparameters
from smdistributed.launch.contract.paths import Paths
from smdistributed.launch.contract.resources import Resources
from smdistributed.launch.contract.tf_config import tf_config
from smdistributed.launch.contract.variables import Machine, Script, variables
from smdistributed.launch.environment import (
    outside,
    usable_cores,
    visible_accelerators,
    with_horovod,
)

__all__ = ["common_environment", "environments_of", "gpus_of", "script_of"]


def script_of(plan: Plan, job: str, hyperparameters: Hyperparameters) -> Script:
    """What the contract says of the script of a job, by its name."""
    given = hyperparameters.job
    module = plan.environment.get("SM_FRAMEWORK_MODULE", "")
    return Script(
        entry_point=str(given.get("sagemaker_program", "")),
        submit_directory=str(given.get("sagemaker_submit_directory", "")),
        framework_module=module,
        job_name=job,
        region=str(given.get("sagemaker_region", "us-east-1")),
        log_level=int(given.get("sagemaker_container_log_level", 20)),
        torch_version=_torch_version() if module.startswith("sagemaker_pytorch") else None,
    )


def common_environment(
    plan: Plan, resources: Resources, script: Script, say: Callable[[str], None]
) -> dict[str, str]:
    """What is the same for all ranks, and for what installs their packages.

    Args:
        plan: of the host.
        resources: of the job.
        script: of the job.
        say: tells the user of GPUs that are not there.
    """
    base = with_horovod({**outside(os.environ), **plan.environment, "PYTHONUNBUFFERED": "1"})
    attempt = f"-attempt-{plan.attempt}" if plan.attempt > 1 else ""
    base["SMDDP_RUN_ID"] = script.job_name + attempt
    gpus = _share_of(base, plan.machine_index, plan.machine_hosts)
    if gpus is not None:
        base["CUDA_VISIBLE_DEVICES"] = gpus
    base, said = on_cpus(
        base,
        resources.current_group.instance_type,
        visible_accelerators(base),
        plan.processes,
        has_shim=plan.cpu_shim,
        is_torch=not script.framework_module.startswith("sagemaker_tensorflow"),
    )
    if said and plan.index == 0:
        say(said)
    return base


def environments_of(
    plan: Plan,
    common: Mapping[str, str],
    folders: Sequence[str],
    token: Path,
    paths: Paths,
    resources: Resources,
    hyperparameters: Hyperparameters,
    script: Script,
) -> list[dict[str, str]]:
    """Of each rank of the host.

    Args:
        plan: of the host.
        common: what is the same for all.
        folders: in which Python looks first.
        token: the file of the job's token.
        paths: of `/opt/ml`.
        resources, hyperparameters, script: of the job.
    """
    base = dict(common)
    num_gpus = visible_accelerators(base)
    base["PYTHONPATH"] = os.pathsep.join([*folders, *_words(base.get("PYTHONPATH"))])
    cores = usable_cores()
    base.setdefault("OMP_NUM_THREADS", str(max(1, cores // (plan.processes * plan.machine_hosts))))
    base["SMDDP_TOKEN_FILE"] = str(token)
    told = variables(
        paths,
        resources,
        hyperparameters,
        plan.channels,
        script,
        Machine(cores, plan.processes if plan.emulate_gpus else num_gpus),
    )
    # Where ranks meet is ours: several jobs may run on one machine.
    told["MASTER_ADDR"] = plan.master_address
    told["MASTER_PORT"] = str(plan.master_port)
    if plan.tf_workers:
        told["TF_CONFIG"] = tf_config(plan.tf_workers, plan.index)
    return [
        {**base, **_membership(plan, local_rank, resources), **told}
        for local_rank in range(plan.processes)
    ]


def gpus_of(environ: Mapping[str, str]) -> str:
    """The GPUs of a host, as nvidia-smi takes them; empty: it has none."""
    count = visible_accelerators(environ)
    return environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count))) if count else ""


def _membership(plan: Plan, local_rank: int, resources: Resources) -> dict[str, str]:
    if not plan.is_distributed:
        return {}
    membership = Membership(
        rank=plan.index * plan.processes + local_rank,
        world_size=plan.num_hosts * plan.processes,
        local_rank=local_rank,
        local_world_size=plan.processes,
        node_rank=plan.index,
        num_nodes=plan.num_hosts,
        master_addr=plan.master_address,
        master_port=plan.master_port,
        source="torch",
    )
    return membership_variables(membership, resources.current_group.instance_type)


def _share_of(environ: Mapping[str, str], index: int, num_hosts: int) -> str | None:
    """The GPUs of one of several hosts of this machine; None: there are none, or it has all."""
    count = visible_accelerators(environ)
    if num_hosts == 1 or count < num_hosts:
        return None
    given = environ.get("CUDA_VISIBLE_DEVICES")
    names = [each.strip() for each in given.split(",")] if given else list(map(str, range(count)))
    size = count // num_hosts
    return ",".join(names[index * size : (index + 1) * size])


def _torch_version() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def _words(path: str | None) -> list[str]:
    return path.split(os.pathsep) if path else []
