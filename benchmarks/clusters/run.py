# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training on two hosts of a cluster: as a job, and by `smddprun` on the same machines.

See README.md.

python benchmarks/clusters/run.py [--backends slurm,ray] [--rounds 10]   (after `make env-clusters`)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`
sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `tests`
sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "multiprocess"))

from common.command_line import add_names
from common.rounds import in_turn

from smdistributed.launch.environment import free_port
from smdistributed.launch.home import Home
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from tests.clusters import ray as ray_cluster
from tests.clusters import slurm as slurm_cluster
from tests.clusters.machine import Machine

HERE = Path(__file__).resolve().parent
WAYS = ("job", "smddprun", "smddprun again")
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}  # two hosts share the processors of this machine
DEADLINE_S = 120.0
LIMIT = 0.97

Run = Callable[[float], dict[str, float]]
"""Trains for so many seconds. Returns: what the training has said."""


def figures_of(text: str) -> dict[str, float]:
    """What a training has printed."""
    found = re.findall(r"(weights|rate) (-?[0-9.]+)$", text, re.MULTILINE)
    assert len(found) == 2, text[-3000:]
    return {name: float(value) for name, value in found}


def by_smddprun(machines: Mapping[str, Machine], address: str) -> Run:
    """A rank on each machine, as whoever has a shell there starts them."""
    smddprun = str(Path(sys.executable).with_name("smddprun"))

    def run(seconds: float) -> dict[str, float]:
        port = free_port()
        with tempfile.TemporaryFile("w+") as output:
            started = []
            for rank, machine in enumerate(machines.values()):
                variables = {
                    **os.environ,
                    **ENVIRONMENT,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(machines)),
                    "LOCAL_RANK": "0",
                    "LOCAL_WORLD_SIZE": "1",
                    "GROUP_RANK": str(rank),
                    "MASTER_ADDR": address,
                    "MASTER_PORT": str(port),
                }
                command = [smddprun, sys.executable, str(HERE / "train.py"), str(seconds)]
                started.append(
                    subprocess.Popen(
                        machine.command(command), env=variables, stdout=output, stderr=output
                    )
                )
            for each in started:
                each.wait(DEADLINE_S)
            output.seek(0)
            return figures_of(output.read())

    return run


def by_job(home: Home) -> Run:
    """`fit()` on the backend that the settings of a home name."""

    def run(seconds: float) -> dict[str, float]:
        job = PyTorch(
            entry_point="train.py",
            source_dir=str(HERE),
            image_uri="any/image:1",
            instance_count=2,
            instance_type="local",
            hyperparameters={"s": seconds},
            environment=ENVIRONMENT,
            distribution={"smdistributed": {"dataparallel": {"enabled": True}}},
            sagemaker_session=Session(home=home),
        )
        job.fit(logs="None")
        assert job.latest_training_job is not None
        log = home.root / "jobs" / job.latest_training_job.name / "hosts" / "algo-1" / "log"
        return figures_of(log.read_text())

    return run


@contextlib.contextmanager
def slurm(home: Home) -> Iterator[tuple[Mapping[str, Machine], str]]:
    """Two nodes, and the address of the first one. Jobs find them."""
    with slurm_cluster.slurm() as cluster:
        os.environ.update(cluster.environ)
        home.config.write_text('default_backend = "slurm"\n')
        yield cluster.nodes, "127.0.0.1"


@contextlib.contextmanager
def ray(home: Home) -> Iterator[tuple[Mapping[str, Machine], str]]:
    """The same of Ray."""
    with ray_cluster.ray() as cluster:
        table = f'[ray]\naddress = "{cluster.address}"\npython = "{sys.executable}"\n'
        home.config.write_text(f'default_backend = "ray"\n{table}')
        yield cluster.machines, next(iter(cluster.links.values())).address


CLUSTERS = {"slurm": (slurm, slurm_cluster.why_not), "ray": (ray, ray_cluster.why_not)}


def spread(values: list[float], digits: int) -> str:
    """Median, and the least and the greatest."""
    median = statistics.median(values)
    return f"{median:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure(name: str, rounds: int, seconds: float, shown: Sequence[str]) -> bool:
    """Prints the rows of a backend. Returns: whether a job is as fast as it should be."""
    rates: dict[str, list[float]] = {way: [] for way in shown}
    with tempfile.TemporaryDirectory(prefix="smd-bench-") as folder:
        home = Home(Path(folder) / "home")
        home.make()
        with CLUSTERS[name][0](home) as (machines, address):
            alone = by_smddprun(machines, address)
            ways = dict(zip(WAYS, (by_job(home), alone, alone), strict=True))
            weights = {run(0.2)["weights"] for run in (ways["job"], alone)}  # nobody counts it
            for number in range(rounds):
                for way in in_turn(shown, number):
                    found = ways[way](seconds)
                    weights.add(found["weights"])
                    rates[way].append(found["rate"])
    assert len(weights) == 1, f"it is not the same training: {weights}"
    for way in WAYS[:2]:
        print(f"{name:6} {way:24} {spread(rates[way], 1)} steps/s")
    is_fast = False
    for way in shown:
        if way == "smddprun":
            continue
        pairs = [a / b for a, b in zip(rates[way], rates["smddprun"], strict=True)]
        print(f"{name:6} {way + ' / smddprun':24} {spread(pairs, 3)}, {rounds} pairs", flush=True)
        if way == "job":
            is_fast = statistics.median(pairs) >= LIMIT
    return is_fast


def main() -> int:
    """Measures; the exit status is 1 if a job loses more than it may, 2 if there is no cluster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_names(parser, "--backends", list(CLUSTERS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.5, help="of steps in each turn")
    parser.add_argument(
        "--floor", action="store_true", help="smddprun a second time, against itself: the noise"
    )
    arguments = parser.parse_args()
    shown = WAYS if arguments.floor else WAYS[:2]
    for name in arguments.backends:
        if (reason := CLUSTERS[name][1]()) is not None:
            print(f"nothing was measured: {reason}", file=sys.stderr)
            return 2
    began = time.monotonic()
    is_fast = [
        measure(name, arguments.rounds, arguments.seconds, shown) for name in arguments.backends
    ]
    print(f"aimed at: {LIMIT}; it took {time.monotonic() - began:.0f} s")
    return 0 if all(is_fast) else 1


if __name__ == "__main__":
    sys.exit(main())
