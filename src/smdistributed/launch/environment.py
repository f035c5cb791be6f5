# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What each process is told: its environment and its command line.

Pure but for `free_port`, `visible_accelerators`, `horovod_warning`, which look at the machine.
Source: dataparallel specification, sections 3.1 and 10.
"""

import contextlib
import importlib.util
import json
import math
import os
import random
import re
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from smdistributed._common.discovery import Membership, membership_variables
from smdistributed._common.discovery.job import RUN_ID

__all__ = [
    "CPU_ONLY",
    "apply_exports",
    "free_port",
    "full_command",
    "horovod_warning",
    "local_environments",
    "model_parallel_variables",
    "names_this_host",
    "outside",
    "sharing_warning",
    "usable_cores",
    "visible_accelerators",
    "with_horovod",
]

LOOPBACK = "127.0.0.1"

# Ports that may be named: those just below what the kernel hands out, and above what services use.
_SPAN = 12_000
_LOWEST_PORT = 10_000
_MOST_TRIES = 100

# Of a job that this one was started in: they would make ranks take themselves for its ranks.
_OF_ANOTHER_JOB = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|ROLE_\w+"
    r"|MASTER_ADDR|MASTER_PORT|TF_CONFIG|TORCHELASTIC_\w+|TORCH_NCCL_ASYNC_ERROR_HANDLING"
    r"|OMPI_\w+|PMIX?_\w+|PRTE_\w+|MV2_\w+|MPI_LOCAL\w+|SLURM_\w+|SM_\w.*|SMDATAPARALLEL_\w+"
    r"|SMDDP_TOKEN|SMDDP_TOKEN_FILE|SMDDP_RUN_ID|SAGEMAKER_\w+|TRAINING_JOB_\w+|SMD_ML_IS_MOUNTED"
    r"|CURRENT_HOST)"
)

# What makes `import horovod` find the stand-in in a job's interpreters, as compat/horovod/finder.py
# says; whoever wants none has SMDDP_HOROVOD=off.
_HOROVOD = ("SMDDP_HOROVOD", "stand-in")
_STAND_IN = Path(__file__).parents[1] / "compat" / "horovod" / "stand_in"

# What --cpu sets. CUDA is hidden, so that libraries that ask for it get the answer that is true for
# the job; ROCm's torch follows the same variable. Accelerate, and the Hugging Face Trainer through
# it, take smddp for a sign of GPUs and divide by their number; this is its own switch against it.
CPU_ONLY = MappingProxyType(
    {
        "SMDDP_CPU_SHIM": "full",
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_TORCH_DEVICE": "cpu",
    }
)


def with_horovod(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables with that of the stand-in for Horovod; one that is set stays as it is."""
    name, stand_in = _HOROVOD
    return {name: stand_in, **environ}


def horovod_warning(environ: Mapping[str, str]) -> str | None:
    """Returns what to say of a Horovod that is installed beside this package, if anything.

    It goes before the stand-in, and asks another launcher who it is: of this job it knows nothing.
    Where the variable is set already, as within a job, the stand-in itself is what is found.
    """
    name, stand_in = _HOROVOD
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None or environ.get(name, stand_in) != stand_in:
        return None
    if Path(spec.origin).resolve().is_relative_to(_STAND_IN.resolve()):
        return None
    return (
        f"Horovod is installed at {spec.origin}. A script that imports horovod gets it, and each"
        " process of this job would train alone. Uninstall it to have this package's stand-in, or"
        f" start the script by horovodrun; {name}=off leaves this line out."
    )


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of who has started a job, without those of a job that it is in itself."""
    return {name: value for name, value in environ.items() if not _OF_ANOTHER_JOB.fullmatch(name)}


def local_environments(
    environ: Mapping[str, str], np: int, master_port: int, cores: int
) -> list[dict[str, str]]:
    """Returns the environment of each of `np` processes on this machine, by rank.

    Whatever rank, address, port or run id is left over from elsewhere in `environ` is replaced. A
    job token and `OMP_NUM_THREADS` are kept if given.
    """
    base = with_horovod({name: value for name, value in environ.items() if name not in _STALE})
    base["PYTHONUNBUFFERED"] = "1"
    base.setdefault("OMP_NUM_THREADS", str(max(1, cores // np)))
    if not base.get("SMDDP_TOKEN") and not base.get("SMDDP_TOKEN_FILE"):
        base["SMDDP_TOKEN"] = secrets.token_hex(32)
    base[RUN_ID] = secrets.token_hex(8)
    instance_type = environ.get("SM_CURRENT_INSTANCE_TYPE") or "local"
    environments = []
    for rank in range(np):
        membership = Membership(
            rank=rank,
            world_size=np,
            local_rank=rank,
            local_world_size=np,
            node_rank=0,
            num_nodes=1,
            master_addr=LOOPBACK,
            master_port=master_port,
            source="torch",
        )
        variables = membership_variables(membership, instance_type)
        for name in ("SAGEMAKER_INSTANCE_TYPE", "SM_FRAMEWORK_PARAMS"):
            variables[name] = environ.get(name) or variables[name]
        environments.append({**base, **variables})
    return environments


# Flags of a job over several hosts, and torchrun's own counts, contradict what is set here.
_STALE = frozenset(
    {"SMDATAPARALLEL_USE_HOMOGENEOUS", "SMDATAPARALLEL_USE_SINGLENODE", "GROUP_WORLD_SIZE"}
)


def apply_exports(
    environ: Mapping[str, str], exports: Sequence[tuple[str, str | None]]
) -> dict[str, str]:
    """Returns `environ` with the `-x NAME=VALUE` of the command line; `-x NAME` keeps what is."""
    return {**environ, **{name: value for name, value in exports if value is not None}}


def model_parallel_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what is missing for the Hugging Face Trainer to find that a job is model parallel.

    It asks for a flag, and for the parameters by their oldest name. Nothing, if the job has no
    model parallel parameters, or text that the library will refuse.
    Source: modelparallel specification, section 1.1.
    """
    try:
        parameters = json.loads(environ.get("SM_HP_MP_PARAMETERS", ""))
    except json.JSONDecodeError:
        return {}
    if not isinstance(parameters, dict):
        return {}
    variables = {}
    if not environ.get("SM_FRAMEWORK_PARAMS"):
        variables["SM_FRAMEWORK_PARAMS"] = '{"sagemaker_mpi_enabled":true}'
    # What is not named is for the script to say, which these parameters would overrule.
    degree = parameters.get("pipeline_parallel_degree")
    if degree is not None and "partitions" not in parameters:
        variables["SM_HP_MP_PARAMETERS"] = json.dumps({**parameters, "partitions": degree})
    return variables


def sharing_warning(np: int, accelerators: int) -> str | None:
    """Returns what to say about `np` processes on a host with that many GPUs, if anything.

    More processes than GPUs work, as process i uses GPU i modulo their number, but it is seldom
    meant. Without GPUs there is nothing to share. Source: dataparallel specification, section 3.4.
    """
    if accelerators == 0 or np <= accelerators:
        return None
    return (
        f"{np} processes share {accelerators} GPU(s) on this host; expected at most one process per"
        f" GPU for speed. Use -np {accelerators}, or leave it if sharing is meant: process i uses"
        f" GPU i modulo {accelerators}, and so must a script that calls set_device(LOCAL_RANK)."
    )


def full_command(command: Sequence[str]) -> list[str]:
    """Returns the command to execute: a script whose name ends in .py is run by this Python."""
    if command[0].endswith(".py"):
        return [sys.executable, *command]
    return list(command)


def free_port() -> int:
    """Returns a free port, of those that nobody gets without naming it.

    Rank 0 listens there only when it has imported its framework, seconds later. Until then each
    outgoing connection of the machine could be given a port that the kernel hands out by itself.
    """
    candidates = _ports_to_name()
    for port in random.SystemRandom().sample(candidates, min(_MOST_TRIES, len(candidates))):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _ports_to_name() -> range:
    """Below those that the kernel hands out, or above; none if it hands out all."""
    low, high = 32768, 60999
    with contextlib.suppress(OSError, ValueError):
        low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(max(_LOWEST_PORT, low - _SPAN), low), range(high + 1, 1 << 16)
    return max(below, above, key=len)


def names_this_host(name: str) -> bool:
    """True if `name` is a name or address of this machine."""
    own = socket.gethostname()
    if name in ("localhost", own, own.partition(".")[0]):
        return True
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    return any(_is_own_address(str(address)) for address in addresses)


def _is_own_address(address: str) -> bool:
    # Only an address of this machine can be bound; this needs no list of interfaces.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def usable_cores() -> int:
    """Returns how many cores this process may use: its affinity, cut by the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    quota = _cgroup_cores()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _cgroup_cores(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            quota = (root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    try:
        cores = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None


def visible_accelerators(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Returns the number of GPUs the processes would see, without loading a driver library."""
    names = [path.name for path in devices.glob("nvidia[0-9]*")]
    present = sum(re.fullmatch(r"nvidia[0-9]+", name) is not None for name in names)
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or present == 0:
        return present
    # CUDA stops at the first entry that names no device, such as -1.
    count = 0
    for item in (entry.strip() for entry in chosen.split(",")):
        if not item or item.startswith("-"):
            break
        count += 1
    return count
