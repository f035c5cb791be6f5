# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who may hold what address while collectives run: the rows of the table of docs/zero_copy.md.

Each row holds addresses while collectives run: readers and writers of other tensors and of earlier
views see exact values. Whoever touches the tensor that is being reduced may see any mixture of its
values, but nothing crashes, hangs or touches other memory.

All ranks of a group run the same rows in the same order. Used for a moment by
test_zero_copy_default.py, and for as long as one likes by tests/soak.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

COUNT = 1 << 18  # float32 elements, 1 MiB
CALLS = 12


@dataclass(frozen=True)
class Holders:
    """What a row works with.

    Attributes:
        make: a float32 tensor of so many elements, of the kind of memory that is tried.
        group: that reduces.
        gloo: a group of the same ranks over Gloo.
    """

    make: Callable[[int], Tensor]
    group: Any
    gloo: Any

    @property
    def rank(self) -> int:
        """Of this process in the group."""
        return dist.get_rank(self.group)

    @property
    def total(self) -> int:
        """What `reduce` leaves in each element."""
        size = dist.get_world_size(self.group)
        return size * (size + 1) // 2

    def broadcast(self, tensor: Tensor) -> None:
        """From the group's first rank."""
        dist.broadcast(tensor, dist.get_global_rank(self.group, 0), group=self.group)

    def reduce(self, tensor: Tensor) -> None:
        """Some sums of `tensor`, each of them checked; the tensor stays where it is."""
        address = tensor.data_ptr()
        for _ in range(CALLS):
            tensor.fill_(self.rank + 1)
            dist.all_reduce(tensor, group=self.group)
            assert is_all(tensor, self.total)
        assert tensor.data_ptr() == address


def is_all(tensor: Tensor, value: float) -> bool:
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


# --- rows ----------------------------------------------------------------------------------------


def torch_operations_on_threads(of: Holders) -> None:
    left, middle, right = of.make(3 * COUNT).fill_(1).split(COUNT)
    other, seen = torch.full((COUNT,), 5.0), set()

    def read() -> None:
        seen.add((float(left.sum()), float(other.sum())))

    with meanwhile(read), meanwhile(lambda: right.add_(1).sub_(1)):
        of.reduce(middle)
    assert seen == {(float(COUNT), 5.0 * COUNT)}
    assert is_all(right, 1)


def readers_of_the_root_of_a_broadcast(of: Holders) -> None:
    """They and the collective only read: it must not move, which freed what they read."""
    tensor, seen = of.make(COUNT).fill_(1), set()
    address, is_root = tensor.data_ptr(), of.rank == 0
    with meanwhile(lambda: seen.add(float(tensor.sum()))) if is_root else contextlib.nullcontext():
        for _ in range(CALLS):
            of.broadcast(tensor)
    assert tensor.data_ptr() == address
    assert not is_root or seen == {float(COUNT)}


def gloo_in_the_same_process(of: Holders) -> None:
    """A pending send holds the address of what smddp broadcasts from here."""
    tensor = of.make(8 * COUNT).fill_(1 if of.rank == 0 else 0)
    sending = dist.isend(tensor, group=of.gloo, group_dst=1) if of.rank == 0 else None
    for _ in range(3):
        of.broadcast(tensor)
    others = [torch.full((8 * COUNT,), 7.0) for _ in range(2)]  # would get memory set free
    dist.barrier(group=of.group)
    if sending is not None:
        sending.wait()
    elif of.rank == 1:
        received = torch.zeros(8 * COUNT)
        dist.recv(received, group=of.gloo, group_src=0)
        assert is_all(received, 1)
    assert all(is_all(other, 7) for other in others)


def numpy(of: Holders) -> None:
    tensor = of.make(2 * COUNT).fill_(1)
    array, part = tensor.numpy(), tensor[:COUNT]
    with meanwhile(lambda: np.testing.assert_array_equal(array[COUNT:], 1)):
        of.reduce(part)
    assert (array[:COUNT] == of.total).all()
    array[:] = 4
    assert is_all(tensor, 4)


def dlpack(of: Holders) -> None:
    tensor = of.make(COUNT)
    earlier = torch.from_dlpack(tensor)
    capsule = torch.to_dlpack(tensor)
    of.reduce(tensor)
    assert is_all(earlier, of.total)
    assert is_all(torch.from_dlpack(capsule), of.total)
    earlier.fill_(4)
    assert is_all(tensor, 4)


def copies_that_do_not_block(of: Holders) -> None:
    source, target, tensor = of.make(COUNT).fill_(2), of.make(COUNT).fill_(2), of.make(COUNT)
    with meanwhile(lambda: target.copy_(source, non_blocking=True)):
        of.reduce(tensor)
    later = tensor.to(torch.float64, non_blocking=True)
    tensor.fill_(0)
    assert is_all(later, of.total)
    assert is_all(target, 2)


def threads_that_take_checkpoints(of: Holders) -> None:
    model, tensor = nn.Linear(512, 512), of.make(COUNT)
    for parameter in model.parameters():  # the same on all ranks
        parameter.data.copy_(torch.arange(parameter.numel()).view_as(parameter) % 7)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def snapshot() -> None:
        for name, value in model.state_dict().items():
            assert torch.equal(value.detach().cpu().clone(), before[name])

    with meanwhile(snapshot):
        of.reduce(tensor)
        for parameter in model.parameters():
            address = parameter.data_ptr()
            for view in (parameter.data, parameter.detach(), parameter.data.view(-1)):
                for _ in range(3):
                    dist.all_reduce(view, op=dist.ReduceOp.MAX, group=of.group)
            assert parameter.data_ptr() == address
            before_it = next(v for v in before.values() if v.shape == parameter.shape)
            parameter.data.copy_(before_it)


def torch_save_in_a_thread(of: Holders) -> None:
    kept, tensor = of.make(COUNT).fill_(6), of.make(COUNT)

    def save() -> None:
        file = io.BytesIO()
        torch.save({"kept": kept, "part": kept[3:9]}, file)
        file.seek(0)
        loaded = torch.load(file)
        assert is_all(loaded["kept"], 6)
        assert loaded["part"].tolist() == [6.0] * 6

    with meanwhile(save):
        of.reduce(tensor)


def the_tensor_that_is_being_reduced(of: Holders) -> None:
    """Read and written under the collective: its values are anybody's guess, all others exact."""
    left, middle, right = of.make(3 * COUNT).fill_(1).split(COUNT)
    other = of.make(COUNT).fill_(5)
    with meanwhile(lambda: middle.sum()), meanwhile(lambda: middle.fill_(9)):
        for _ in range(CALLS):
            dist.all_reduce(middle, group=of.group)
    assert is_all(left, 1)
    assert is_all(right, 1)
    assert is_all(other, 5)
    of.reduce(middle)


ROWS: dict[str, Callable[[Holders], None]] = {
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
