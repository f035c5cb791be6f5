# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Without a GPU: the device cuda is mapped to the CPU in `full`, and left alone in `auto`.

Source: dataparallel specification, section 4.6, row 5 of its table: "not shimmed in `auto`; with
SMDDP_CPU_SHIM=full, `.to`/factory calls map cuda to cpu".
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.conformance.dataparallel.cpu_shims.runs import (
    NO_CUDA,
    ONE_RANK,
    TEST_TIMEOUT_S,
    error_of,
    import_library,
    in_mode,
    needs_no_cuda,
    run_python,
)

pytestmark = pytest.mark.timeout(TEST_TIMEOUT_S)


def leave_devices_alone(rank: int, world_size: int) -> None:
    before = (torch.Tensor.to, nn.Module.to, torch.zeros, torch.tensor, torch.load)
    import_library()
    after = (torch.Tensor.to, nn.Module.to, torch.zeros, torch.tensor, torch.load)
    assert all(one is other for one, other in zip(before, after, strict=True))
    device = torch.device("cuda", 0)
    for call in (
        lambda: torch.ones(1).to(device),
        lambda: nn.Linear(1, 1).to(device),
        lambda: torch.zeros(1, device=device),
    ):
        assert NO_CUDA.search(error_of(call))


@needs_no_cuda
def test_auto_does_not_wrap_to_and_factories() -> None:
    in_mode("auto", leave_devices_alone)


DEVICES = ("cuda", "cuda:1", 0, torch.device("cuda"), torch.device("cuda", 1))


def move_to_cuda(rank: int, world_size: int) -> None:
    import_library()
    tensor, model = torch.ones(2), nn.Linear(2, 2)
    for device in DEVICES:
        assert tensor.to(device) is tensor
        assert tensor.to(device=device) is tensor
        assert tensor.to(device, torch.float16, non_blocking=True).dtype == torch.float16
        assert model.to(device) is model
        assert model.to(device=device) is model
        assert model.to(device, torch.float64).weight.dtype == torch.float64
        model.to(torch.float32)
    assert tensor.to(torch.float64).dtype == torch.float64
    assert tensor.to(torch.ones(1, dtype=torch.int32)).dtype == torch.int32
    assert tensor.to("cpu") is tensor
    assert tensor.to("meta").device.type == "meta"
    assert tensor.to(device="meta").device.type == "meta"


@needs_no_cuda
def test_full_maps_to() -> None:
    in_mode("full", move_to_cuda)


def make_on_cuda(rank: int, world_size: int) -> None:
    import_library()
    like = torch.ones(3)
    makers: dict[str, Callable[[Any], torch.Tensor]] = {
        "arange": lambda device: torch.arange(3, device=device),
        "as_tensor": lambda device: torch.as_tensor([1], device=device),
        "as_tensor of a device": lambda device: torch.as_tensor([1], device=torch.device(device)),
        "empty": lambda device: torch.empty(3, device=device),
        "eye": lambda device: torch.eye(3, device=device),
        "full": lambda device: torch.full((3,), 1.0, device=device),
        "hann_window": lambda device: torch.hann_window(3, device=device),
        "linspace": lambda device: torch.linspace(0, 1, 3, device=device),
        "new_tensor": lambda device: like.new_tensor([1.0], device=device),
        "new_zeros": lambda device: like.new_zeros(3, device=device),
        "normal": lambda device: torch.normal(0.0, 1.0, (3,), device=device),
        "ones pinned": lambda device: torch.ones(3, device=device, pin_memory=True),
        "rand": lambda device: torch.rand(3, device=device),
        "randint": lambda device: torch.randint(3, (3,), device=device),
        "randn_like": lambda device: torch.randn_like(like, device=device),
        "randperm": lambda device: torch.randperm(3, device=device),
        "tensor": lambda device: torch.tensor([1.0], device=device),
        "tril_indices": lambda device: torch.tril_indices(3, 3, device=device),
        "zeros": lambda device: torch.zeros(3, device=device),
        "zeros_like": lambda device: torch.zeros_like(like, device=device),
        "Linear": lambda device: nn.Linear(2, 2, device=device).weight,
        "default": make_by_default,
        "pinned": lambda device: like.pin_memory().to(device, non_blocking=True),
        "to_empty": lambda device: nn.Linear(2, 2, device="meta").to_empty(device=device).weight,
    }
    for name, make in makers.items():
        for device in ("cuda", "cuda:1"):
            assert make(device).device.type == "cpu", name
        assert make("cpu").device.type == "cpu", name
    assert torch.zeros(1, device=0).device.type == "cpu"
    assert torch.zeros(1, device="meta").device.type == "meta"
    assert torch.zeros(1, device=None).device.type == "cpu"
    assert torch.cuda.FloatTensor([1.0]).dtype == torch.float32
    assert like.type("torch.cuda.HalfTensor").dtype == torch.float16
    assert like.type(torch.cuda.LongTensor).dtype == torch.int64
    assert like.type() == "torch.FloatTensor"


def make_by_default(device: str) -> torch.Tensor:
    with torch.device(device):
        first = torch.ones(1)
    torch.set_default_device(device)
    second = torch.ones(1)
    torch.set_default_device(None)
    return torch.stack([first, second])


@needs_no_cuda
def test_full_maps_factory_calls() -> None:
    in_mode("full", make_on_cuda)


def load_from_cuda(rank: int, world_size: int, folder: str) -> None:
    import_library()
    path = f"{folder}/model.pt"
    torch.save({"weight": torch.arange(4.0)}, path)
    for location in (
        "cuda:0",
        torch.device("cuda", 0),
        {"cpu": "cuda:0"},
        lambda storage, where: storage.cuda(0),
        None,
    ):
        weight = torch.load(path, map_location=location)["weight"]
        assert weight.device.type == "cpu"
        assert weight.tolist() == [0, 1, 2, 3]
    # A checkpoint that was written on a GPU: its storages are tagged with the device.
    on_gpu = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:3"
    torch.save({"weight": torch.arange(4.0)}, path)
    torch.serialization.location_tag = on_gpu
    assert torch.load(path)["weight"].tolist() == [0, 1, 2, 3]


@needs_no_cuda
def test_full_loads_checkpoints_to_and_from_cuda(tmp_path: Path) -> None:
    in_mode("full", load_from_cuda, str(tmp_path))


def make_groups_on_cuda(rank: int, world_size: int) -> None:
    import_library()
    device = torch.device("cuda", rank)
    torch.distributed.init_process_group("smddp", device_id=device)
    mesh = torch.distributed.init_device_mesh("cuda", (world_size,))
    assert mesh.device_type == "cpu"
    total = torch.tensor([rank + 1.0], device=device)
    torch.distributed.all_reduce(total, group=mesh.get_group())
    assert total.item() == world_size * (world_size + 1) / 2


@needs_no_cuda
def test_full_maps_the_device_of_groups_and_meshes() -> None:
    in_mode("full", make_groups_on_cuda, ranks=2)


class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(4, device="cuda:0")
        return (self.linear(x.to("cuda")) * mask + torch.arange(4, device=x.device)).cuda()


def add_one_by_script(n: int) -> torch.Tensor:
    return torch.zeros(n) + torch.ones(n, dtype=torch.float32)


def work_elsewhere(rank: int, world_size: int) -> None:
    scripted = torch.jit.script(add_one_by_script)
    import_library()
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(torch.zeros(1, device="cuda")))
    thread.start()
    thread.join()
    assert made[0].device.type == "cpu"
    model, x = Moving().to("cuda"), torch.randn(2, 4)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model.linear.weight.grad is not None
    assert scripted(2).tolist() == [1, 1]
    assert torch.jit.script(add_one_by_script)(2).tolist() == [1, 1]


@needs_no_cuda
def test_full_works_in_threads_and_in_compiled_and_scripted_code() -> None:
    in_mode("full", work_elsewhere)


LOADER = """
import sys
import torch
import smdistributed.dataparallel.torch.torch_smddp

class OnCuda(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        assert torch.cuda.is_available()
        return torch.full((2,), float(index), device="cuda")

if __name__ == "__main__":
    for start in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(
            OnCuda(), batch_size=2, num_workers=1, multiprocessing_context=start
        )
        print(start, [batch.tolist() for batch in loader])
"""


@needs_no_cuda
def test_full_works_in_forked_and_spawned_loader_workers(tmp_path: Path) -> None:
    script = tmp_path / "loader.py"
    script.write_text(LOADER)
    done = run_python([str(script)], environ={**ONE_RANK, "SMDDP_CPU_SHIM": "full"})
    batches = [[[0.0, 0.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 3.0]]]
    assert done.stdout == f"fork {batches}\nspawn {batches}\n", done.stderr
