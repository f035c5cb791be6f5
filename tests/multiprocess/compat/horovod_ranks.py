# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks do with Horovod's names for PyTorch: every form of every collective, and the rest."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch_ranks import TIMEOUT_S, raised, tagged

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16)


@contextlib.contextmanager
def horovod() -> Iterator[Any]:
    import smdistributed.compat.horovod.torch as hvd

    os.environ["SMDDP_TIMEOUT_SECONDS"] = str(TIMEOUT_S)
    hvd.init()
    try:
        yield hvd
    finally:
        hvd.shutdown()


def same(actual: Any, expected: Any, **tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, **tolerance)


def _cut(total: torch.Tensor, size: int) -> torch.Tensor:
    """The average as it is defined: floats divided, integers cut off towards zero."""
    if total.is_floating_point():
        return total / size
    return total.div(size, rounding_mode="trunc")


# ---- who takes part ----------------------------------------------------------------------------


def identity(rank: int, world_size: int) -> None:
    import smdistributed.compat.horovod.torch as hvd

    names = "rank size local_rank local_size cross_rank cross_size is_homogeneous barrier join"
    for name in names.split():
        error, text, bases = raised(getattr(hvd, name))
        assert error == "SMDDPNotInitialized", (name, error)
        assert {"ValueError", "RuntimeError"} <= set(bases)
        assert f"hvd.{name}()" in text
    assert not hvd.is_initialized()
    hvd.shutdown()
    for generation in range(2):
        hvd.init()
        hvd.init()
        assert hvd.is_initialized()
        assert dist.get_backend() == "smddp"
        assert (hvd.rank(), hvd.size()) == (rank, world_size)
        assert (hvd.local_rank(), hvd.local_size()) == (rank, world_size)
        assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
        assert hvd.is_homogeneous()
        assert hvd.global_process_set.ranks == list(range(world_size))
        assert hvd.global_process_set.rank() == rank
        assert hvd.allreduce(torch.tensor(1.0), op=hvd.Sum).item() == world_size, generation
        hvd.barrier()
        hvd.shutdown()
        assert not hvd.is_initialized()
        assert not dist.is_initialized()
        assert raised(hvd.rank)[0] == "SMDDPNotInitialized"


def beside_the_scripts_group(rank: int, world_size: int, backend: str) -> None:
    import smdistributed.compat.horovod.torch as hvd
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_S))
    theirs = dist.distributed_c10d._get_default_group()
    for _ in range(2):
        hvd.init()
        assert dist.distributed_c10d._get_default_group() is theirs
        assert (hvd.local_rank(), hvd.local_size()) == (rank, world_size)
        values = torch.tensor([rank, rank + 1], dtype=torch.bfloat16)
        same(hvd.allreduce(values), torch.tensor([0.5, 1.5], dtype=torch.bfloat16))
        hvd.shutdown()
        x = torch.ones(2)
        dist.all_reduce(x)
        assert x.tolist() == [world_size, world_size]
    hvd.init()
    dist.destroy_process_group()
    assert not hvd.is_initialized()
    assert raised(hvd.size)[0] == "SMDDPNotInitialized"


def timeline(rank: int, world_size: int, folder: str) -> str:
    with horovod() as hvd:
        hvd.start_timeline(f"{folder}/timeline.json")
        hvd.allreduce(torch.ones(4), name="recorded")
        hvd.stop_timeline()
        assert raised(hvd.start_timeline, "x.json", mark_cycles=True)[0] == "SMDDPUnsupported"
    with open(f"{folder}/timeline.{rank}.json") as file:
        return file.read()


# ---- collectives -------------------------------------------------------------------------------


def reductions(rank: int, world_size: int) -> None:
    with horovod() as hvd:
        for dtype, shape in itertools.product((*FLOATS, *INTEGERS), ((), (5,), (0,), (3, 4))):
            count = torch.Size(shape).numel()
            parts = [tagged(r, count, dtype).reshape(shape) for r in range(world_size)]
            whole = torch.stack(parts)
            total = whole.to(torch.float64).sum(0) if dtype.is_floating_point else whole.sum(0)
            expected = {
                hvd.Average: _cut(total, world_size).to(dtype),
                hvd.Sum: total.to(dtype),
                hvd.Min: whole.amin(0),
                hvd.Max: whole.amax(0),
            }
            if dtype not in (torch.int8, torch.uint8):
                expected[hvd.Product] = whole.prod(0).to(dtype)
            for op, result in expected.items():
                mine = parts[rank].clone()
                tolerance = {"rtol": 1e-2, "atol": 0.0} if dtype.is_floating_point else {}
                same(hvd.allreduce(mine, op=op), result, **tolerance)
                same(hvd.synchronize(hvd.allreduce_async(mine, op=op)), result, **tolerance)
                same(mine, parts[rank])  # untouched
                assert hvd.allreduce_(mine, op=op) is mine
                same(mine, result, **tolerance)
                again = parts[rank].clone()
                handle = hvd.allreduce_async_(again, op=op, name=f"{dtype} {shape} {op}")
                assert hvd.synchronize(handle) is again
                assert hvd.poll(handle)
                same(again, result, **tolerance)
        _flags(hvd, rank, world_size)
        _forms_are_one(hvd, rank, world_size)
        _older_and_scaled(hvd, rank, world_size)
        _not_contiguous(hvd, rank, world_size)
        _grouped(hvd, rank, world_size)
        _compressed(hvd, rank, world_size)


def _flags(hvd: Any, rank: int, world_size: int) -> None:
    mine = torch.tensor([rank == 0, True, False])
    assert hvd.allreduce(mine, op=hvd.Max).tolist() == [True, True, False]
    assert hvd.allreduce(mine, op=hvd.Min).tolist() == [world_size == 1, True, False]
    assert raised(hvd.allreduce, mine)[0] == "SMDDPUnsupported"


def _forms_are_one(hvd: Any, rank: int, world_size: int) -> None:
    mine = torch.tensor([float(rank)])
    call = hvd.allreduce_ if rank else hvd.allreduce
    same(call(mine, name="the same"), torch.tensor([(world_size - 1) / 2]))


def _older_and_scaled(hvd: Any, rank: int, world_size: int) -> None:
    mine = tagged(rank, 6)
    total = sum(tagged(r, 6) for r in range(world_size))
    same(hvd.allreduce(mine, average=False), total)
    same(hvd.allreduce(mine, True), total / world_size)
    same(hvd.allreduce(mine, prescale_factor=0.5, postscale_factor=3.0), total / world_size * 1.5)
    halves = [(tagged(r, 6, torch.int64).double() * 0.5).long() for r in range(world_size)]
    same(
        hvd.allreduce(mine.long(), prescale_factor=0.5, postscale_factor=2.0),
        (sum(halves).double() * (2.0 / world_size)).long(),
    )
    same(mine, tagged(rank, 6))
    error, text, _ = raised(hvd.allreduce, mine, average=True, op=hvd.Sum)
    assert error == "SMDDPConfigInvalid"
    assert "Leave average out" in text


def _not_contiguous(hvd: Any, rank: int, world_size: int) -> None:
    parts = [tagged(r, 12).reshape(3, 4) for r in range(world_size)]
    expected = sum(parts) / world_size
    same(hvd.allreduce(parts[rank].t()), expected.t())
    base = parts[rank].clone()
    assert hvd.allreduce_(base.t()).shape == (4, 3)
    same(base, expected)
    every_second = tagged(rank, 8)
    hvd.allreduce_(every_second[::2])
    same(every_second[1::2], tagged(rank, 8)[1::2])
    same(every_second[::2], sum(tagged(r, 8)[::2] for r in range(world_size)) / world_size)
    same(hvd.broadcast(base.t(), 0), base.t())
    holes = tagged(rank, 8)
    hvd.broadcast_(holes[::2], world_size - 1)
    same(holes[::2], tagged(world_size - 1, 8)[::2])
    same(holes[1::2], tagged(rank, 8)[1::2])


def _grouped(hvd: Any, rank: int, world_size: int) -> None:
    def lists(r: int) -> list[torch.Tensor]:
        shapes = ((2, 3), (), (0,), (20000,))
        dtypes = (torch.float32, torch.float64, torch.int64, torch.float32)
        sizes = [torch.Size(shape).numel() for shape in shapes]
        return [tagged(r, n, d).reshape(s) for n, d, s in zip(sizes, dtypes, shapes, strict=True)]

    sums = [sum(each[1:], each[0]) for each in zip(*map(lists, range(world_size)), strict=True)]
    averages = [_cut(total, world_size) for total in sums]
    mine = lists(rank)
    same(hvd.grouped_allreduce(mine), averages)
    same(hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum, name="group")), sums)
    same(mine, lists(rank))
    result = hvd.grouped_allreduce_(mine, average=False)
    assert all(a is b for a, b in zip(result, mine, strict=True))
    same(mine, sums)
    mine = lists(rank)
    hvd.synchronize(hvd.grouped_allreduce_async_(mine))
    same(mine, averages)
    assert hvd.grouped_allreduce([]) == []


def _compressed(hvd: Any, rank: int, world_size: int) -> None:
    class Halves:
        @staticmethod
        def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
            return tensor / 2, "halved"

        @staticmethod
        def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
            assert context == "halved"
            return tensor * 2

    total = sum(tagged(r, 6) for r in range(world_size))
    for compression in (hvd.Compression.none, hvd.Compression.fp16, Halves):
        result = hvd.allreduce(tagged(rank, 6), compression=compression, op=hvd.Sum)
        same(result, total)
        (result,) = hvd.grouped_allreduce([tagged(rank, 6)], compression=compression, op=hvd.Sum)
        same(result, total)
    numbers = hvd.allreduce(torch.tensor([rank]), compression=hvd.Compression.fp16, op=hvd.Max)
    assert numbers.tolist() == [world_size - 1]
    assert numbers.dtype == torch.int64


def exchanges(rank: int, world_size: int) -> None:
    with horovod() as hvd:
        for dtype in (*FLOATS, *INTEGERS, torch.bool):
            _gather(hvd, rank, world_size, dtype)
            _broadcast(hvd, rank, world_size, dtype)
            _all_to_all(hvd, rank, world_size, dtype)
        for dtype in (*FLOATS, *INTEGERS):
            _reduce_scatter(hvd, rank, world_size, dtype)
        for name in ("allgather", "alltoall", "reducescatter"):
            error, text, _ = raised(getattr(hvd, name), torch.tensor(1.0))
            assert error == "SMDDPConfigInvalid"
            assert "reshape(1)" in text
        assert raised(hvd.broadcast, torch.ones(1), world_size)[0] == "SMDDPConfigInvalid"
        _sparse(hvd, rank, world_size)
        assert hvd.broadcast_object({"rank": rank}, world_size - 1) == {"rank": world_size - 1}
        assert hvd.broadcast_object(None, 0, "nothing") is None
        assert hvd.allgather_object((rank, "x" * rank)) == [(r, "x" * r) for r in range(world_size)]
        unpicklable = (i for i in range(3)) if rank == 0 else "data"
        for call in (hvd.broadcast_object, hvd.allgather_object):
            error, text, _ = raised(call, unpicklable)
            assert error == "SMDDPConfigInvalid"
            assert "the object of rank 0 cannot be pickled" in text
        assert 0 <= hvd.join() < world_size
        assert len(set(hvd.allgather_object(hvd.join()))) == 1
        error, text, _ = raised(hvd.synchronize, 17)
        assert error == "SMDDPConfigInvalid"


def _gather(hvd: Any, rank: int, world_size: int, dtype: torch.dtype) -> None:
    for rows in (list(range(world_size)), [2] * world_size, [0] * world_size):
        parts = [tagged(r, rows[r] * 3, dtype).reshape(rows[r], 3) for r in range(world_size)]
        whole = torch.cat(parts)
        same(hvd.allgather(parts[rank]), whole)
        same(hvd.synchronize(hvd.allgather_async(parts[rank], "gathered")), whole)
        flat = parts[rank].t()  # (3, rows): not contiguous
        if len(set(rows)) == 1:
            same(hvd.allgather(flat), torch.cat([part.t() for part in parts]))
        two = [parts[rank], tagged(rank, rank + 1, dtype)]
        expected = [whole, torch.cat([tagged(r, r + 1, dtype) for r in range(world_size)])]
        same(hvd.grouped_allgather(two), expected)
        same(hvd.synchronize(hvd.grouped_allgather_async(two, name="both")), expected)


def _broadcast(hvd: Any, rank: int, world_size: int, dtype: torch.dtype) -> None:
    for shape, root in itertools.product(((), (4,), (0, 2)), (0, world_size - 1)):
        count = torch.Size(shape).numel()
        mine, expected = (tagged(r, count, dtype).reshape(shape) for r in (rank, root))
        same(hvd.broadcast(mine, root), expected)
        same(hvd.synchronize(hvd.broadcast_async(mine, root, "copied")), expected)
        same(mine, tagged(rank, count, dtype).reshape(shape))
        assert hvd.broadcast_(mine, root) is mine
        same(mine, expected)
        again = tagged(rank, count, dtype).reshape(shape)
        assert hvd.synchronize(hvd.broadcast_async_(again, root_rank=root)) is again
        same(again, expected)


def _all_to_all(hvd: Any, rank: int, world_size: int, dtype: torch.dtype) -> None:
    even = tagged(rank, world_size * 2, dtype).reshape(world_size, 2)
    expected = torch.stack(
        [tagged(r, world_size * 2, dtype).reshape(world_size, 2)[rank] for r in range(world_size)]
    )
    same(hvd.alltoall(even), expected)

    def splits(r: int) -> list[int]:
        return [(r + peer) % 3 for peer in range(world_size)]

    def rows(r: int) -> torch.Tensor:
        return tagged(r, (sum(splits(r)) + 1) * 2, dtype).reshape(-1, 2)

    expected = torch.cat(
        [rows(r)[: sum(splits(r))].split(splits(r))[rank] for r in range(world_size)]
    )
    received = [splits(r)[rank] for r in range(world_size)]
    for form in (splits(rank), torch.tensor(splits(rank))):
        result, numbers = hvd.alltoall(rows(rank), form)
        same(result, expected)
        assert numbers.tolist() == received
        assert numbers.dtype == (torch.int32 if isinstance(form, list) else torch.int64)
        result, numbers = hvd.synchronize(hvd.alltoall_async(rows(rank), form, "swapped"))
        same(result, expected)
    for wrong in ([1] * (world_size + 1), [-1] * world_size, [100] * world_size):
        assert raised(hvd.alltoall, even, wrong)[0] == "SMDDPConfigInvalid"
    if world_size > 1:
        assert raised(hvd.alltoall, tagged(rank, 1, dtype))[0] == "SMDDPConfigInvalid"


def _reduce_scatter(hvd: Any, rank: int, world_size: int, dtype: torch.dtype) -> None:
    for count in (world_size * 2, world_size * 2 + 1, 1, 0):
        parts = [tagged(r, count * 2, dtype).reshape(count, 2) for r in range(world_size)]
        total = torch.stack(parts).to(torch.float64).sum(0)
        least, left = divmod(count, world_size)
        begin = rank * least + min(rank, left)
        end = begin + least + (rank < left)
        sums = total.to(dtype)[begin:end]
        averages = (total / world_size).to(dtype)[begin:end]
        tolerance = {"rtol": 1e-2, "atol": 0.0} if dtype.is_floating_point else {}
        same(hvd.reducescatter(parts[rank]), averages, **tolerance)
        handle = hvd.reducescatter_async(parts[rank], "scattered", hvd.Sum)
        same(hvd.synchronize(handle), sums, **tolerance)
        same(hvd.grouped_reducescatter([parts[rank]] * 2), [averages] * 2, **tolerance)
        handle = hvd.grouped_reducescatter_async([parts[rank]], op=hvd.Sum)
        same(hvd.synchronize(handle), [sums], **tolerance)
        if dtype in (torch.float32, torch.float64):
            factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
            same(hvd.reducescatter(parts[rank], **factors), averages * 2.0)


def _sparse(hvd: Any, rank: int, world_size: int) -> None:
    def entries(r: int) -> torch.Tensor:
        indices = [[r, 0, 0], [0, 1, 1]] if r else [[], []]
        values = [1.0 + r, 2.0, 3.0] if r else []
        return torch.sparse_coo_tensor(indices, values, (world_size, 2))

    total = sum(entries(r).to_dense() for r in range(world_size))
    result = hvd.sparse_allreduce_async(entries(rank), name="rows", op=hvd.Average)()
    assert result.is_sparse
    same(result.to_dense(), total / world_size)
    same(hvd.sparse_allreduce_async(entries(rank), "more", hvd.Sum)().to_dense(), total)
    assert raised(hvd.sparse_allreduce_async, total, "x", hvd.Sum)[0] == "SMDDPConfigInvalid"
    text = raised(hvd.allreduce, entries(rank))[1]
    assert "hvd.sparse_allreduce_async()" in text


def gradients_of_collectives(rank: int, world_size: int) -> None:
    """As Horovod's differentiable forms have them; each rank's gradient is its rank + 1."""
    n, factor = world_size, float(rank + 1)
    mean, total = (n + 1) / 2, n * (n + 1) / 2

    def gradient(call: Any, rows: int = 4) -> torch.Tensor:
        x = torch.ones(rows, requires_grad=True)
        result = call(x)
        result = result[0] if isinstance(result, (tuple, list)) else result
        (result * factor).sum().backward()
        assert x.grad is not None
        return x.grad

    with horovod() as hvd:
        same(gradient(hvd.allreduce), torch.full((4,), mean))
        same(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), torch.full((4,), total))
        scaled = gradient(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0))
        same(scaled, torch.full((4,), 2 * total))
        halved = gradient(lambda x: hvd.allreduce(x, compression=hvd.Compression.fp16))
        same(halved, torch.full((4,), mean))
        same(gradient(lambda x: hvd.grouped_allreduce([x])), torch.full((4,), mean))
        same(gradient(hvd.allgather, rank + 1), torch.full((rank + 1,), mean))
        same(gradient(lambda x: hvd.grouped_allgather([x]), 2), torch.full((2,), mean))
        expected = mean if rank == 1 else 0.0
        same(gradient(lambda x: hvd.broadcast(x, 1)), torch.full((4,), expected))
        back = torch.arange(1.0, n + 1).repeat_interleave(2)
        same(gradient(hvd.alltoall, 2 * n), back)
        some = gradient(lambda x: hvd.alltoall(x, [1] * n), n + 1)  # one row goes nowhere
        same(some, torch.tensor([*range(1, n + 1), 0.0]))
        same(gradient(hvd.reducescatter, 2 * n), back)
        same(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), 2 * n), back * n)
        same(gradient(lambda x: hvd.grouped_reducescatter([x]), 2 * n), back)
        with_max = hvd.allreduce(torch.ones(2, requires_grad=True), op=hvd.Max)
        error, text, _ = raised(with_max.sum().backward)
        assert error == "SMDDPUnsupported"
        assert "tensor.detach()" in text


# ---- ranks that disagree -----------------------------------------------------------------------


def swapped_names(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        names = ["a", "b"] if rank == 0 else ["b", "a"]
        handles = [hvd.allreduce_async(torch.full((3,), 1.0 + rank), name=name) for name in names]
        return raised(lambda: [hvd.synchronize(handle) for handle in handles])


def other_factors(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        return raised(hvd.allreduce, torch.ones(3), op=hvd.Sum, postscale_factor=2.0 + rank)


def swapped_broadcasts(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        return raised(hvd.broadcast, torch.ones(3), 0, name=f"of rank {rank}")


def other_shapes(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        return raised(hvd.allgather, torch.ones(2, 2 + rank))


def other_parameters(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        return raised(hvd.broadcast_parameters, {f"weight{rank}": torch.ones(3)}, 0)


def uneven_join(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        hvd.allreduce(torch.ones(3))
        return raised(hvd.join) if rank == 0 else raised(hvd.allreduce, torch.ones(3))


# ---- what is refused ---------------------------------------------------------------------------


def refusals(rank: int, world_size: int, names: list[str]) -> dict[str, list[tuple[str, str]]]:
    """By name of a collective, class and text of the error for a process set and for Adasum."""
    found = {}
    with horovod() as hvd:
        for name in names:
            function = getattr(hvd, name)
            data: Any = [torch.ones(3)] if name.startswith("grouped") else torch.ones(3)
            arguments = {"broadcast": [data, 0], "barrier": []}.get(name.partition("_")[0], [data])
            if name == "sparse_allreduce_async":
                arguments = [data, None]
            more = {"op": hvd.Sum} if "sparse" in name else {}
            found[name] = [raised(function, *arguments, process_set=[0], **more)[:2]]
            if "reduce" in name:
                found[name].append(raised(function, *arguments, op=hvd.Adasum)[:2])
    return found


def refuses_norm_on_cpu(rank: int, world_size: int) -> None:
    with horovod() as hvd:
        norm, x = hvd.SyncBatchNorm(3), torch.randn(2, 3)
        error, text, _ = raised(norm, x)
        assert error == "SMDDPUnsupported"
        assert "torch.nn.BatchNorm2d" in text
        norm.eval()
        assert norm(x).shape == x.shape
