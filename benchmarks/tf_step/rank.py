# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of the benchmark: every column, one after the other, round by round.

Started by run.py under smddprun. Rank 0 prints its findings as one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import numpy as np
from common.rounds import in_turn, slowest
from turns import Turns, ratios, summarise

SIZES = (4, 4 << 10, 256 << 10, 4 << 20, 25 << 20)
WARM_UP = 3
MAX_CALLS = 200


def start(ports: list[str], inter: int, intra: int) -> Any:
    """Joins both kinds of group; TensorFlow's first, which must come before its first operation."""
    workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": int(os.environ["RANK"])}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    import tensorflow as tf

    import smdistributed.dataparallel.tensorflow as sdp

    tf.config.threading.set_inter_op_parallelism_threads(inter)
    tf.config.threading.set_intra_op_parallelism_threads(intra)
    communication = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication)
    sdp.init()
    return strategy


class Clock:
    """Turns of columns, on all ranks at once."""

    def __init__(self) -> None:
        from smdistributed.dataparallel.tensorflow.job import resolve_group

        self._group = resolve_group(None, "the benchmark").communicator("the benchmark")

    def measure(
        self, columns: Mapping[str, Callable[[], Any]], rounds: int, turn_s: float
    ) -> dict[str, list[list[float]]]:
        """By column and round, seconds of each call on its slowest rank."""
        calls = {}
        for name, call in columns.items():
            self._turn(call, WARM_UP)
            seconds = float(np.median(self._turn(call, WARM_UP)))
            calls[name] = min(MAX_CALLS, max(2, round(turn_s / seconds)))
        turns: dict[str, list[list[float]]] = {name: [] for name in columns}
        names = list(columns)
        for number in range(rounds):
            for name in in_turn(names, number):
                self._turn(columns[name], 1)  # the caches hold another column's memory
                turns[name].append(self._turn(columns[name], calls[name]))
        return turns

    def _turn(self, call: Callable[[], Any], calls: int) -> list[float]:
        mine = np.empty(calls)
        self._group.barrier()
        last = time.perf_counter()
        for index in range(calls):
            call()
            now = time.perf_counter()
            mine[index] = now - last
            last = now
        gathered = np.empty((self._group.world_size, calls))
        self._group.all_gather(gathered.reshape(-1), mine)
        return slowest(gathered.tolist())


def _figures(turns: Turns, reference: str) -> dict[str, Any]:
    return {
        "columns": {name: summarise(each) for name, each in turns.items()},
        f"to_{reference}": {name: ratios(each, turns[reference]) for name, each in turns.items()},
    }


def measure_collectives(strategy: Any, clock: Clock, arguments: argparse.Namespace) -> Any:
    """Seconds of one sum, by size and column."""
    from collective_columns import Collectives

    found = []
    for number, num_bytes in enumerate(SIZES):
        columns = Collectives(strategy, num_bytes, number).columns()
        turns = clock.measure(columns, arguments.rounds, arguments.turn_ms / 1e3)
        found.append({"bytes": num_bytes, **_figures(turns, "smddp")})
    return found


def measure_steps(strategy: Any, clock: Clock, arguments: argparse.Namespace) -> Any:
    """Seconds of one training step, by column."""
    import step_columns

    columns = step_columns.columns(strategy, arguments.batch)
    losses: dict[str, list[float]] = {name: [] for name in columns}
    for name, step in columns.items():
        for _ in range(WARM_UP):
            losses[name].append(float(step()))
    for name, found in losses.items():  # they train alike, but for what does not communicate
        if name != "compute":
            np.testing.assert_allclose(found, losses["strategy"], rtol=1e-3, err_msg=name)
    turns = clock.measure(columns, arguments.rounds, arguments.turn_ms / 1e3)
    return {"batch": arguments.batch, "losses": losses, **_figures(turns, "compute")}


def main() -> None:
    """Measures one case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--what", choices=("collectives", "steps"), required=True)
    parser.add_argument("--ports", required=True)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn-ms", type=float, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--inter", type=int, default=2)
    parser.add_argument("--intra", type=int, default=1)
    arguments = parser.parse_args()
    strategy = start(arguments.ports.split(","), arguments.inter, arguments.intra)
    import keras
    import tensorflow as tf

    import smdistributed.dataparallel.tensorflow as sdp
    from smdistributed.dataparallel.tensorflow.operations import backend

    clock = Clock()
    gc.collect()
    gc.disable()
    measure = {"collectives": measure_collectives, "steps": measure_steps}[arguments.what]
    found = {
        "found": measure(strategy, clock, arguments),
        "versions": {"tensorflow": tf.__version__, "keras": keras.__version__},
        "operations": backend.current().__name__.rpartition(".")[2],
    }
    if sdp.rank() == 0:
        print(json.dumps(found), flush=True)
    sdp.shutdown()


if __name__ == "__main__":
    main()
