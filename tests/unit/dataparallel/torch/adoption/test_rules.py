# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which storages move and which stay: one test per rule, each fails if its rule is taken out.

Source: docs/zero_copy.md, "moving what recurs".
"""

from __future__ import annotations

import ctypes
import gc
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smdistributed.collectives import _native
from smdistributed.dataparallel.torch.adoption.adopter import Adopter
from smdistributed.dataparallel.torch.adoption.rules import MIN_BYTES, Refusal
from smdistributed.dataparallel.torch.adoption.statistics import statistics
from tests.unit.dataparallel.torch.adoption.arena_stand_in import EngineWithArena, see

_COUNT = MIN_BYTES // 4  # float32 elements of the smallest storage that moves


def _filled(count: int = _COUNT) -> Tensor:
    return torch.arange(count, dtype=torch.float32)


def _refused(reason: Refusal) -> int:
    return statistics().refused.get(reason.value, 0)


def _stays(adopter: Adopter, engine: EngineWithArena, tensor: Tensor, reason: Refusal) -> None:
    """Seen three times, it stays where it is, and the reason is counted once."""
    before, address = _refused(reason), tensor.data_ptr()
    for _ in range(3):
        see(adopter, tensor)
    assert tensor.data_ptr() == address
    assert _refused(reason) == before + 1
    assert not engine.holds(tensor)


def _moves(adopter: Adopter, engine: EngineWithArena, tensor: Tensor) -> None:
    see(adopter, tensor)
    assert not engine.holds(tensor)
    see(adopter, tensor)
    assert engine.holds(tensor)


def test_it_moves_at_the_second_sighting_with_all_who_hold_it(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    tensor = _filled()
    saved_for_backward = torch.ones(_COUNT, requires_grad=True) * tensor
    leaf = torch.zeros(_COUNT, requires_grad=True)
    leaf.grad = tensor
    before = statistics()
    _moves(adopter, engine, tensor)
    assert torch.equal(tensor, _filled())
    row, flat = tensor.view(16, -1)[3], tensor.detach()
    assert engine.holds(row)
    tensor.mul_(2)
    assert torch.equal(flat, 2 * _filled())
    assert torch.equal(leaf.grad, flat)
    assert row[1] == 2 * (3 * _COUNT // 16 + 1)
    assert saved_for_backward[5] == 5
    after = statistics()
    assert after.adopted == before.adopted + 1
    assert after.adopted_bytes == before.adopted_bytes + MIN_BYTES
    see(adopter, tensor)
    assert engine.sizes == [MIN_BYTES]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64]
)
def test_any_dtype_moves_from_64_kib_on(
    adopter: Adopter, engine: EngineWithArena, dtype: torch.dtype
) -> None:
    _moves(adopter, engine, torch.ones(MIN_BYTES // dtype.itemsize, dtype=dtype))
    small = torch.ones(MIN_BYTES // dtype.itemsize - 1, dtype=dtype)
    for _ in range(3):
        see(adopter, small)
    assert not engine.holds(small)
    assert small.numel() >= adopter.from_elements or dtype.itemsize == 16


def test_fresh_storages_never_move(adopter: Adopter, engine: EngineWithArena) -> None:
    """Though most of them get the memory of the one before."""
    addresses = set()
    for step in range(30):
        gradients = [_filled(_COUNT + 16 * i) for i in range(8)]
        addresses.update(g.data_ptr() for g in gradients)
        for gradient in gradients:
            see(adopter, gradient)
        assert not any(engine.holds(g) for g in gradients), step
        del gradients, gradient
    assert len(addresses) < 30 * 8, "no memory was used twice, so this showed nothing"
    assert not engine.sizes


def test_the_mark_stays_while_nobody_in_python_holds_the_storage(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    tensor = _filled()
    see(adopter, tensor)
    gc.collect()
    see(adopter, tensor)
    assert engine.holds(tensor)


@pytest.mark.parametrize("view", [lambda t: t[:-1], lambda t: t[1:], lambda t: t[4:-4]])
def test_a_part_of_a_storage_stays(
    adopter: Adopter, engine: EngineWithArena, view: Callable[[Tensor], Tensor]
) -> None:
    whole = _filled(_COUNT + 8)
    _stays(adopter, engine, view(whole), Refusal.PART)
    _moves(adopter, engine, whole)


def _file_of(tensor: Tensor, folder: Path) -> str:
    path = folder / "tensor"
    path.write_bytes(tensor.numpy().tobytes())
    return str(path)


def _loaded(folder: Path, mmap: bool) -> Tensor:
    torch.save(_filled(), folder / "saved.pt")
    loaded: Tensor = torch.load(folder / "saved.pt", mmap=mmap)
    return loaded


def _converted() -> Tensor:
    tensor = _filled()
    tensor.numpy()
    return tensor


FOREIGN: dict[str, Callable[[Path], Tensor]] = {
    "from_numpy": lambda folder: torch.from_numpy(np.ones(_COUNT, np.float32)),
    "frombuffer": lambda folder: torch.frombuffer(bytearray(MIN_BYTES), dtype=torch.float32),
    "from_dlpack": lambda folder: torch.from_dlpack(np.ones(_COUNT, np.float32)),
    "load with mmap": lambda folder: _loaded(folder, mmap=True),
    "numpy() was called": lambda folder: _converted(),
}


@pytest.mark.parametrize("source", FOREIGN)
def test_memory_that_others_have_stays(
    adopter: Adopter, engine: EngineWithArena, source: str, tmp_path: Path
) -> None:
    _stays(adopter, engine, FOREIGN[source](tmp_path), Refusal.FOREIGN)


SHARED: dict[str, Callable[[Path], Tensor]] = {
    "from_file": lambda folder: torch.from_file(_file_of(_filled(), folder), size=_COUNT),
    "share_memory_": lambda folder: _filled().share_memory_(),
}


@pytest.mark.parametrize("source", SHARED)
def test_files_and_memory_that_torch_shares_stay(
    adopter: Adopter, engine: EngineWithArena, source: str, tmp_path: Path
) -> None:
    _stays(adopter, engine, SHARED[source](tmp_path), Refusal.SHARED)


def test_pinned_memory_stays(
    adopter: Adopter, engine: EngineWithArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said to be pinned: pinning needs a GPU."""
    tensor = _filled()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self is tensor)
    _stays(adopter, engine, tensor, Refusal.PINNED)


def test_copy_on_write_memory_stays(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    clone = torch._lazy_clone(tensor)
    before = _refused(Refusal.COPY_ON_WRITE)
    for _ in range(3):
        see(adopter, clone)
    assert torch._C._is_cow_tensor(clone)  # looking at its address would have copied it
    assert _refused(Refusal.COPY_ON_WRITE) == before + 1
    assert not engine.sizes


EXPORTS: dict[str, Callable[[Tensor], object]] = {
    "numpy.from_dlpack": np.from_dlpack,
    "torch.from_dlpack": torch.from_dlpack,
    "__dlpack__": lambda tensor: tensor.__dlpack__(),
    "__dlpack__, versioned": lambda tensor: tensor.__dlpack__(max_version=(1, 0)),
    "torch.to_dlpack": lambda tensor: torch.to_dlpack(tensor),
    "torch.utils.dlpack.to_dlpack": lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
    "of a view": lambda tensor: tensor[5:].__dlpack__(),
}


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("seen_before", [False, True])
def test_memory_exported_through_dlpack_stays(
    adopter: Adopter, engine: EngineWithArena, export: str, seen_before: bool
) -> None:
    tensor = _filled()
    if seen_before:
        see(adopter, tensor)
    exported = EXPORTS[export](tensor)
    _stays(adopter, engine, tensor, Refusal.EXPORTED)
    del exported


@pytest.mark.usefixtures("watching")
def test_a_copy_through_dlpack_is_no_export(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    tensor.__dlpack__(copy=True)
    _moves(adopter, engine, tensor)


@pytest.mark.usefixtures("watching")
def test_an_export_after_the_move_shares_the_memory(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    tensor = _filled()
    _moves(adopter, engine, tensor)
    array = np.from_dlpack(tensor)
    see(adopter, tensor)
    tensor.fill_(7)
    assert array[-1] == 7
    del tensor
    gc.collect()
    assert array[0] == 7


@pytest.mark.usefixtures("watching")
@pytest.mark.parametrize("seen_before", [False, True])
def test_a_storage_that_is_emptied_and_filled_stays(
    adopter: Adopter, engine: EngineWithArena, seen_before: bool
) -> None:
    """As FSDP does; it could not, once the storage has moved."""
    tensor = _filled()
    if seen_before:
        see(adopter, tensor)
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(MIN_BYTES)
    _stays(adopter, engine, tensor, Refusal.RESIZED)
    tensor.untyped_storage().resize_(0)


@pytest.mark.usefixtures("watching")
def test_a_storage_that_moved_says_that_it_cannot_be_resized(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    tensor = _filled()
    _moves(adopter, engine, tensor)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(2 * _COUNT)
    tensor.resize_(10)
    assert torch.equal(tensor, _filled(10))


def test_parameters_and_other_leaves_stay(adopter: Adopter, engine: EngineWithArena) -> None:
    _stays(adopter, engine, torch.nn.Parameter(_filled()), Refusal.PARAMETER)
    _stays(adopter, engine, torch.nn.Parameter(_filled(), requires_grad=False), Refusal.PARAMETER)
    _stays(adopter, engine, _filled().requires_grad_(), Refusal.PARAMETER)


def test_results_move(adopter: Adopter, engine: EngineWithArena) -> None:
    _moves(adopter, engine, 2 * _filled().requires_grad_())


OTHER_VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    ".data": lambda tensor: tensor.data,
    "detach()": lambda tensor: tensor.detach(),
    "a view": lambda tensor: tensor.view(2, -1),
    "a part": lambda tensor: tensor[3:5],
    "set_": lambda tensor: torch.empty(0).set_(tensor.detach()),
}


@pytest.mark.parametrize("view", OTHER_VIEWS)
@pytest.mark.parametrize("frozen", [False, True])
def test_what_several_tensors_view_stays(
    adopter: Adopter, engine: EngineWithArena, view: str, frozen: bool
) -> None:
    """`.data` and `.detach()` of a parameter once moved: only the tensor itself was looked at.

    A call with the view of a parameter, or with a tensor of which there is a view.
    """
    parameter = torch.nn.Parameter(_filled(), requires_grad=not frozen)
    address = parameter.data_ptr()
    for _ in range(3):
        with torch.no_grad():
            see(adopter, OTHER_VIEWS[view](parameter))
    assert parameter.data_ptr() == address

    tensor = _filled()
    other = OTHER_VIEWS[view](tensor)
    see(adopter, tensor)
    see(adopter, tensor)
    assert not engine.holds(tensor)
    del other
    _waits_then_moves(adopter, engine, tensor, Refusal.VIEWED)


class _Named(torch.Tensor):
    pass


def test_a_subclass_of_tensor_stays(adopter: Adopter, engine: EngineWithArena) -> None:
    _stays(adopter, engine, _filled().as_subclass(_Named), Refusal.SUBCLASS)


def _waits_then_moves(
    adopter: Adopter, engine: EngineWithArena, tensor: Tensor, reason: Refusal
) -> None:
    """The second sighting came too early, the third does not."""
    assert not engine.holds(tensor)
    assert reason.passes
    see(adopter, tensor)
    assert engine.holds(tensor)


def test_it_waits_for_operations_under_way(
    adopter: Adopter, engine: EngineWithArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = _filled()
    asked = []

    def is_in_use(address: int, nbytes: int) -> bool:
        asked.append((address, nbytes))
        return len(asked) == 1

    monkeypatch.setattr(_native, "is_in_use", is_in_use)
    see(adopter, tensor)
    address = tensor.data_ptr()
    see(adopter, tensor)
    assert asked == [(address, MIN_BYTES)]
    _waits_then_moves(adopter, engine, tensor, Refusal.IN_USE)


class _Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        return func(*args, **(kwargs or {}))


def test_nothing_moves_inside_a_dispatch_mode(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    see(adopter, tensor)
    with _Watching():
        see(adopter, tensor)
    _waits_then_moves(adopter, engine, tensor, Refusal.TRACED)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_nothing_moves_inside_torch_jit_trace(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    see(adopter, tensor)

    def shown(x: Tensor) -> Tensor:
        see(adopter, tensor)
        return x + 1

    torch.jit.trace(shown, (torch.ones(2),), check_trace=False)
    _waits_then_moves(adopter, engine, tensor, Refusal.TRACED)


def test_nothing_moves_while_torch_compiles(
    adopter: Adopter, engine: EngineWithArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = _filled()
    see(adopter, tensor)
    with monkeypatch.context() as context:
        context.setattr(torch.compiler, "is_compiling", lambda: True)
        see(adopter, tensor)
    _waits_then_moves(adopter, engine, tensor, Refusal.TRACED)


def test_nothing_moves_in_a_forked_child(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    see(adopter, tensor)
    child = os.fork()
    if child == 0:
        see(adopter, tensor)
        os._exit(1 if engine.holds(tensor) or engine.sizes else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    _waits_then_moves(adopter, engine, tensor, Refusal.FORKED)


def test_without_room_it_is_not_asked_for_again() -> None:
    engine = EngineWithArena(room_bytes=MIN_BYTES)
    adopter = Adopter(engine)
    large, fitting = _filled(2 * _COUNT), _filled()
    _stays(adopter, engine, large, Refusal.NO_ROOM)
    assert engine.sizes == [2 * MIN_BYTES]
    _moves(adopter, engine, fitting)


def test_a_storage_of_two_groups_belongs_to_the_first(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    other_engine = EngineWithArena()
    other = Adopter(other_engine)
    tensor = _filled()
    _moves(adopter, engine, tensor)
    for _ in range(3):
        see(other, tensor)
    assert engine.holds(tensor)
    assert not other_engine.sizes


def test_copies_are_ordinary_memory(adopter: Adopter, engine: EngineWithArena) -> None:
    import copy
    import pickle

    tensor = _filled()
    _moves(adopter, engine, tensor)
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    copies = {
        "clone": tensor.clone(),
        "deepcopy": copy.deepcopy(tensor),
        "pickle": pickle.loads(pickle.dumps(tensor)),
        "torch.save": torch.load(file),
        "storage": torch.empty(0).set_(copy.deepcopy(tensor.untyped_storage())),
    }
    for name, made in copies.items():
        assert not engine.holds(made), name
        assert torch.equal(made, tensor), name
        assert made.untyped_storage().nbytes() == MIN_BYTES, name
    _moves(adopter, engine, copies["clone"])  # and not known yet


def test_share_memory_takes_a_storage_out(adopter: Adopter, engine: EngineWithArena) -> None:
    tensor = _filled()
    _moves(adopter, engine, tensor)
    tensor.share_memory_()
    gc.collect()
    assert tensor.is_shared()
    assert not engine.holds(tensor)
    assert not engine.in_use
    assert torch.equal(tensor, _filled())
    see(adopter, tensor)
    assert tensor.is_shared()


def test_the_memory_comes_back_with_the_last_view(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    tensor = _filled()
    _moves(adopter, engine, tensor)
    view = tensor[3:5]
    del tensor
    gc.collect()
    assert engine.in_use == 1
    assert view.tolist() == [3, 4]
    del view
    gc.collect()
    assert not engine.in_use


def test_the_old_memory_can_be_read_as_long_as_the_storage_lives(
    adopter: Adopter, engine: EngineWithArena
) -> None:
    """Readers that nobody sees have noted its address. It was once freed at the move."""
    tensor = torch.full((64 << 20,), 7, dtype=torch.uint8)  # malloc maps as much by itself
    old = tensor.data_ptr()
    _moves(adopter, engine, tensor)
    view = tensor[-1:]
    tensor.fill_(1)
    del tensor
    gc.collect()
    assert ctypes.string_at(old, 64 << 20).count(7) == 64 << 20
    assert view.item() == 1
    del view
    gc.collect()
    assert not _is_mapped(old)


def _is_mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(text, 16) for text in line.split()[0].split("-"))
        if begin <= address < end:
            return True
    return False
