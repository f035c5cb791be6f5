# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts written for GPUs on machines without one, statement by statement.

Source: dataparallel specification, section 4.6. Each test names the words that it checks; what a
rank does is a function at module level, as ranks load it by name.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from launchers import clean_environment
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SCRIPTS = Path(__file__).parent / "cpu_shims"
WAIT_S = 200
ALL_MODES = ("off", "auto", "full")

pytestmark = pytest.mark.timeout(240)

needs_no_cuda = pytest.mark.skipif(
    torch.cuda.is_available(), reason="shows what happens where there is no CUDA device"
)


def in_mode(mode: str, check: Callable[..., Any], *arguments: Any, ranks: int = 1) -> list[Any]:
    return run_ranks(check, ranks, *arguments, env={"SMDDP_CPU_SHIM": mode}, deadline_s=WAIT_S)


def run_python(
    arguments: list[str], *, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=clean_environment(environ),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def import_library() -> list[logging.LogRecord]:
    """Imports the library as a script does; returns the list that its log records go to."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger = logging.getLogger("smdistributed")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Keep())
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    return records


def error_of(call: Callable[[], object]) -> str:
    """The type and text of what a call raises; the empty string if it raises nothing."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# Row 1: "decimal strings become ints. Installed always".


def take_text_indexes(rank: int, world_size: int, is_cuda_there: bool) -> list[Any]:
    """With torch's functions replaced by ones that note what reaches them."""
    seen: list[Any] = []
    torch.cuda.is_available = lambda: is_cuda_there
    torch.cuda.set_device = seen.append
    nn.Module.cuda = lambda self, device=None: seen.append(device)
    torch.Tensor.cuda = lambda self, device=None, **kwargs: seen.append(device)
    import_library()
    for device in ("0", "12", 3, "cuda:1", None):
        torch.cuda.set_device(device)
        nn.Linear(1, 1).cuda(device)
        torch.ones(1).cuda(device, non_blocking=True)
    return seen


NUMBERS = [0, 0, 0, 12, 12, 12, 3, 3, 3, "cuda:1", "cuda:1", "cuda:1", None, None, None]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_decimal_strings_become_ints_in_every_mode_where_cuda_is(mode: str) -> None:
    assert in_mode(mode, take_text_indexes, True) == [NUMBERS]


def test_off_disables_all_but_the_string_case() -> None:
    assert in_mode("off", take_text_indexes, False) == [NUMBERS]


def raise_torchs_own_errors(rank: int, world_size: int) -> None:
    import_library()
    model = nn.Linear(1, 1)
    device = torch.device("cuda", 0)
    torch.distributed.init_process_group("smddp")
    assert "AttributeError" in error_of(lambda: torch.cuda.set_device("0"))
    assert error_of(lambda: torch.cuda.set_device(0)) == error_of(
        lambda: torch.cuda.set_device("0")
    )
    assert error_of(model.cuda) == "AssertionError: Torch not compiled with CUDA enabled"
    assert error_of(torch.ones(1).cuda) == "AssertionError: Torch not compiled with CUDA enabled"
    assert "ValueError" in error_of(lambda: DistributedDataParallel(model, device_ids=[0]))
    assert error_of(lambda: model.to(device)) != ""
    assert not torch.cuda.is_available()


@needs_no_cuda
def test_off_leaves_torchs_own_errors() -> None:
    in_mode("off", raise_torchs_own_errors)


# Rows 2 and 3, in `auto` and `full`.


def set_device_and_move(rank: int, world_size: int) -> None:
    records = import_library()
    for device in (rank, str(rank), f"cuda:{rank}", torch.device("cuda", rank)):
        assert torch.cuda.set_device(device) is None
    model, tensor = nn.Linear(2, 2), torch.ones(2, requires_grad=True)
    before = list(model.parameters())
    for arguments in ((), (rank,), (str(rank),), (f"cuda:{rank}",), (torch.device("cuda"),)):
        assert model.cuda(*arguments) is model
        assert tensor.cuda(*arguments) is tensor
    assert tensor.cuda(rank, non_blocking=True) is tensor
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    texts = [record.getMessage() for record in records if record.levelno == logging.INFO]
    for name in ("set_device()", "Module.cuda()", "Tensor.cuda()"):
        assert len([text for text in texts if name in text]) == (1 if rank == 0 else 0), texts


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_without_cuda_set_device_is_a_no_op_and_cuda_returns_self_and_each_logs_once(
    mode: str,
) -> None:
    in_mode(mode, set_device_and_move, ranks=2)


# "Each shim logs once": the string case in every mode, and what `full` adds.


def say_text_index_once(rank: int, world_size: int) -> list[int]:
    """Counts, by level, what is said of three indexes given as text, where CUDA is."""
    torch.cuda.is_available = lambda: True
    torch.cuda.set_device = lambda device: None
    nn.Module.cuda = lambda self, device=None: self
    records = import_library()
    torch.cuda.set_device(0)
    assert not [record for record in records if "given as text" in record.getMessage()]
    for device in ("0", "1"):
        torch.cuda.set_device(device)
    nn.Linear(1, 1).cuda("2")
    levels = [record.levelno for record in records if "given as text" in record.getMessage()]
    return [levels.count(logging.INFO), levels.count(logging.DEBUG), len(levels)]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_string_case_logs_once_in_every_mode(mode: str) -> None:
    """Section 4.6, "each shim logs once": at INFO in rank 0, as a debug message elsewhere."""
    assert in_mode(mode, say_text_index_once, ranks=2) == [[1, 0, 1], [0, 1, 1]]


USE_ALL_OF_FULL = """
import json, logging
import torch

records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append([record.levelname, record.getMessage()])

logger = logging.getLogger("smdistributed")
logger.setLevel(logging.DEBUG)
logger.addHandler(Keep())
import smdistributed.dataparallel.torch.torch_smddp
records.clear()
torch.ones(1, device="cpu").to("cpu")
assert records == [], records
for _ in range(2):
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    torch.ones(1, device="cuda").to("cuda:0")
    torch.nn.Linear(1, 1).to(torch.device("cuda", 0))
    torch.cuda.Event()
    torch.cuda.Stream()
print(json.dumps(records))
"""


@needs_no_cuda
@pytest.mark.parametrize(("rank", "level"), [("0", "INFO"), ("1", "DEBUG")])
def test_each_shim_that_full_adds_logs_once(rank: str, level: str) -> None:
    """Section 4.6, "each shim logs once": the mapping, the questions, events and streams."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    done = run_python(["-c", USE_ALL_OF_FULL], environ={**place, "SMDDP_CPU_SHIM": "full"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        [level, "torch.cuda.is_available() answers True to this script's own files"],
        [level, "torch.cuda.device_count() answers 2 to this script's own files"],
        [level, "the device cuda is taken as the cpu: there is no CUDA here"],
        [level, "torch.cuda.Event measures the time of the CPU"],
        [level, "torch.cuda.Stream is the order of the program: there is no CUDA here"],
    ]


# Row 4.


def train_with_device_ids(rank: int, world_size: int) -> list[float]:
    records = import_library()
    torch.distributed.init_process_group("smddp")
    torch.manual_seed(0)
    for arguments in (
        {"device_ids": [rank]},
        {"device_ids": [rank], "output_device": rank},
        {"device_ids": [0, 1]},
        {"output_device": rank},
    ):
        model = DistributedDataParallel(nn.Linear(3, 1), **arguments)
        assert model.device_ids is None
        assert model.output_device is None
    # By position, and with the arguments that follow in their places.
    model = DistributedDataParallel(nn.Linear(3, 1), [rank], rank, 0, bucket_cap_mb=1)
    model(torch.full((1, 3), float(rank))).sum().backward()
    warned = [record for record in records if record.levelno == logging.WARNING]
    if rank == 0:
        (warning,) = warned
        assert "device_ids=[0] left out" in warning.getMessage()
    else:
        assert not warned
    return [float(value) for value in model.module.weight.grad.flatten()]


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_device_ids_of_a_cpu_module_are_dropped_with_one_warning(mode: str) -> None:
    # The gradient of the weights is the input: the mean of 0 and 1.
    assert in_mode(mode, train_with_device_ids, ranks=2) == [[0.5] * 3] * 2


def wrap_by_legacy_class(rank: int, world_size: int) -> list[str]:
    """The warnings that wrapping three times gives."""
    records = import_library()
    import smdistributed.dataparallel.torch.distributed as legacy
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Legacy

    legacy.init_process_group()
    for arguments in (
        {"device_ids": [rank]},
        {"device_ids": [rank], "output_device": rank},
        {"output_device": rank},
    ):
        model = Legacy(nn.Linear(3, 1), **arguments)
        assert model.device_ids is None
        assert model.output_device is None
    model(torch.ones(1, 3)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.0] * 3]
    legacy.destroy_process_group()
    return [record.getMessage() for record in records if record.levelno == logging.WARNING]


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_the_legacy_class_drops_device_ids_too_and_warns_once(mode: str) -> None:
    """Sections 4.6 and 5.2, row `device_ids`: "on CPU see 4.6"."""
    ((warning,),) = in_mode(mode, wrap_by_legacy_class)
    assert "device_ids=[0] left out" in warning


def move_after_wrapping(rank: int, world_size: int, is_full: bool) -> list[float]:
    """The gradient after the published sample's order: wrap, set the device, move."""
    import_library()
    import smdistributed.dataparallel.torch.distributed as legacy
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as Legacy

    legacy.init_process_group()
    model = Legacy(nn.Linear(3, 1))
    local_rank = legacy.get_local_rank()
    torch.cuda.set_device(local_rank)
    assert model.cuda(local_rank) is model
    if is_full:
        assert model.to(torch.device("cuda", local_rank)) is model
    model(torch.full((1, 3), float(rank))).sum().backward()
    gradient = [float(value) for value in model.module.weight.grad.flatten()]
    legacy.destroy_process_group()
    return gradient


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_wrap_then_move_keeps_the_hooks(mode: str) -> None:
    """Section 5.2, wrap-then-move: "MUST NOT lose hooks when the move is a no-op"."""
    # The gradient of the weights is the input: the mean of 0 and 1.
    assert in_mode(mode, move_after_wrapping, mode == "full", ranks=2) == [[0.5] * 3] * 2


def wrap_without_device_ids(rank: int, world_size: int) -> None:
    records = import_library()
    torch.distributed.init_process_group("smddp")
    DistributedDataParallel(nn.Linear(1, 1))
    DistributedDataParallel(nn.Linear(1, 1), device_ids=[])
    DistributedDataParallel(nn.Linear(1, 1), device_ids=None, output_device=None)
    assert not [record for record in records if record.levelno == logging.WARNING]


def test_nothing_is_said_where_no_device_ids_are_given() -> None:
    in_mode("auto", wrap_without_device_ids)


# Row 5: "not shimmed in `auto`; with SMDDP_CPU_SHIM=full, `.to`/factory calls map cuda to cpu".


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
        assert "Torch not compiled with CUDA enabled" in error_of(call)


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


# "`auto` = active only when torch.cuda.is_available() is False and the process is one of our
# launched or discovered distributed processes".

SHOW_WHAT_IS_WRAPPED = """
import torch
import smdistributed.dataparallel.torch.torch_smddp
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Linear(1, 1)
try:
    print("cuda", model.cuda() is model)
except AssertionError as error:
    print("cuda", error)
"""


@needs_no_cuda
@pytest.mark.parametrize(
    ("mode", "environ", "expected"),
    [
        ("auto", {}, "cuda Torch not compiled with CUDA enabled"),
        ("auto", ONE_RANK, "cuda True"),
        (
            "auto",
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            "cuda True",
        ),
        ("full", {}, "cuda True"),
        ("off", ONE_RANK, "cuda Torch not compiled with CUDA enabled"),
    ],
)
def test_auto_needs_a_distributed_process_and_full_is_asked_for(
    mode: str, environ: dict[str, str], expected: str
) -> None:
    environ = environ | {"SMDDP_CPU_SHIM": mode}
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=environ)
    assert done.stdout.strip() == expected, done.stderr


def test_auto_is_the_default() -> None:
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=ONE_RANK)
    assert done.stdout.strip() == "cuda True", done.stderr


def test_a_wrong_mode_is_told_at_the_import() -> None:
    environ = {**ONE_RANK, "SMDDP_CPU_SHIM": "yes"}
    done = run_python(["-c", SHOW_WHAT_IS_WRAPPED], environ=environ)
    assert "SMDDPConfigInvalid: SMDDP_CPU_SHIM='yes' is not allowed" in done.stderr
    assert "auto, off, full" in done.stderr


def pretend_cuda(rank: int, world_size: int) -> list[str]:
    """Which functions of torch the import replaces, and whether it asks for CUDA, if CUDA is."""
    asked: list[None] = []

    def is_available() -> bool:
        asked.append(None)
        return True

    torch.cuda.is_available = is_available
    device_ids: list[Any] = []
    init = DistributedDataParallel.__init__
    DistributedDataParallel.__init__ = lambda self, module, *arguments: device_ids.append(arguments)
    import_library()
    assert not asked, "the import has asked for CUDA, which starts the driver"
    DistributedDataParallel(nn.Linear(1, 1), [0], 0)
    assert device_ids == [([0], 0)]
    DistributedDataParallel.__init__ = init
    return [name for name in ("to", "new_zeros") if name in vars(torch.Tensor)]


def test_auto_changes_nothing_where_cuda_is() -> None:
    assert in_mode("auto", pretend_cuda) == [[]]


def pretend_cuda_in_full(rank: int, world_size: int) -> None:
    torch.cuda.is_available = lambda: True
    count = torch.cuda.device_count
    records = import_library()
    assert "to" not in vars(torch.Tensor)
    assert torch.cuda.device_count is count
    (warning,) = [record for record in records if record.levelno == logging.WARNING]
    assert "smddprun --cpu" in warning.getMessage()


def test_full_where_cuda_is_says_that_it_has_no_effect() -> None:
    in_mode("full", pretend_cuda_in_full)


# `full` "lets torch.cuda.is_available()/device_count() answer 'one device per local process' to
# calls made from the user's own files (the directory of the main script) [...]; libraries and torch
# itself see the truth".

ASK = """
import torch
def ask():
    return [torch.cuda.is_available(), torch.cuda.device_count()]
"""

MAIN = """
import json, sys
import torch
import smdistributed.dataparallel.torch.torch_smddp
import helpers, library, models.net, installed
from torch.cuda import is_available

def ask():
    return [torch.cuda.is_available(), torch.cuda.device_count()]

torch.cuda.set_device(2)
print(json.dumps({
    "main": ask(),
    "helpers": helpers.ask(),
    "models/net": models.net.ask(),
    "imported by name": is_available(),
    "library": library.ask(),
    "installed": installed.ask(),
    "torch": torch.amp.GradScaler("cuda").is_enabled(),
    "current": torch.cuda.current_device(),
    "name": torch.cuda.get_device_name(0),
    "capability": torch.cuda.get_device_capability(),
    "memory": torch.cuda.get_device_properties(0).total_memory > 2**20,
    "free": torch.cuda.mem_get_info()[0] > 0,
}))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A user's project: main script, modules beside and below it, an environment inside it."""
    for path in (
        "project/helpers.py",
        "project/models/net.py",
        "project/venv/lib/python3/site-packages/installed.py",
        "elsewhere/library.py",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(ASK)
    (tmp_path / "project" / "train.py").write_text(MAIN)
    return tmp_path


@needs_no_cuda
@pytest.mark.parametrize("mode", ["full", "auto"])
def test_full_answers_yes_to_the_users_own_files_only(project: Path, mode: str) -> None:
    paths = [project / "elsewhere", project / "project/venv/lib/python3/site-packages"]
    job = {**ONE_RANK, "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4", "SMDDP_CPU_SHIM": mode}
    job["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    done = run_python([str(project / "project" / "train.py")], environ=job)
    if mode == "auto":
        assert "Torch not compiled with CUDA enabled" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    yes, no = [True, 4], [False, 0]
    assert json.loads(done.stdout) == {
        "main": yes,
        "helpers": yes,
        "models/net": yes,
        "imported by name": True,
        "library": no,
        "installed": no,
        "torch": False,
        "current": 2,
        "name": "CPU (SMDDP_CPU_SHIM=full)",
        "capability": [0, 0],
        "memory": True,
        "free": True,
    }


@needs_no_cuda
def test_full_knows_the_users_files_under_python_m(project: Path) -> None:
    """`python -m tool train.py`, like `python -m mpi4py train.py`: the tool runs the script."""
    tool = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    (project / "elsewhere" / "tool.py").write_text(tool)
    script = project / "project" / "train.py"
    script.write_text(
        "import sys, pathlib; sys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
        "import smdistributed.dataparallel.torch.torch_smddp\n"
        "import helpers; print(helpers.ask())"
    )
    paths = str(project / "elsewhere")
    job = {**ONE_RANK, "SMDDP_CPU_SHIM": "full", "PYTHONPATH": paths}
    done = run_python(["-m", "tool", str(script)], environ=job)
    assert done.stdout == "[True, 1]\n", done.stderr


# What scripts call around it.


def measure_time(rank: int, world_size: int) -> None:
    import_library()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.ones(100).sum()
    end.record()
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) > 0
    assert end.elapsed_time(start) == -start.elapsed_time(end)
    assert "not recorded" in error_of(
        lambda: start.elapsed_time(torch.cuda.Event(enable_timing=True))
    )
    assert "enable_timing=True" in error_of(lambda: start.elapsed_time(torch.cuda.Event()))
    stream = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream), torch.cuda.device(0):
        stream.wait_stream(torch.cuda.current_stream())
        stream.wait_event(stream.record_event())
    stream.synchronize()
    torch.cuda.synchronize(0)
    torch.cuda.empty_cache()
    torch.cuda.ipc_collect()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_max_memory_allocated()
    assert torch.cuda.max_memory_allocated() == 0
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())


@needs_no_cuda
@pytest.mark.filterwarnings("ignore")
def test_full_has_events_streams_and_their_like() -> None:
    in_mode("full", measure_time)


def use_amp(rank: int, world_size: int) -> None:
    import_library()
    model = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    scaler = torch.cuda.amp.GradScaler()
    with torch.cuda.amp.autocast():
        output = model(torch.ones(1, 2).cuda())
    assert output.dtype == torch.float32
    scaler.scale(output.sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before - 1)


@needs_no_cuda
@pytest.mark.parametrize("mode", ["auto", "full"])
def test_amp_of_old_scripts_runs_in_float32(mode: str) -> None:
    in_mode(mode, use_amp)


@needs_no_cuda
def test_smddprun_cpu_runs_a_script_that_refuses_to_run_without_cuda(tmp_path: Path) -> None:
    # "so that scripts which raise without CUDA run too [...]. `smddprun --cpu` sets `full`."
    command = ["-m", "smdistributed.launch", "-np", "2"]
    script = [str(SCRIPTS / "gpu_only.py"), str(tmp_path)]
    refused = run_python([*command, *script])
    assert refused.returncode == 1
    assert "this script needs a GPU" in refused.stderr
    done = run_python([*command, "--cpu", *script])
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines()]
    first, second = sorted(reports, key=lambda report: report["rank"])
    assert first["losses"] == second["losses"]
    assert first["losses"][-1] < 0.1 * first["losses"][0]
    assert (first["weight"], first["bias"]) == (second["weight"], second["bias"])
    assert first["milliseconds"] > 0
    assert first["name"] == "CPU (SMDDP_CPU_SHIM=full)"
    assert done.stderr.count("device_ids=[0], output_device=0 left out") == 1


# Section 4.1: the import installs the shims, "idempotently", and prints nothing.


def snapshot() -> dict[str, Any]:
    owners = (torch, torch.cuda, torch.Tensor, nn.Module, DistributedDataParallel)
    return {f"{owner} {name}": value for owner in owners for name, value in vars(owner).items()}


def install_twice_and_undo(rank: int, world_size: int) -> None:
    import smdistributed.dataparallel.torch.registration  # noqa: F401 (adds no shim)
    from smdistributed.dataparallel.torch import shims

    before = snapshot()
    import_library()
    once = snapshot()
    threads = [threading.Thread(target=shims.install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert snapshot() == once
    assert once != before
    shims.uninstall()
    after = snapshot()
    assert {name for name in before if before[name] is not after.get(name)} == set()
    assert set(after) == set(before)
    shims.uninstall()
    shims.install()
    assert set(snapshot()) == set(once)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_installing_is_idempotent_thread_safe_and_can_be_undone(mode: str) -> None:
    in_mode(mode, install_twice_and_undo)


@needs_no_cuda
@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_import_prints_nothing(mode: str) -> None:
    code = textwrap.dedent("import smdistributed.dataparallel.torch.torch_smddp")
    done = run_python(["-c", code], environ={**ONE_RANK, "SMDDP_CPU_SHIM": mode})
    assert (done.stdout, done.stderr) == ("", "")
