# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host that has none of the GPUs that its instance type names: the script runs on CPUs.

Scripts were written for GPUs, so the CPU shims (docs/cpu_shims.md) are on, as by `smddprun --cpu`.

Source: launch specification, section 4.4.
"""

from __future__ import annotations

from collections.abc import Mapping

from smdistributed.launch.contract.processes import gpus_of
from smdistributed.launch.environment import CPU_ONLY

__all__ = ["on_cpus"]

_SHIM = "SMDDP_CPU_SHIM"


def on_cpus(
    environ: Mapping[str, str],
    instance_type: str,
    num_gpus: int,
    processes: int,
    *,
    has_shim: bool,
    is_torch: bool,
) -> tuple[dict[str, str], str]:
    """The variables with those of the shims, and what to say of it; empty: nothing is special.

    Args:
        environ: of the processes of this host. What it has of these variables stays.
        instance_type: of the host.
        num_gpus: that its processes see.
        processes: of this host.
        has_shim: the shims are wanted.
        is_torch: the script may be one of PyTorch, the only framework that has them.
    """
    named = gpus_of(instance_type)
    if not named or num_gpus:
        return dict(environ), ""
    processes_here = f"{processes} process{'es' if processes > 1 else ''} on each host"
    said = f"{instance_type} names {named} GPU(s) and this host has none: {processes_here}, on CPUs"
    if not is_torch:
        return dict(environ), said
    if _SHIM in environ:
        return dict(environ), f"{said}; {_SHIM}={environ[_SHIM]} as given"
    if not has_shim:
        return dict(environ), f"{said}, without the CPU shims, as cpu_shim=False says"
    return (
        {**CPU_ONLY, **environ},
        f"{said}, with the CPU shims ({_SHIM}={CPU_ONLY[_SHIM]}); cpu_shim=False leaves them out",
    )
