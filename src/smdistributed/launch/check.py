# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun --check`: what a bug report needs, and a self-test with two processes.

Everything that could crash or hang (frameworks, drivers, our compiled part) is looked at in a
process of its own with a deadline.
"""

import dataclasses
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path

from smdistributed._common.discovery import discover
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.settings import Settings, ZeroCopy
from smdistributed._common.version import __version__
from smdistributed.launch import environment
from smdistributed.launch.output import Console
from smdistributed.launch.supervisor import Supervisor

__all__ = ["collect_report", "relevant_variables", "run_check"]

_PROBE_S = 60.0
_SELF_TEST_RANKS = 2
_SELF_TEST_MODULE = "smdistributed.collectives.selftest"
_NATIVE_MODULE = "smdistributed.collectives._native"
_BUCKETS_QUESTION = (
    "from smdistributed.dataparallel.torch.ddp_buckets import obstacle; "
    "print(obstacle() or 'gradient buckets of torch are made in shared memory')"
)
_MOVING_QUESTION = (
    "from smdistributed.dataparallel.torch.adoption.adopter import obstacle; "
    "print(obstacle() or 'tensors that recur move there (SMDDP_ZERO_COPY=recurring)')"
)

_PREFIXES = (
    "CUDA_",
    "FI_",
    "GLOO_",
    "GROUP_",
    "LOCAL_",
    "MASTER_",
    "MPI_",
    "MV2_",
    "NCCL_",
    "OMP_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "SMDATAPARALLEL_",
    "SMDDP_",
    "SM_CURRENT_",
    "SM_HOSTS",
    "TORCH_",
)
_NAMES = ("NODE_RANK", "PATH", "PYTHONPATH", "RANK", "WORLD_SIZE")
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_SECRET_NAMES_THAT_ARE_PATHS = ("SMDDP_TOKEN_FILE",)


def run_check(say: Callable[[str], None]) -> int:
    """Prints the report to stdout and runs the self-test.

    Returns:
        0 if the self-test passed, else 1.
    """
    for title, value in collect_report(os.environ):
        print(f"{title + ':':<22} {value}".replace("\n", f"\n{'':<23}"))
    sys.stdout.flush()
    native = _probe(f"import {_NATIVE_MODULE}; print('present')")
    print(f"{'compiled engine:':<22} {native}")
    if native != "present":
        print(
            f"{'self-test:':<22} NOT RUN. The compiled engine cannot be imported; install the "
            "package (pip install .) with a C++ compiler, then check again."
        )
        return 1
    print(f"{'self-test:':<22} {_SELF_TEST_RANKS} processes", flush=True)
    environments = environment.local_environments(
        os.environ, _SELF_TEST_RANKS, environment.free_port(), environment.usable_cores()
    )
    for one in environments:
        # A wrong setting must not make a broken installation out of a sound one, nor hang it.
        one.setdefault("SMDDP_TIMEOUT_SECONDS", "60")
    status = Supervisor(
        [sys.executable, "-m", _SELF_TEST_MODULE],
        environments,
        Console(sys.stdout.buffer, sys.stderr.buffer),
        say,
    ).run()
    verdict = "passed" if status == 0 else f"FAILED with exit status {status}"
    print(f"{'self-test:':<22} {verdict}", flush=True)
    return 0 if status == 0 else 1


def collect_report(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns titles and values of the report, without the self-test."""
    report = [
        ("smdistributed-open", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("torch", _probe("import torch; print(torch.__version__)")),
        ("tensorflow", _probe("import tensorflow; print(tensorflow.__version__)")),
        ("numpy", _probe("import numpy; print(numpy.__version__)")),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("distribution", _distribution()),
        ("C library", " ".join(platform.libc_ver())),
        ("processor", _first_value("/proc/cpuinfo", "model name")),
        ("cores", _cores()),
        ("memory", _first_value("/proc/meminfo", "MemTotal")),
        ("memory available", _first_value("/proc/meminfo", "MemAvailable")),
        ("/dev/shm", _dev_shm()),
        ("locked memory limit", _locked_memory()),
        ("shared memory limit", _shared_memory_limits()),
        ("zero copy", _zero_copy(environ)),
        ("GPUs", _gpus()),
        ("process", _process(environ)),
        ("settings", _settings(environ)),
    ]
    return report + [(name, value) for name, value in relevant_variables(environ).items()]


def relevant_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that influence a job, sorted; secrets are not shown."""
    chosen = {}
    for name, value in sorted(environ.items()):
        if not (name.startswith(_PREFIXES) or name in _NAMES):
            continue
        hidden = any(word in name for word in _SECRET_WORDS)
        if hidden and name not in _SECRET_NAMES_THAT_ARE_PATHS:
            value = f"(hidden, {len(value)} characters)"
        chosen[name] = value
    return chosen


def _probe(code: str) -> str:
    """Returns the last line that Python code prints in a process of its own, or what failed."""
    return _last_line([sys.executable, "-c", code])


def _last_line(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
            check=False,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_PROBE_S:g} s"
    except OSError as error:
        return f"cannot be asked ({error.strerror})"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode == 0:
        return lines[-1] if lines else "no answer"
    return f"none ({lines[-1] if lines else f'exit status {done.returncode}'})"


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown")
    except OSError:
        return "unknown"


def _first_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    values = (line.partition(":")[2].strip() for line in lines if line.startswith(key))
    return next(values, "unknown")


def _cores() -> str:
    return (
        f"{os.cpu_count()} in the machine, {len(os.sched_getaffinity(0))} by affinity, "
        f"{environment.usable_cores()} with the cgroup's quota"
    )


def _dev_shm() -> str:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError as error:
        return f"none ({error.strerror})"
    return f"{usage.free // 2**20} MiB free of {usage.total // 2**20} MiB"


def _locked_memory() -> str:
    return _limit(resource.RLIMIT_MEMLOCK)


def _shared_memory_limits() -> str:
    """What bounds the memory that ranks share, besides the machine's: it is a mapped file."""
    return f"address space {_limit(resource.RLIMIT_AS)}, file size {_limit(resource.RLIMIT_FSIZE)}"


def _limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"


def _zero_copy(environ: Mapping[str, str]) -> str:
    try:
        zero_copy = Settings.from_environ(environ).zero_copy
    except ConfigurationError:
        return "not known, see settings"
    if zero_copy is ZeroCopy.OFF:
        return "off (SMDDP_ZERO_COPY)"
    buckets = _probe(_BUCKETS_QUESTION)
    if zero_copy is ZeroCopy.OWN:
        return buckets
    return f"{buckets}; {_probe(_MOVING_QUESTION)}"


def _gpus() -> str:
    if shutil.which("nvidia-smi") is None:
        return "none (no nvidia-smi)"
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    count = _last_line([*query[:1], "--query-gpu=count", "--format=csv,noheader"])
    return f"{count} x {_last_line(query)}"


def _process(environ: Mapping[str, str]) -> str:
    try:
        found = discover(environ)
    except ConfigurationError as error:
        return f"ERROR: {error}"
    return (
        f"rank {found.rank} of {found.world_size}, local {found.local_rank} of "
        f"{found.local_world_size}, node {found.node_rank} of {found.num_nodes}, master "
        f"{found.master_addr}:{found.master_port}, source {found.source}"
    )


def _settings(environ: Mapping[str, str]) -> str:
    try:
        settings = Settings.from_environ(environ)
    except ConfigurationError as error:
        return f"ERROR: {error}"
    # Secrets are the fields that are not in the repr.
    names = [field.name for field in dataclasses.fields(settings) if field.repr]
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {_shown(getattr(settings, name))}" for name in names)


def _shown(value: object) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}:{each}" for key, each in value.items()) or "-"
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    return "-" if value is None else str(value)
