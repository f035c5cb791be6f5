# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the peak memory of ranks that train with DistributedDataParallel. See README.md.

Each backend gets fresh processes; while they train, their memory is sampled from outside.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "ddp_step"))

from common import child_processes
from models import WORKLOADS, batch_of, workload

_SAMPLE_S = 0.01
_KIB = 1024
_DEADLINE_S = 300.0
# Name in the table -> backend and variables of its ranks.
_CANDIDATES = {
    "gloo": ("gloo", {}),
    "smddp, SMDDP_ZERO_COPY=0": ("smddp", {"SMDDP_ZERO_COPY": "0"}),
    "smddp": ("smddp", {}),
}


@dataclass
class Peak:
    """Of the ranks of one run, in MiB: the largest."""

    pss_mib: float = 0.0
    rss_mib: float = 0.0


def main() -> None:
    """Measure all candidates in turn, several times, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--steps", type=int, default=10, help="of each run (default %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=3, help="of each candidate (default %(default)s)"
    )
    parser.add_argument("--models", default="gpt,resnet18", help="(default %(default)s)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _train(options.worker, options.models, options.steps)
        return
    names = {found.name: found.label for found in WORKLOADS}
    print("| model | backend | peak PSS per rank | against Gloo | peak RSS per rank |")
    print("| :-- | :-- | --: | --: | --: |")
    for model in options.models.split(","):
        peaks: dict[str, list[Peak]] = {name: [] for name in _CANDIDATES}
        for _ in range(options.runs):
            for name in _CANDIDATES:
                peaks[name].append(_run(name, model, options.ranks, options.steps))
        gloo = median(peak.pss_mib for peak in peaks["gloo"])
        for name, found in peaks.items():
            pss = median(peak.pss_mib for peak in found)
            rss = median(peak.rss_mib for peak in found)
            print(
                f"| {names.get(model, model)} | {name} | {pss:.0f} MiB | {pss / gloo - 1:+.1%} |"
                f" {rss:.0f} MiB |",
                flush=True,
            )


def _run(candidate: str, model: str, ranks: int, steps: int) -> Peak:
    backend, variables = _CANDIDATES[candidate]
    port = child_processes.find_free_port()
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--worker",
                backend,
                "--models",
                model,
                "--steps",
                str(steps),
            ],
            env=os.environ
            | child_processes.membership_variables(rank, ranks, port)
            | {"OMP_NUM_THREADS": "1"}
            | variables,
        )
        for rank in range(ranks)
    ]
    peak = Peak()
    deadline = time.monotonic() + _DEADLINE_S
    try:
        while any(process.poll() is None for process in processes):
            for process in processes:
                peak.pss_mib = max(
                    peak.pss_mib, _read_kib(process.pid, "smaps_rollup", "Pss:") / _KIB
                )
                peak.rss_mib = max(peak.rss_mib, _read_kib(process.pid, "status", "VmHWM:") / _KIB)
            if time.monotonic() > deadline:
                sys.exit(f"{candidate} on {model} did not end within {_DEADLINE_S:.0f} s")
            time.sleep(_SAMPLE_S)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        sys.exit(f"{candidate} on {model}: a rank failed; its output is above")
    return peak


def _read_kib(pid: int, file: str, key: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def _train(backend: str, model: str, steps: int) -> None:
    """Body of a rank."""
    import torch
    import torch.distributed as dist

    # Both: what an import costs is not what is asked.
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group(backend)
    found = workload(model)
    torch.manual_seed(1)
    ddp = torch.nn.parallel.DistributedDataParallel(found.build(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4, momentum=0.9)
    inputs, classes = batch_of(found, dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        found.loss(ddp(inputs), classes).backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
