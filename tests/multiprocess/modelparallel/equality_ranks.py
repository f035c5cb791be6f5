# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_equality.py do: train a partitioned model beside a whole one, and compare.

Processes take seconds to start, so one job runs many cases, one after the other. Each rank keeps
what it has found in a file, line by line: a case that hangs costs those after it only.
"""

from __future__ import annotations

import dataclasses
import json
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

RELATIVE = 1e-6  # of the largest element of each tensor
ABSOLUTE = 2e-7  # gradients that are zero but for rounding, such as of a bias before BatchNorm
# Sums of bfloat16 gradients, where a weight is used more than once, are rounded in another order.
RELATIVE_BFLOAT16 = 1e-2


@dataclasses.dataclass(frozen=True)
class Case:
    """One model, one way to run it. Replicas are as many as the ranks allow."""

    architecture: str
    partitions: int
    microbatches: int
    placement: str = "auto"
    pipeline: str = "interleaved"

    def __str__(self) -> str:
        return (
            f"{self.architecture}-{self.placement}-{self.partitions}p-{self.microbatches}m"
            f"-{self.pipeline}"
        )


def run_cases(
    rank: int, world_size: int, cases: Sequence[Case], folder: str, device: str = "cpu"
) -> None:
    """Runs them all; `rank0.jsonl` and so on get a line [case, error or ""] for each.

    On a device other than the CPU both models are made there.
    """
    if device == "cpu":
        dist.init_process_group("gloo")
    else:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers the backend

        torch.set_default_device(device)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        dist.init_process_group("smddp")
    torch.manual_seed(0)
    with open(Path(folder, f"rank{rank}.jsonl"), "w", buffering=1) as file:
        for case in cases:
            error = ""
            try:
                check_case(case)
            except Exception:
                error = traceback.format_exc()
            file.write(json.dumps([str(case), error]) + "\n")
            dist.barrier()
    dist.destroy_process_group()


def check_case(case: Case) -> None:
    """Some steps of training and one of evaluation: losses, results, gradients, buffers, memory."""
    from architectures import ARCHITECTURES

    import smdistributed.modelparallel.torch as smp

    architecture = ARCHITECTURES[case.architecture]
    smp.init(
        {
            "partitions": case.partitions,
            "microbatches": case.microbatches,
            "pipeline": case.pipeline,
            "ddp": dist.get_world_size() > case.partitions,
            "auto_partition": case.placement == "auto",
            "default_partition": 0,
        }
    )
    try:
        torch.manual_seed(1)
        module = architecture.make()
        torch.manual_seed(1)
        whole = architecture.make()
        if case.placement != "auto":
            place(module, case, architecture.together)
        _check_training(smp, case, architecture, module, whole)
    finally:
        smp.reset()


def place(module: nn.Module, case: Case, together: Sequence[Sequence[str]]) -> None:
    """Alternating: each module elsewhere than the one before, so that most calls are remote.

    Contiguous: those that hold parameters themselves, in equal parts.
    """
    import smdistributed.modelparallel.torch as smp

    names = {part: name for name, part in module.named_modules() if name}
    if case.placement == "contiguous":
        apart = {name for group in together for name in group}
        names = {
            part: name
            for part, name in names.items()
            if name in apart or next(part.parameters(recurse=False), None) is not None
        }
    groups = {name: tuple(group) for group in together for name in group}
    decided: dict[int | str, int] = {}
    for number, (part, name) in enumerate(names.items()):
        if case.placement == "alternating":
            wanted = (number + 1) % case.partitions
        else:
            wanted = number * case.partitions // len(names)
        group = groups.get(name, (name,))
        if "" in group:
            wanted = 0
        keys: list[int | str] = [group[0], *(id(p) for p in part.parameters(recurse=False))]
        wanted = next((decided[key] for key in keys if key in decided), wanted)
        decided.update(dict.fromkeys(keys, wanted))
        smp.set_partition(part, wanted)


def _check_training(
    smp: Any, case: Case, architecture: Any, module: nn.Module, whole: nn.Module
) -> None:
    model = smp.DistributedModel(module)

    @smp.step
    def train(model: Any, *inputs: Any) -> Any:
        output, loss = architecture.run(model, inputs)
        model.backward(loss)
        return loss, output

    @smp.step
    def evaluate(model: Any, *inputs: Any) -> Any:
        with torch.no_grad():
            output, loss = architecture.run(model, inputs)
        return loss, output

    replicas = smp.rdp_size()
    wrong: list[str] = []  # all that is, so that ranks stay together
    generator = torch.Generator(torch.get_default_device()).manual_seed(7)
    for step in range(4):
        is_training = step != 2
        model.train(is_training)
        whole.train(is_training)
        per_microbatch = 3 if step == 1 else 2
        size = per_microbatch * case.microbatches
        inputs = architecture.make_inputs(size * replicas, generator, step)
        if not is_training and replicas > 1 and architecture.is_batchwise:
            continue  # each replica has its own running statistics
        mine = tuple(t[size * smp.rdp_rank() :][:size] for t in inputs)
        for parameter in (*model.parameters(), *whole.parameters()):
            parameter.grad = None
        loss, output = (train if is_training else evaluate)(model, *mine)
        expected = _whole_step(architecture, whole, inputs, per_microbatch, is_training)
        first = smp.rdp_rank() * case.microbatches
        what = f"step {step}"
        expected = expected[first : first + case.microbatches]
        _compare_outputs(wrong, f"{what}: loss and output", (loss, output), expected, case)
        _compare_gradients(wrong, what, model, whole, case)
        if replicas == 1:
            _compare_buffers(wrong, what, model, whole, case)
        wrong += _leftovers(what)
        for parameter in (*model.local_parameters(), *whole.parameters()):
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.05)
    _check_only_its_part(model, whole)
    assert not wrong, "\n".join(wrong)


def _whole_step(
    architecture: Any, whole: nn.Module, inputs: Any, per_microbatch: int, is_training: bool
) -> list[tuple[Tensor, Any]]:
    """The same, in one process: of all replicas' microbatches the losses and results."""
    parts = list(zip(*(t.split(per_microbatch) for t in inputs), strict=True))
    results = []
    for part in parts:
        with torch.set_grad_enabled(is_training):
            output, loss = architecture.run(whole, part)
        if is_training:
            (loss / len(parts)).backward()
        results.append((loss.detach(), output))
    return results


def _compare(wrong: list[str], what: str, value: Any, expected: Any, case: Case) -> None:
    if not isinstance(expected, Tensor) or not isinstance(value, Tensor):
        if value is not expected and (value != expected or isinstance(value, Tensor)):
            wrong.append(f"{what} is {value!r:.200}; expected {expected!r:.200}")
        return
    if value.shape != expected.shape or value.dtype != expected.dtype:
        wrong.append(
            f"{what} is of {tuple(value.shape)} {value.dtype}; expected {tuple(expected.shape)}"
            f" {expected.dtype}"
        )
        return
    if value.numel() == 0:
        return
    value, expected = value.detach().double(), expected.detach().double()
    relative = RELATIVE_BFLOAT16 if case.architecture in ("autocast", "dtypes") else RELATIVE
    bound = relative * float(expected.abs().max()) + ABSOLUTE
    difference = float((value - expected).abs().max())
    if not difference <= bound:  # NaN is not
        wrong.append(f"{what} differs by {difference:.3g}; expected at most {bound:.3g}")


def _compare_outputs(
    wrong: list[str], what: str, output: Any, expected: list[Any], case: Case
) -> None:
    from smdistributed.modelparallel.torch.containers import flatten
    from smdistributed.modelparallel.torch.pipeline.step_output import (
        StepOutput,
        detach,
        gather_outputs,
    )

    leaves, structure = flatten(output)
    wanted_leaves, wanted_structure = flatten(gather_outputs([detach(each) for each in expected]))
    if structure != wanted_structure:
        wrong.append(f"{what} is {structure}; expected {wanted_structure}")
        return
    for number, (leaf, wanted) in enumerate(zip(leaves, wanted_leaves, strict=True)):
        if isinstance(wanted, StepOutput):
            for microbatch, (one, other) in enumerate(zip(leaf, wanted, strict=True)):
                _compare(wrong, f"{what}, leaf {number}, microbatch {microbatch}", one, other, case)
        else:
            _compare(wrong, f"{what}, leaf {number}", leaf, wanted, case)


def _compare_gradients(
    wrong: list[str], what: str, model: Any, whole: nn.Module, case: Case
) -> None:
    expected = dict(whole.named_parameters())
    local = dict(model.local_named_parameters())
    for name, parameter in model.named_parameters():
        wanted = expected[name].grad if name in local else None
        _compare(wrong, f"{what}: gradient of {name}", parameter.grad, wanted, case)


def _compare_buffers(wrong: list[str], what: str, model: Any, whole: nn.Module, case: Case) -> None:
    expected = dict(whole.named_buffers())
    for name, buffer in model.local_named_buffers():
        _compare(wrong, f"{what}: buffer {name}", buffer, expected[name], case)


def _leftovers(what: str) -> list[str]:
    from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

    pipeline = current_pipeline("a test")
    left = leftovers(pipeline.runner()) if pipeline.size > 1 else {}
    return [f"{what}: left over: {left}"] if any(left.values()) else []


def leftovers(runner: Any) -> dict[str, int]:
    """What a runner still keeps of programs; all of it 0 between steps."""
    callee, caller = runner._callee, runner._caller
    return {
        "frames": callee.num_frames,
        "early values": len(callee._early),
        "frames that are gone": len(callee._frames),
        "programs": len(caller._programs),
        "ready": len(runner._activities._ready),
        "suspended": len(runner._activities._suspended),
    }


def held_bytes(tensors: Iterator[Tensor]) -> int:
    """Of memory, each piece counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _check_only_its_part(model: Any, whole: nn.Module) -> None:
    """Each rank has memory for its part only; the parts of all ranks are the model."""
    import smdistributed.modelparallel.torch as smp

    local = {id(t) for t in (*model.local_parameters(), *model.local_buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        storage, size = tensor.untyped_storage().nbytes(), tensor.element_size()
        if id(tensor) not in local:
            assert storage == size, f"{name} is elsewhere, but takes {storage} bytes here"
    names = [name for name, _ in (*model.local_named_parameters(), *model.local_named_buffers())]
    everyone = smp.allgather(names, smp.PP_GROUP)
    together = sorted(name for each in everyone for name in each)
    assert together == sorted(n for n, _ in (*whole.named_parameters(), *whole.named_buffers()))
    mine = held_bytes(iter((*model.local_parameters(), *model.local_buffers())))
    total = sum(smp.allgather(mine, smp.PP_GROUP))
    assert total == held_bytes(iter((*whole.parameters(), *whole.buffers())))
