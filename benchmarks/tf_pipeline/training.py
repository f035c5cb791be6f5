# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that trains a GPT when it is asked to; see `steps.py`.

With several ranks: over a pipeline, and the stages alone. With one: plain Keras, the whole batch.
With replicas (see `hybrid.py`): over pipelines that average their gradients, or do not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import tensorflow as tf
from common.on_request import answer_requests
from models import SHAPES, Gpt, Stage, WholeGpt, batch_of, loss_of

import smdistributed.compat.horovod.tensorflow as hvd
import smdistributed.modelparallel.tensorflow as smp
from smdistributed.modelparallel.tensorflow.step.pipeline import current_pipeline

WARM_UP = 3


def main() -> None:
    """Answers requests, or prints how much memory steps take."""
    options = _parse()
    ranks = int(os.environ["WORLD_SIZE"])
    if options.cores:  # before there are threads, which inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    parameters: dict[str, Any] = {
        "partitions": ranks // options.replicas,
        "microbatches": options.microbatches,
        "horovod": options.replicas > 1,
    }
    if options.active:
        parameters["active_microbatches"] = options.active
    smp.init({**parameters, "auto_partition": False, "default_partition": 0})
    if options.memory:
        _print_memory(options)
    else:
        _answer(options, ranks)


def _answer(options: argparse.Namespace, ranks: int) -> None:
    microbatches = options.microbatches
    begin = time.perf_counter()
    measures = _pipeline_measures(options) if ranks > 1 else _whole_measures(options)
    loss = measures["step"]()
    first_s = time.perf_counter() - begin
    for work in measures.values():
        for _ in range(WARM_UP):
            work()
    answers = {name: _seconds(work) for name, work in measures.items()}
    if "piece" in answers:
        answers["pieces"] = lambda count: microbatches * answers["piece"](count)
    if ranks > 1 and options.replicas == 1:
        stage = Stage(SHAPES[options.shape], smp.mp_rank(), ranks).work
        for _ in range(WARM_UP):
            stage()
        answers["ideal"] = lambda count: _ideal(_of_each(stage, count), microbatches)
        answers["alone"] = lambda count: _ideal(_one_by_one(stage, count), microbatches)
    greeting = json.dumps({"loss": loss, "first_s": first_s})
    is_first = smp.rank() == 0
    answer_requests(options.socket, is_first, _tell, answers, greeting)


def _pipeline_measures(options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """A step, forward and backward, which replicas do on their parts of the batch.

    With replicas it ends with the mean of their gradients; beside it the step without that
    (`without`), and that without a step (`exchange`).
    """
    shape = SHAPES[options.shape]
    tf.keras.utils.set_random_seed(1)
    model = Gpt(shape)
    optimizer = tf.keras.optimizers.SGD()

    @smp.step
    def train(tokens: Any, targets: Any) -> Any:
        loss = loss_of(model(tokens), targets)
        return loss, optimizer.get_gradients(loss, model.trainable_variables)

    @tf.function
    def without(tokens: Any, targets: Any) -> Any:
        loss, gradients = train(tokens, targets)
        return loss.reduce_mean(), [each.accumulate() for each in gradients]

    whole = batch_of(shape, options.microbatches * options.replicas)
    batch = [tf.split(each, options.replicas)[smp.dp_rank()] for each in whole]
    if options.replicas == 1:
        return {"step": lambda: float(without(*batch)[0])}

    @tf.function
    def step(tokens: Any, targets: Any) -> Any:
        loss, gradients = train(tokens, targets)
        return hvd.allreduce(loss.reduce_mean()), [hvd.allreduce(g.accumulate()) for g in gradients]

    @tf.function
    def exchange(loss: Any, gradients: Any) -> Any:
        return hvd.allreduce(loss), [hvd.allreduce(each) for each in gradients]

    results = without(*batch)
    return {
        "step": lambda: float(step(*batch)[0]),
        "without": lambda: float(without(*batch)[0]),
        "exchange": lambda: float(exchange(*results)[0]),
    }


def _whole_measures(options: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """A step of one process; with one thread also one of a single microbatch."""
    shape = SHAPES[options.shape]
    tf.keras.utils.set_random_seed(1)
    model = WholeGpt(shape)

    @tf.function
    def step(tokens: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(model(tokens), targets)
        return loss, tape.gradient(loss, model.trainable_variables)

    batch, piece = batch_of(shape, options.microbatches), batch_of(shape, 1)
    measures = {"step": lambda: float(step(*batch)[0])}
    if options.threads == 1:
        measures["piece"] = lambda: float(step(*piece)[0])
    return measures


def _seconds(work: Callable[[], Any]) -> Callable[[int], float]:
    """Measures seconds of one repetition on the slowest rank."""
    return lambda count: max(_of_each(work, count))


def _of_each(work: Callable[[], Any], count: int) -> list[float]:
    """Seconds of one repetition, by rank; all begin together."""
    work()  # the other jobs had the caches
    smp.barrier()
    found: list[float] = smp.allgather(_mean_s(work, count), smp.WORLD)
    return found


def _one_by_one(work: Callable[[], Any], count: int) -> list[float]:
    """The same, each rank while the others wait."""
    work()
    seconds = 0.0
    for rank in range(smp.size()):
        smp.barrier()
        if rank == smp.rank():
            seconds = _mean_s(work, count)
    smp.barrier()
    found: list[float] = smp.allgather(seconds, smp.WORLD)
    return found


def _mean_s(work: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        work()
    return (time.perf_counter() - begin) / count


def _ideal(stages: list[float], microbatches: int) -> float:
    """A microbatch's way through all stages, and the slowest one's work for the others."""
    return sum(stages) + (microbatches - 1) * max(stages)


def _tell(request: list[int]) -> list[int]:
    told: list[int] = smp.allgather(request, smp.WORLD)[0]
    return told


def _print_memory(options: argparse.Namespace) -> None:
    """What each rank holds for backward passes at the peak of a step, as counted; and its memory.

    `peak_bytes` is the most that is resident in a step, without what only the first call takes;
    `grown_bytes` is by how much that is more than before the first call. TensorFlow keeps memory of
    tensors once it has it, so the steps do not show it anew.
    """
    step = _pipeline_measures(options)["step"]
    before = _resident_bytes("VmRSS")
    step()
    with current_pipeline("a benchmark").driver.recording() as records:
        step()
    ctypes.CDLL(None).malloc_trim(0)  # what the first call took
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    for _ in range(WARM_UP):
        step()
    peak = _resident_bytes("VmHWM")
    mine = {
        "held_bytes": records[0].peak_bytes,
        "held_microbatches": records[0].peak_microbatches,
        "grown_bytes": peak - before,
        "peak_bytes": peak,
    }
    of_all = smp.allgather(mine, smp.WORLD)
    if smp.rank() == 0:
        found = {key: [each[key] for each in of_all] for key in mine}
        print(json.dumps({"active": options.active, **found}), flush=True)


def _resident_bytes(field: str) -> int:
    """Of /proc/self/status, where it is in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", required=True)
    parser.add_argument("--microbatches", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--cores", type=int, help="all ranks share the first so many")
    parser.add_argument("--active", type=int)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--socket")
    return parser.parse_args()


if __name__ == "__main__":
    main()
