# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""With the default settings: who may hold what address, and when. The table of docs/zero_copy.md.

Each row holds addresses while collectives run: readers and writers of other tensors and of earlier
views see exact values. Whoever touches the tensor that is being reduced may see any mixture of its
values, but nothing crashes, hangs or touches other memory.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_ranks import algorithms_of, smddp

DEADLINE_S = 120.0
_COUNT = 1 << 18  # float32 elements, 1 MiB
_CALLS = 12

Make = Callable[[int], Tensor]


def _is(tensor: Tensor, value: float) -> bool:
    return bool((tensor == value).all())


@contextlib.contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """A thread repeats `action`, at least once before and once after the body."""
    under_way, is_over = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        try:
            action()
            under_way.set()
            while not is_over.is_set():
                action()
            action()
        except BaseException as error:
            errors.append(error)
            under_way.set()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        under_way.wait()
        yield
    finally:
        is_over.set()
        thread.join()
    if errors:
        raise errors[0]


def _reduce(tensor: Tensor) -> None:
    """Some sums of `tensor`, each of them checked; the tensor stays where it is."""
    address = tensor.data_ptr()
    for _ in range(_CALLS):
        tensor.fill_(dist.get_rank() + 1)
        dist.all_reduce(tensor)
        assert _is(tensor, 3)
    assert tensor.data_ptr() == address


# --- rows: each gets tensors of ordinary memory, then tensors of empty_shared() -------------------


def torch_operations_on_threads(make: Make) -> None:
    left, middle, right = make(3 * _COUNT).fill_(1).split(_COUNT)
    other, seen = torch.full((_COUNT,), 5.0), set()

    def read() -> None:
        seen.add((float(left.sum()), float(other.sum())))

    with meanwhile(read), meanwhile(lambda: right.add_(1).sub_(1)):
        _reduce(middle)
    assert seen == {(float(_COUNT), 5.0 * _COUNT)}
    assert _is(right, 1)


def readers_of_the_root_of_a_broadcast(make: Make) -> None:
    """They and the collective only read: it must not move, which freed what they read."""
    tensor, seen = make(_COUNT).fill_(1), set()
    address, is_root = tensor.data_ptr(), dist.get_rank() == 0
    with meanwhile(lambda: seen.add(float(tensor.sum()))) if is_root else contextlib.nullcontext():
        for _ in range(_CALLS):
            dist.broadcast(tensor, 0)
    assert tensor.data_ptr() == address
    assert not is_root or seen == {float(_COUNT)}


def gloo_in_the_same_process(make: Make) -> None:
    """A pending send holds the address of what smddp broadcasts from here."""
    gloo = dist.new_group(backend="gloo")
    tensor = make(8 * _COUNT).fill_(1 if dist.get_rank() == 0 else 0)
    sending = dist.isend(tensor, 1, group=gloo) if dist.get_rank() == 0 else None
    for _ in range(3):
        dist.broadcast(tensor, 0)
    others = [torch.full((8 * _COUNT,), 7.0) for _ in range(2)]  # would get memory set free
    dist.barrier()
    if sending is None:
        received = torch.zeros(8 * _COUNT)
        dist.recv(received, 0, group=gloo)
        assert _is(received, 1)
    else:
        sending.wait()
    assert all(_is(other, 7) for other in others)
    dist.destroy_process_group(gloo)


def numpy(make: Make) -> None:
    tensor = make(2 * _COUNT).fill_(1)
    array, part = tensor.numpy(), tensor[:_COUNT]
    with meanwhile(lambda: np.testing.assert_array_equal(array[_COUNT:], 1)):
        _reduce(part)
    assert (array[:_COUNT] == 3).all()
    array[:] = 4
    assert _is(tensor, 4)


def dlpack(make: Make) -> None:
    tensor = make(_COUNT)
    earlier = torch.from_dlpack(tensor)
    capsule = torch.to_dlpack(tensor)
    _reduce(tensor)
    assert _is(earlier, 3)
    assert _is(torch.from_dlpack(capsule), 3)
    earlier.fill_(4)
    assert _is(tensor, 4)


def copies_that_do_not_block(make: Make) -> None:
    source, target, tensor = make(_COUNT).fill_(2), make(_COUNT).fill_(2), make(_COUNT)
    with meanwhile(lambda: target.copy_(source, non_blocking=True)):
        _reduce(tensor)
    later = tensor.to(torch.float64, non_blocking=True)
    tensor.fill_(0)
    assert _is(later, 3)
    assert _is(target, 2)


def threads_that_take_checkpoints(make: Make) -> None:
    model, tensor = nn.Linear(512, 512), make(_COUNT)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def snapshot() -> None:
        for name, value in model.state_dict().items():
            assert torch.equal(value.detach().cpu().clone(), before[name])

    with meanwhile(snapshot):
        _reduce(tensor)
        for parameter in model.parameters():
            address = parameter.data_ptr()
            for view in (parameter.data, parameter.detach(), parameter.data.view(-1)):
                for _ in range(3):
                    dist.all_reduce(view, op=dist.ReduceOp.MAX)
            assert parameter.data_ptr() == address
            before_it = next(v for v in before.values() if v.shape == parameter.shape)
            parameter.data.copy_(before_it)


def torch_save_in_a_thread(make: Make) -> None:
    kept, tensor = make(_COUNT).fill_(6), make(_COUNT)

    def save() -> None:
        file = io.BytesIO()
        torch.save({"kept": kept, "part": kept[3:9]}, file)
        file.seek(0)
        loaded = torch.load(file)
        assert _is(loaded["kept"], 6)
        assert loaded["part"].tolist() == [6.0] * 6

    with meanwhile(save):
        _reduce(tensor)


def the_tensor_that_is_being_reduced(make: Make) -> None:
    """Read and written under the collective: its values are anybody's guess, all others exact."""
    left, middle, right = make(3 * _COUNT).fill_(1).split(_COUNT)
    other = make(_COUNT).fill_(5)
    with meanwhile(lambda: middle.sum()), meanwhile(lambda: middle.fill_(9)):
        for _ in range(_CALLS):
            dist.all_reduce(middle)
    assert _is(left, 1)
    assert _is(right, 1)
    assert _is(other, 5)
    _reduce(middle)


ROWS: dict[str, Callable[[Make], None]] = {
    row.__name__: row
    for row in (
        torch_operations_on_threads,
        readers_of_the_root_of_a_broadcast,
        gloo_in_the_same_process,
        numpy,
        dlpack,
        copies_that_do_not_block,
        threads_that_take_checkpoints,
        torch_save_in_a_thread,
        the_tensor_that_is_being_reduced,
    )
}


def holds(rank: int, world_size: int, row: str) -> int:
    from smdistributed.dataparallel.torch import empty_shared, zero_copy_statistics

    torch.manual_seed(3)
    with smddp():
        ROWS[row](torch.empty)
        ROWS[row](empty_shared)
        return zero_copy_statistics().adopted


@pytest.mark.parametrize("row", ROWS)
def test_who_holds_an_address_sees_exact_values(row: str) -> None:
    assert run_ranks(holds, 2, row, deadline_s=DEADLINE_S) == [0, 0]


# --- gradients that are views of buckets ----------------------------------------------------------


def _train(read: bool) -> tuple[list[Tensor], set[str]]:
    """Some steps; with a thread that reads and saves gradients, and views held across steps."""
    torch.manual_seed(5)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(192, 192) for _ in range(3)]),
        bucket_cap_mb=0.2,
        gradient_as_bucket_view=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    held: list[tuple[Tensor, Tensor]] = []

    def look() -> None:
        for parameter in model.parameters():
            grad = parameter.grad
            if grad is not None:
                float(grad.sum())
                torch.save(grad, io.BytesIO())

    def steps() -> None:
        for step in range(4):
            torch.manual_seed(10 * step + dist.get_rank())
            model(torch.randn(4, 192)).pow(2).mean().backward()
            optimizer.step()
            held.extend((p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None)
            optimizer.zero_grad(set_to_none=True)
            if step == 0:  # torch makes other buckets now; these views are of the first ones
                first = list(held)
            held.clear()
        for view, value in first:
            assert torch.equal(view, value)

    with meanwhile(look) if read else contextlib.nullcontext():
        algorithms = algorithms_of(steps)
    return [p.detach().clone() for p in model.parameters()], set(algorithms)


def reads_gradients(rank: int, world_size: int) -> list[Tensor]:
    with smddp():
        alone, _ = _train(read=False)
        watched, algorithms = _train(read=True)
        assert "shared" in algorithms
        for one, other in zip(alone, watched, strict=True):
            assert torch.equal(one, other)
        return alone


def test_gradients_that_are_views_of_buckets() -> None:
    first, second = run_ranks(reads_gradients, 2, deadline_s=DEADLINE_S)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


# --- ordinary tensors, and the line about them ----------------------------------------------------


def recurs(rank: int, world_size: int) -> tuple[list[str], bool, list[str]]:
    import logging

    from smdistributed.dataparallel.torch import notices

    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    logging.getLogger("smdistributed").setLevel(logging.INFO)
    notices.forget()
    with smddp():
        tensor = torch.empty(_COUNT)
        address = tensor.data_ptr()
        algorithms = algorithms_of(lambda: _reduce(tensor))
        return algorithms, tensor.data_ptr() == address, [s for s in lines if "empty_shared" in s]


def test_a_tensor_that_merely_recurs_is_staged_and_one_line_says_what_is_faster() -> None:
    first, second = run_ranks(recurs, 2, deadline_s=DEADLINE_S)
    assert first[:2] == second[:2] == (["staged"] * _CALLS, True)
    assert len(first[2]) == 1
    assert "docs/zero_copy.md" in first[2][0]
    for env in ({"SMDDP_ZERO_COPY": "0"}, {"SMDDP_TRANSPORT": "tcp"}):
        outcomes: list[Any] = run_ranks(recurs, 2, env=env, deadline_s=DEADLINE_S)
        assert [lines for _, _, lines in outcomes] == [[], []]


# --- empty_shared ---------------------------------------------------------------------------------


def allocates(rank: int, world_size: int) -> tuple[list[str], int]:
    import gc
    import os

    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPNotInitialized
    from smdistributed.dataparallel.torch import empty_shared, zero_copy_statistics

    with pytest.raises(SMDDPNotInitialized, match="init_process_group"):
        empty_shared(3)
    with smddp():
        tensor = empty_shared(3, 100_003, dtype=torch.float64)
        assert (tensor.shape, tensor.dtype) == ((3, 100_003), torch.float64)
        assert tensor.is_contiguous()
        assert empty_shared((2, 3)).shape == (2, 3)
        assert empty_shared(()).dtype == torch.get_default_dtype()
        assert empty_shared(0, 5).shape == (0, 5)
        with pytest.raises(RuntimeError, match="negative"):
            empty_shared(-1)
        with pytest.raises(SMDDPConfigInvalid, match="must be torch process groups"):
            empty_shared(1, group="world")
        outside = dist.new_group([0])
        if rank != 0:
            with pytest.raises(SMDDPConfigInvalid, match="not in"):
                empty_shared(1, group=outside)
        gloo = dist.new_group(backend="gloo")
        assert empty_shared(4, group=gloo).untyped_storage().resizable()
        with torch.device("meta"):  # ordinary memory once went to the default device
            assert empty_shared(3).is_cpu
            assert empty_shared(3, group=gloo).is_cpu
        with FakeTensorMode():  # which once said that a real tensor was among its own
            assert isinstance(empty_shared(2, 3), FakeTensor)
        dist.destroy_process_group(gloo)

        def reduces() -> None:
            for part in (tensor, tensor[1], tensor.view(-1)[7:]):
                part.fill_(rank + 1)
                dist.all_reduce(part)
                assert _is(part, sum(range(1, world_size + 1)))

        algorithms = algorithms_of(reduces)
        tensor.fill_(rank)
        child = os.fork()
        if child == 0:
            was = _is(tensor, rank)
            tensor.fill_(77)
            os._exit(0 if was else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert _is(tensor, rank), "a child wrote into its parent's memory"
    gc.collect()
    assert _is(tensor, rank), "it did not outlive its group"
    return algorithms, zero_copy_statistics().allocated


@pytest.mark.parametrize(
    ("env", "algorithm"),
    [({}, "shared"), ({"SMDDP_ZERO_COPY": "0"}, "staged"), ({"SMDDP_TRANSPORT": "tcp"}, None)],
    ids=["default", "off", "tcp"],
)
def test_empty_shared(env: dict[str, str], algorithm: str | None) -> None:
    for algorithms, allocated in run_ranks(allocates, 2, env=env, deadline_s=DEADLINE_S):
        if algorithm is not None:
            assert algorithms == [algorithm] * 3
        assert (allocated > 0) == (algorithm == "shared")


def fails(rank: int, world_size: int) -> bool:
    """After an abort the tensor stays valid, and new ones are ordinary memory."""
    from smdistributed.dataparallel.exceptions import SMDDPPeerLost
    from smdistributed.dataparallel.torch import empty_shared

    with smddp():
        tensor = empty_shared(_COUNT).fill_(rank)
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        group: Any = dist.distributed_c10d._get_default_group()
        store = dist.distributed_c10d._get_default_store()
        store.set(f"summed {rank}", b"")
        store.wait(["summed 0", "summed 1"])  # an abort could overtake the sum of a slow rank
        group.abort("enough")
        with pytest.raises(SMDDPPeerLost):
            dist.all_reduce(torch.ones(1))
        after = empty_shared(_COUNT)
        assert after.untyped_storage().resizable()
        return _is(tensor, 0)


def test_empty_shared_after_a_failure() -> None:
    assert run_ranks(fails, 2, deadline_s=DEADLINE_S) == [True, True]
