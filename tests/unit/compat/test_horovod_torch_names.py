# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The public names of `horovod.torch` are there, with Horovod's arguments; refused ones say why."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import smdistributed.compat.horovod.torch as hvd
from smdistributed.compat.horovod.torch import job
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

# Those of release 0.28.1, and `is_homogeneous` of its `mpi_ops`.
NAMES = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

REDUCE = "tensor average name op prescale_factor postscale_factor process_set"
SCATTER = "tensor name op process_set prescale_factor postscale_factor"
ARGUMENTS = {
    "init": "comm process_sets",
    "start_timeline": "file_path mark_cycles",
    "allreduce": REDUCE.replace("op", "compression op", 1),
    "allreduce_": REDUCE,
    "allreduce_async": REDUCE,
    "allreduce_async_": REDUCE,
    "grouped_allreduce": REDUCE.replace("tensor", "tensors").replace("op", "compression op", 1),
    "grouped_allreduce_": REDUCE.replace("tensor", "tensors"),
    "grouped_allreduce_async": REDUCE.replace("tensor", "tensors"),
    "grouped_allreduce_async_": REDUCE.replace("tensor", "tensors"),
    "sparse_allreduce_async": "tensor name op process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "alltoall": "tensor splits name process_set",
    "alltoall_async": "tensor splits name process_set",
    "reducescatter": SCATTER.replace("op", "compression op", 1),
    "reducescatter_async": SCATTER,
    "grouped_reducescatter": SCATTER.replace("tensor", "tensors").replace(
        "op", "compression op", 1
    ),
    "grouped_reducescatter_async": SCATTER.replace("tensor", "tensors"),
    "poll": "handle",
    "synchronize": "handle",
    "join": "device",
    "barrier": "process_set",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model",
    "broadcast_object": "obj root_rank name process_set",
    "allgather_object": "obj name",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "SyncBatchNorm": "num_features eps momentum affine track_running_stats",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op"
    " gradient_predivide_factor num_groups groups sparse_as_dense process_set",
}


def test_all_public_names_are_there() -> None:
    assert sorted(hvd.__all__) == sorted(NAMES)
    assert all(hasattr(hvd, name) for name in NAMES)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_arguments_are_in_horovods_order(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters
    assert list(parameters) == ARGUMENTS[name].split()


@pytest.mark.parametrize("name", ["ProcessSet", "add_process_set", "remove_process_set"])
def test_process_sets_are_refused(name: str) -> None:
    with pytest.raises(SMDDPUnsupported, match=r"torch.distributed.new_group\(\)"):
        getattr(hvd, name)([0])


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("run", "Save checkpoints on rank 0"),
        ("State", "Save checkpoints on rank 0"),
        ("ObjectState", "Save checkpoints on rank 0"),
        ("TorchState", "Save checkpoints on rank 0"),
        ("ElasticSampler", "torch.utils.data.DistributedSampler"),
    ],
)
def test_elastic_training_is_refused(name: str, instead: str) -> None:
    with pytest.raises(SMDDPUnsupported, match=rf"hvd.elastic.{name} is not there.*{instead}"):
        getattr(hvd.elastic, name)(object())


def test_arguments_of_init_are_refused() -> None:
    with pytest.raises(SMDDPUnsupported, match=r"comm=\[0\].* Leave it out"):
        hvd.init([0])
    with pytest.raises(SMDDPUnsupported, match=r"process_sets='dynamic'.*new_group"):
        hvd.init(process_sets="dynamic")
    assert not hvd.is_initialized()


@pytest.mark.parametrize(
    ("sizes", "rank", "cross", "is_homogeneous"),
    [
        ([2, 2], 0, (0, 2), True),
        ([2, 2], 3, (1, 2), True),
        ([1, 3], 1, (1, 2), False),
        ([1, 3], 3, (0, 1), False),
        ([3, 1, 2], 5, (1, 2), False),
    ],
)
def test_places_on_several_hosts(
    sizes: list[int], rank: int, cross: tuple[int, int], is_homogeneous: bool
) -> None:
    table = [(local, size) for size in sizes for local in range(size)]
    place = job._place_of(rank, table)
    assert (place.local_rank, place.local_size) == table[rank]
    assert (place.cross_rank, place.cross_size) == cross
    assert place.is_homogeneous is is_homogeneous


@pytest.mark.parametrize("call", [hvd.poll, hvd.synchronize])
def test_what_is_no_handle(call: Any) -> None:
    with pytest.raises(SMDDPConfigInvalid, match=r"hvd.allreduce_async\(\)"):
        call(3)


def test_compressors() -> None:
    wide = torch.tensor([0.1, 70000.0])
    sent, context = hvd.Compression.fp16.compress(wide)
    assert sent.dtype == torch.float16
    assert hvd.Compression.fp16.decompress(sent, context).dtype == torch.float32
    whole = torch.tensor([1, 2])
    assert hvd.Compression.fp16.compress(whole)[0] is whole
    assert hvd.Compression.none.compress(wide)[0] is wide


def test_a_norm_alone_is_torchs_batch_norm() -> None:
    torch.manual_seed(1)
    x = torch.randn(4, 3, 2, 2)
    norm, expected = hvd.SyncBatchNorm(3), torch.nn.BatchNorm2d(3)
    assert isinstance(norm, torch.nn.SyncBatchNorm)
    for _ in range(2):
        torch.testing.assert_close(norm(x), expected(x))
    torch.testing.assert_close(norm.running_mean, expected.running_mean)
    norm.eval(), expected.eval()
    torch.testing.assert_close(norm(x), expected(x))
