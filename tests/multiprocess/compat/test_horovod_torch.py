# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smdistributed.compat.horovod.torch`: every collective against a local computation, on ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import run_ranks

from tests.multiprocess.compat import horovod_ranks as ranks

SIZES = [2, 3]


@pytest.mark.parametrize("world_size", [1, *SIZES])
def test_who_takes_part(world_size: int) -> None:
    run_ranks(ranks.identity, world_size)


@pytest.mark.parametrize("backend", ["gloo", "smddp"])
def test_the_scripts_own_group_is_left_alone(backend: str) -> None:
    run_ranks(ranks.beside_the_scripts_group, 2, backend)


def test_timelines_are_those_of_the_profiler(tmp_path: Path) -> None:
    for text in run_ranks(ranks.timeline, 2, str(tmp_path)):
        assert any("all_reduce" in str(event.get("name")) for event in _events(text))


def _events(text: str) -> Any:
    trace = json.loads(text)
    return trace["traceEvents"] if isinstance(trace, dict) else trace


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_reductions_equal_a_local_computation(world_size: int) -> None:
    run_ranks(ranks.reductions, world_size)


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_exchanges_equal_a_local_computation(world_size: int) -> None:
    run_ranks(ranks.exchanges, world_size)


@pytest.mark.parametrize("world_size", SIZES)
def test_gradients_are_those_that_horovod_documents(world_size: int) -> None:
    run_ranks(ranks.gradients_of_collectives, world_size)


@pytest.mark.parametrize(
    ("disagreement", "words"),
    [
        (ranks.swapped_names, r"hvd.allreduce(name='a')"),
        (ranks.other_factors, "hvd.allreduce(prescale_factor=1.0, postscale_factor=3.0)"),
        (ranks.swapped_broadcasts, r"hvd.broadcast(name='of rank 1')"),
        (ranks.other_shapes, "all dimensions but the first"),
        (ranks.other_parameters, "ranks broadcast different parameters"),
        (ranks.uneven_join, "equally many batches"),
    ],
)
def test_ranks_that_disagree_get_an_error_each(disagreement: Any, words: str) -> None:
    for error, text, bases in run_ranks(disagreement, 2):
        assert error == "SMDDPMismatch", text
        assert "SMDDPError" in bases  # which HorovodInternalError is
        assert words in text


COLLECTIVES = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "reducescatter",
    "reducescatter_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "sparse_allreduce_async",
    "allgather",
    "allgather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "alltoall",
    "alltoall_async",
    "barrier",
]


@pytest.fixture(scope="module")
def refusals() -> Any:
    return run_ranks(ranks.refusals, 1, COLLECTIVES)[0]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_process_sets_and_adasum_are_refused(refusals: Any, name: str) -> None:
    outcomes = zip(refusals[name], ["hvd.global_process_set", "op=hvd.Average"], strict=False)
    for (error, text), instead in outcomes:
        assert error == "SMDDPUnsupported"
        assert f"hvd.{name}()" in text
        assert instead in text
    assert len(refusals[name]) == (2 if "reduce" in name else 1)


def test_a_norm_of_several_ranks_is_refused_on_cpus() -> None:
    run_ranks(ranks.refuses_norm_on_cpu, 2)
