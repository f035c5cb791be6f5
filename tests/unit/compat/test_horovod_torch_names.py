# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The names of `horovod.torch` take Horovod's arguments; refused ones say why.

That all names are there, tests/multiprocess/compat/test_horovod_table.py compares with the page.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import smdistributed.compat.horovod.torch as hvd
from smdistributed.compat.horovod.torch import job
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

# Horovod's arguments, in their order, with their defaults.
SET = "process_set=global_process_set"
FACTORS = "prescale_factor=1.0 postscale_factor=1.0"
COMPRESSION = "compression=Compression.none"
REDUCE = f"average=None name=None op=None {FACTORS} {SET}"
REDUCE_COMPRESSED = f"average=None name=None {COMPRESSION} op=None {FACTORS} {SET}"
SCATTER = f"name=None op=Average {SET} {FACTORS}"
SCATTER_COMPRESSED = f"name=None {COMPRESSION} op=Average {SET} {FACTORS}"
ARGUMENTS = {
    "init": "comm=None process_sets=None",
    "start_timeline": "file_path mark_cycles=False",
    "allreduce": f"tensor {REDUCE_COMPRESSED}",
    "allreduce_": f"tensor {REDUCE}",
    "allreduce_async": f"tensor {REDUCE}",
    "allreduce_async_": f"tensor {REDUCE}",
    "grouped_allreduce": f"tensors {REDUCE_COMPRESSED}",
    "grouped_allreduce_": f"tensors {REDUCE}",
    "grouped_allreduce_async": f"tensors {REDUCE}",
    "grouped_allreduce_async_": f"tensors {REDUCE}",
    "sparse_allreduce_async": f"tensor name op {SET}",
    "allgather": f"tensor name=None {SET}",
    "allgather_async": f"tensor name=None {SET}",
    "grouped_allgather": f"tensors name=None {SET}",
    "grouped_allgather_async": f"tensors name=None {SET}",
    "broadcast": f"tensor root_rank name=None {SET}",
    "broadcast_": f"tensor root_rank name=None {SET}",
    "broadcast_async": f"tensor root_rank name=None {SET}",
    "broadcast_async_": f"tensor root_rank name=None {SET}",
    "alltoall": f"tensor splits=None name=None {SET}",
    "alltoall_async": f"tensor splits=None name=None {SET}",
    "reducescatter": f"tensor {SCATTER_COMPRESSED}",
    "reducescatter_async": f"tensor {SCATTER}",
    "grouped_reducescatter": f"tensors {SCATTER_COMPRESSED}",
    "grouped_reducescatter_async": f"tensors {SCATTER}",
    "poll": "handle",
    "synchronize": "handle",
    "join": "device=-1",
    "barrier": SET,
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank model=None",
    "broadcast_object": f"obj root_rank=0 name=None {SET}",
    "allgather_object": "obj name=None",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "SyncBatchNorm": "num_features eps=1e-05 momentum=0.1 affine=True track_running_stats=True",
    "DistributedOptimizer": f"optimizer named_parameters=None {COMPRESSION}"
    " backward_passes_per_step=1 op=Average gradient_predivide_factor=1.0 num_groups=0 groups=None"
    f" sparse_as_dense=False {SET}",
}
WORDS = {
    id(hvd.Compression.none): "Compression.none",
    id(hvd.global_process_set): "global_process_set",
    id(hvd.Average): "Average",
}


def _shown(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={WORDS.get(id(default), repr(default))}"


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_arguments_are_horovods(name: str) -> None:
    parameters = inspect.signature(getattr(hvd, name)).parameters.values()
    assert [_shown(each) for each in parameters] == ARGUMENTS[name].split()


@pytest.mark.parametrize("name", ["ProcessSet", "add_process_set", "remove_process_set"])
def test_process_sets_are_refused(name: str) -> None:
    with pytest.raises(SMDDPUnsupported, match=r"torch.distributed.new_group\(\)"):
        getattr(hvd, name)([0])


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("run", "ranks do not come and go.*Save a checkpoint"),
        ("State", "ranks do not come and go.*Save a checkpoint"),
        ("ObjectState", "ranks do not come and go.*Save a checkpoint"),
        ("TorchState", "ranks do not come and go.*Save a checkpoint"),
        ("ElasticSampler", "ranks do not come and go.*torch.utils.data.DistributedSampler"),
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
