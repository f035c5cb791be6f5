# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which models torch.distributed.pipelining can run in two processes.

    python benchmarks/pipeline/can_run.py [architecture ...] [--out FILE.json]

Some 20 minutes. report.py makes a table of the file.

For each architecture of tests/multiprocess/modelparallel/architectures.py, in two processes, each
try with a deadline:

- *traced*: `pipeline()` with a split point where the model's children divide in half,
  `ScheduleGPipe` and `Schedule1F1B`; loss and every gradient are compared with the whole model's.
- *by hand*: `PipelineStage` with the model's children, in the order of their definition, as two
  halves of a chain, which is how the manual interface is meant; the loss is compared. Models that
  are no chain fail here; who writes a stage of his own for each half of such a model changes it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/multiprocess/modelparallel"), str(ROOT / "tests/multiprocess")]

DEADLINE_S = 90
MICROBATCHES = 4
MOST = 160  # characters of a reason
WAYS = ("traced, GPipe", "traced, 1F1B", "by hand, GPipe", "by hand, 1F1B")


def build_traced(module: Any, parts: tuple[Any, ...], rank: int, kwargs: dict[str, Any]) -> Any:
    """This rank's stage of what `torch.export` makes of the model."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    splits = split_candidates(module)
    middle = splits[len(splits) // 2]
    pipe = pipeline(
        module,
        mb_args=parts,
        mb_kwargs=kwargs,
        split_spec={middle: SplitPoint.BEGINNING},
    )
    if pipe.num_stages != 2:
        raise RuntimeError(f"split into {pipe.num_stages} stages instead of 2")
    import torch

    return pipe.build_stage(rank, torch.device("cpu"))


def split_candidates(module: Any) -> list[str]:
    """Names of the parts of the model's longest list or chain, else of its children."""
    from torch import nn

    lists = [
        [f"{name}.{child}" if name else child for child, _ in part.named_children()]
        for name, part in module.named_modules()
        if isinstance(part, (nn.ModuleList, nn.Sequential))
    ]
    longest = max(lists, key=len, default=[])
    return longest if len(longest) > 1 else [name for name, _ in module.named_children()]


def build_by_hand(module: Any, rank: int) -> Any:
    """The children as a chain, cut in the middle."""
    import torch
    from torch import nn
    from torch.distributed.pipelining import PipelineStage

    children = []
    for child in module.children():
        children += list(child) if isinstance(child, (nn.ModuleList, nn.Sequential)) else [child]
    half = (len(children) + 1) // 2
    part = nn.Sequential(*(children[:half] if rank == 0 else children[half:]))
    return PipelineStage(part, rank, 2, torch.device("cpu"))


def try_it(rank: int, name: str, way: str) -> None:
    """Two steps with different sizes, as a script with two kinds of batches would take."""
    import torch
    import torch.distributed as dist
    from architectures import ARCHITECTURES
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    architecture = ARCHITECTURES[name]
    torch.manual_seed(1)
    module = architecture.make()
    torch.manual_seed(1)
    whole = architecture.make()
    dist.init_process_group("gloo", timeout=dt.timedelta(seconds=DEADLINE_S))
    generator = torch.Generator().manual_seed(7)
    inputs = architecture.make_inputs(2 * MICROBATCHES, generator, 0)
    part = tuple(t[:2] for t in inputs)
    kwargs: dict[str, Any] = {}
    if name == "hf_gpt2":
        kwargs = {"labels": part[0]}
    if way.startswith("traced"):
        stage = build_traced(module, part, rank, kwargs)
    else:
        stage = build_by_hand(module, rank)
    kind = ScheduleGPipe if way.endswith("GPipe") else Schedule1F1B
    parts = list(zip(*(t.split(2) for t in inputs), strict=True))
    numbers = torch.arange(MICROBATCHES).repeat_interleave(2)  # the target says which microbatch

    def loss_of(output: Any, target: Any) -> Any:
        return architecture.loss(output, parts[int(target[0])])

    schedule = kind(stage, MICROBATCHES, loss_fn=loss_of)
    losses: list[Any] = []
    step_kwargs = dict.fromkeys(kwargs, inputs[0])
    with architecture.modes():
        if rank == 0:
            schedule.step(*inputs, **step_kwargs)
        else:
            schedule.step(target=numbers, losses=losses, **(step_kwargs if kwargs else {}))
    wanted_losses = []
    for each in parts:
        _, loss = architecture.run(whole, each)
        (loss / MICROBATCHES).backward()
        wanted_losses.append(loss.detach())
    if rank == 1 and not torch.allclose(
        torch.stack([each.detach() for each in losses]), torch.stack(wanted_losses), rtol=1e-4
    ):
        raise AssertionError("wrong: the loss is another one")
    expected = {id_of(n): p.grad for n, p in whole.named_parameters()}
    for n, p in stage.submod.named_parameters():
        if way.startswith("by hand"):
            continue  # under other names; the loss has been compared
        wanted = expected.get(id_of(n))
        if (p.grad is None) != (wanted is None):
            raise AssertionError(f"wrong: gradient of {n} is {'None' if p.grad is None else 'set'}")
        if wanted is not None and not torch.allclose(p.grad, wanted, rtol=1e-4, atol=1e-6):
            raise AssertionError(f"wrong: gradient of {n}")
    dist.barrier()


def id_of(name: str) -> str:
    return name.replace("/", ".")


def child(rank: int, port: int, name: str, way: str, file: str) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    import torch

    torch.set_num_threads(1)
    try:
        try_it(rank, name, way)
        told = ""
    except BaseException as caught:
        error = caught.__cause__ or caught  # torch wraps what a stage raises
        lines = traceback.format_exception_only(error)
        told = f"{type(error).__name__}: " + " ".join("".join(lines).split(": ", 1)[-1].split())
    Path(file).write_text(json.dumps(told))
    os._exit(0)  # the other one may wait for this one


def attempt(name: str, way: str) -> str:
    """Why it cannot; empty if it can."""
    from harness import free_port

    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        files = [str(Path(folder, str(rank))) for rank in range(2)]
        command = [sys.executable, "-W", "ignore", __file__, "--child"]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(port), name, way, files[rank]],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(2)
        ]
        told = []
        for process, file in zip(processes, files, strict=True):
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            path = Path(file)
            told.append(json.loads(path.read_text()) if path.exists() else "no end in time")
    reasons = [each for each in told if each]
    # What a rank says of its peer's end is not the reason.
    own = [each for each in reasons if "Connection" not in each and "peer" not in each]
    return (own or reasons or [""])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("architectures", nargs="*")
    parser.add_argument("--out", type=Path, help="where the findings go, as JSON")
    parser.add_argument("--child", nargs=5, metavar=("RANK", "PORT", "NAME", "WAY", "FILE"))
    arguments = parser.parse_args()
    if arguments.child:
        rank, port, name, way, file = arguments.child
        child(int(rank), int(port), name, way, file)
    import torch
    from architectures import ARCHITECTURES

    found: dict[str, dict[str, str]] = {}
    for name in arguments.architectures or ARCHITECTURES:
        reasons = found[name] = {}
        for way in WAYS:
            kind = way.split(",")[0]
            before = [reasons[w] for w in reasons if w.startswith(kind)]
            # What cannot be built cannot be scheduled in another order either.
            reasons[way] = before[0] if before and before[0] else attempt(name, way)[:MOST]
        told = "; ".join(f"{way}: {reason or 'yes'}" for way, reason in reasons.items())
        print(f"{name}: {told}", flush=True)
    if arguments.out:
        content = {"torch": torch.__version__, "why_not": found}
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
