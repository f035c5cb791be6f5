# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether what a backend runs jobs on answers, in words: for who asks before a job is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.data.settings import Settings
from smdistributed.launch.home import Home

__all__ = ["answers"]


def answers(backend: str, home: Home) -> dict[str, str]:
    """What answers, by its name, and what it says; or why it does not, and what to do.

    It takes some 10 s at most.

    Args:
        backend: name of one. This machine, `local`, need not be asked: it gives no line.
        home: with the settings.
    """
    ask = _ASKED.get(backend)
    if ask is None:
        return {}
    try:
        return ask(home)
    except SmdistributedError as error:
        return {backend: str(error)}


def _machines(home: Home) -> dict[str, str]:
    from smdistributed.launch.backends.ssh import reachable
    from smdistributed.launch.backends.ssh_settings import SshSettings

    return {
        machine: said
        if isinstance(said, str)
        else f"answers at {said.address}, {said.num_gpus} GPUs; /opt/ml: {said.opt_ml}"
        for machine, said in reachable(SshSettings.of(home)).items()
    }


def _slurm(home: Home) -> dict[str, str]:
    from smdistributed.launch.backends.slurm.commands import partitions
    from smdistributed.launch.backends.slurm.options import SlurmOptions

    SlurmOptions.of(Settings.of(home))  # what is wrong there is said now
    return {"slurm": partitions()}


def _ray(home: Home) -> dict[str, str]:
    from smdistributed.launch.backends.ray.api import RayApi
    from smdistributed.launch.backends.ray.settings import RaySettings

    address = RaySettings.of(home).address
    return {"ray": f"Ray {RayApi(address).require()} answers at {address}"}


def _kubernetes(home: Home) -> dict[str, str]:
    from smdistributed.launch.backends.kubernetes.api import Api
    from smdistributed.launch.backends.kubernetes.manifests import Kind
    from smdistributed.launch.backends.kubernetes.settings import KubernetesSettings

    api = Api(KubernetesSettings.of(home))
    api.require()
    asked_as = "TrainJob" if api.kind() is Kind.TRAIN_JOB else "Indexed Job"
    return {"kubernetes": f"answers; jobs are pods of a {asked_as} in namespace {api.space!r}"}


_ASKED: Mapping[str, Callable[[Home], dict[str, str]]] = {
    "ssh": _machines,
    "slurm": _slurm,
    "ray": _ray,
    "kubernetes": _kubernetes,
}
