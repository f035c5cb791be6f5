# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Measures steps of the fused optimizers, and layer norms. See README.md.

Loop:  for case (set and family, or shape and dtype): make the columns
         for round: for column, in an order that turns by one each round: measure; the bandwidth
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))  # for `common`

import torch
from columns import FAMILIES, NORM_DTYPES, NORM_SHAPES, NORM_TRANSFERS, NORMS
from common.command_line import add_names, add_turns
from common.result_files import ResultFile
from common.rounds import in_turn, ratio_figures
from sets import SETS
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
WARM_UP = 2
LARGE_ELEMENTS = 1 << 26

Act = Callable[[], Any]


class Bandwidth:
    """Bytes per second that plain operations on large tensors move; the best of three kinds."""

    def __init__(self, device: torch.device) -> None:
        first, second = (torch.zeros(LARGE_ELEMENTS, device=device) for _ in range(2))
        # In place, so that no line is read only because it is written.
        self._acts: tuple[tuple[Act, int], ...] = (
            (lambda: first.add_(second), 12),
            (lambda: first.mul_(1.0), 8),
            (lambda: first.sum(), 4),
        )
        self._device = device

    def sample(self) -> float:
        """Of one turn of each."""
        return max(
            size * LARGE_ELEMENTS / seconds_of(act, 1, self._device) for act, size in self._acts
        )


def seconds_of(act: Act, repeats: int, device: torch.device) -> float:
    """Of one call."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        act()
    wait()
    return (time.perf_counter() - begin) / repeats


def take_turns(
    acts: dict[str, Act], options: argparse.Namespace, bandwidth: Bandwidth
) -> dict[str, Any]:
    """Times by column, ratios to the first one's, and the floor for what they move.

    Each column acts equally often.
    """
    device = options.device
    for act in acts.values():
        for _ in range(WARM_UP):
            act()
    longest = max(seconds_of(act, 1, device) for act in acts.values())
    repeats = max(1, round(options.turn_ms / 1e3 / longest))
    names = list(acts)
    turns: dict[str, list[float]] = {name: [] for name in names}
    speeds = []
    for number in range(options.rounds):
        for name in in_turn(names, number):
            turns[name].append(seconds_of(acts[name], repeats, device))
        speeds.append(bandwidth.sample())
    ours = names[0]
    return {
        "median_ms": {name: round(median(each) * 1e3, 4) for name, each in turns.items()},
        "best_ms": {name: round(min(each) * 1e3, 4) for name, each in turns.items()},
        "against": {name: _spread(turns[ours], turns[name]) for name in names[1:]},
        "bandwidth_gb_s": round(median(speeds) / 1e9, 2),
        "best_bandwidth_gb_s": round(max(speeds) / 1e9, 2),
    }


def _spread(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """How many times as long theirs take: the ratio of medians, and p10 and p90 of the rounds'."""
    found = ratio_figures(other / mine for mine, other in zip(ours, theirs, strict=True))
    ratio = round(median(theirs) / median(ours), 4)
    return {"ratio": ratio, "p10": found["p10"], "p90": found["p90"]}


def steps_of(
    chosen: str, family: str, options: argparse.Namespace, bandwidth: Bandwidth
) -> dict[str, Any]:
    """The record of one set with one family.

    Raises:
        AssertionError: a column has computed something else than ours.
    """
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) * 0.02 for shape in SETS[chosen]()]
    gradients = [torch.randn(each.shape, generator=generator) * 0.01 for each in start]
    gradients = [each.to(options.device) for each in gradients]
    acts: dict[str, Act] = {}
    parameters: dict[str, list[nn.Parameter]] = {}
    for name, make in FAMILIES[family].makes.items():
        made = [nn.Parameter(each.to(options.device, copy=True)) for each in start]
        for parameter, gradient in zip(made, gradients, strict=True):
            parameter.grad = gradient
        parameters[name] = made
        acts[name] = make(made).step
    record = take_turns(acts, options, bandwidth)
    names = list(parameters)
    for name in names[1:]:
        for ours, theirs in zip(parameters[names[0]], parameters[name], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    elements = sum(each.numel() for each in start)
    moved = elements * FAMILIES[family].bytes_per_element
    return _with_floor(
        {"set": chosen, "family": family, "tensors": len(start), "elements": elements, **record},
        moved,
    )


def norm_of(
    shape: tuple[int, int], dtype: str, options: argparse.Namespace, bandwidth: Bandwidth
) -> dict[str, Any]:
    """The record of one shape of layer norm, forward and backward.

    Raises:
        AssertionError: ours has another gradient than torch's.
    """
    torch.manual_seed(0)
    x = torch.randn(shape, device=options.device).to(NORM_DTYPES[dtype])
    dy = torch.randn(shape, device=options.device).to(NORM_DTYPES[dtype])
    modules = {
        name: make(shape[1]).to(options.device, NORM_DTYPES[dtype]) for name, make in NORMS.items()
    }
    inputs = {name: x.clone().requires_grad_() for name in modules}
    acts = {name: _forward_and_backward(modules[name], inputs[name], dy) for name in modules}
    record = take_turns(acts, options, bandwidth)
    ours, theirs = (each.grad for each in inputs.values())
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)
    moved = x.numel() * x.itemsize * NORM_TRANSFERS
    return _with_floor({"shape": list(shape), "dtype": dtype, **record}, moved)


def _forward_and_backward(module: nn.Module, x: Tensor, dy: Tensor) -> Act:
    def act() -> None:
        x.grad = None
        module(x).backward(dy)

    return act


def _with_floor(record: dict[str, Any], moved: int) -> dict[str, Any]:
    floor_ms = moved / record["bandwidth_gb_s"] / 1e6
    shares = {name: round(floor_ms / each, 3) for name, each in record["median_ms"].items()}
    return {**record, "bytes": moved, "floor_ms": round(floor_ms, 4), "share_of_floor": shares}


def _print(title: str, record: dict[str, Any]) -> None:
    times = ", ".join(f"{name} {each:.3f} ms" for name, each in record["median_ms"].items())
    ratios = ", ".join(
        f"{name} / ours {each['ratio']:.3f} ({each['p10']:.2f}-{each['p90']:.2f})"
        for name, each in record["against"].items()
    )
    print(
        f"{title}: {times}; floor {record['floor_ms']:.3f} ms at"
        f" {record['bandwidth_gb_s']:.1f} GB/s; {ratios}",
        flush=True,
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__.splitlines()[0])
    add_names(parser, "--sets", tuple(SETS))
    add_names(parser, "--families", tuple(FAMILIES))
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    add_turns(parser, 15, 300)
    parser.add_argument("--threads", type=int, metavar="N", help="of torch; default: its own")
    parser.add_argument("--no-norms", action="store_true", help="optimizers only")
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    return parser.parse_args(argv)


def main() -> int:
    """Measure what the command line asks for; the exit status is 0 if all of it was measured."""
    options = _parse(sys.argv[1:])
    if options.threads:
        torch.set_num_threads(options.threads)
    file = ResultFile(HERE, options.out)
    content: dict[str, Any] = {
        "rounds": options.rounds,
        "turn_ms": options.turn_ms,
        "device": _device_name(options.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "steps": [],
        "norms": [],
    }
    bandwidth = Bandwidth(options.device)
    for chosen in options.sets:
        for family in options.families:
            record = steps_of(chosen, family, options, bandwidth)
            content["steps"].append(record)
            _print(f"{chosen}, {family}", record)
    if not options.no_norms:
        for shape in NORM_SHAPES:
            for dtype in NORM_DTYPES:
                record = norm_of(shape, dtype, options, bandwidth)
                content["norms"].append(record)
                _print(f"layer norm, {shape[0]} x {shape[1]}, {dtype}", record)
    file.write(**content)
    print(f"results: {file.name}")
    return 0


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


if __name__ == "__main__":
    sys.exit(main())
