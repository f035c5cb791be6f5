# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank. Started by `ranks.py`; not for use by hand.

The rank joins two process groups, one per backend, and holds one copy of the model per column. It
then sleeps in a read until the next command, so no library waits inside a call of its own while
another one is measured.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TextIO

import torch
import torch.distributed as dist
from columns import Column, column
from models import Workload, batch_of, workload
from torch import Tensor, nn

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 -- registers backend smddp

_SEED = 7
_LEARNING_RATE = 1e-4
_LEGACY_MODULE = "smdistributed.dataparallel.torch.parallel.distributed"
# Averages are formed in another order than the reference's.
_RELATIVE_TOLERANCE = 1e-4
_ABSOLUTE_TOLERANCE = 1e-6
# DDP rebuilds its buckets after the first step, and storages recur from the third on.
_WARM_UP_STEPS = 4


class Absent(Exception):
    """A column cannot be measured here; the text says why."""


# Without annotations: torch compares them with its classes, and here they would be text.
def _return_at_once(_, bucket):  # type: ignore[no-untyped-def]
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


class _Column:
    """A model of one column, ready to make steps."""

    def __init__(self, spec: Column, found: Workload, groups: dict[str, dist.ProcessGroup]) -> None:
        torch.manual_seed(_SEED)
        self._spec = spec
        self._module = found.build()
        self._loss = found.loss
        self._model = self._wrap(groups)
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=_LEARNING_RATE)
        self._inputs, self._classes = batch_of(found, dist.get_rank())

    def _wrap(self, groups: dict[str, dist.ProcessGroup]) -> nn.Module:
        spec = self._spec
        if spec.wrapper == "none":
            return self._module
        if spec.wrapper == "legacy":
            try:
                wrapper = importlib.import_module(_LEGACY_MODULE).DistributedDataParallel
            except ImportError as error:
                raise Absent(f"legacy DDP cannot be imported: {error}") from None
            return wrapper(self._module)
        # A free collective communicates nothing, the buffers of batch normalisation included.
        options = {"forward_sync_buffers": False} if spec.is_free else {}
        model = nn.parallel.DistributedDataParallel(
            self._module,
            process_group=groups[spec.backend],
            gradient_as_bucket_view=spec.has_views,
            **options,
        )
        if spec.is_free:
            model.register_comm_hook(None, _return_at_once)
        return model

    def backward(self) -> None:
        """Gradients of this rank's batch, averaged as the column does it."""
        self._optimizer.zero_grad()
        self._loss(self._model(self._inputs), self._classes).backward()

    def step(self) -> None:
        """One training step."""
        self.backward()
        self._optimizer.step()

    def gradients(self) -> list[Tensor]:
        """Copies of the gradients of all parameters."""
        return [p.grad.clone() for p in self._module.parameters() if p.grad is not None]

    def is_finite(self) -> bool:
        """Whether all weights still are numbers."""
        return all(bool(p.isfinite().all()) for p in self._module.parameters())

    @property
    def averages(self) -> bool:
        """Whether the gradients are averages over the ranks."""
        return self._spec.wrapper != "none" and not self._spec.is_free


def _reference(found: Workload, ranks: list[int]) -> list[Tensor]:
    """Average of the gradients of these ranks' batches, computed in this process alone."""
    sums: list[Tensor] = []
    for rank in ranks:
        torch.manual_seed(_SEED)
        module = found.build()
        inputs, classes = batch_of(found, rank)
        found.loss(module(inputs), classes).backward()
        mine = [p.grad for p in module.parameters() if p.grad is not None]
        sums = [a + b for a, b in zip(sums, mine, strict=True)] if sums else mine
    return [gradient / len(ranks) for gradient in sums]


def _find_error(found: list[Tensor], expected: list[Tensor]) -> str | None:
    if len(found) != len(expected):
        return f"{len(found)} gradients; expected {len(expected)}"
    for index, (mine, reference) in enumerate(zip(found, expected, strict=True)):
        scale = float(reference.abs().max())
        difference = float((mine - reference).abs().max())
        if not difference <= _RELATIVE_TOLERANCE * scale + _ABSOLUTE_TOLERANCE:
            return (
                f"gradient {index} is off by {difference:.3g}; its largest element is {scale:.3g}"
            )
    return None


class Worker:
    """Answers the commands `prepare`, `run`, `verify` and `release`."""

    def __init__(self) -> None:
        dist.init_process_group("smddp", timeout=timedelta(seconds=120))
        default = dist.group.WORLD
        assert default is not None
        gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=120))
        assert gloo is not None
        self._groups = {"smddp": default, "gloo": gloo}
        self._columns: dict[str, _Column] = {}

    def prepare(self, model: str, name: str) -> dict[str, Any]:
        """Build a column, compare its gradients with the reference, warm up."""
        found = workload(model)
        try:
            made = _Column(column(name), found, self._groups)
        except Absent as reason:
            return {"absent": str(reason)}
        rank, size = dist.get_rank(), dist.get_world_size()
        expected = _reference(found, list(range(size)) if made.averages else [rank])
        made.backward()
        error = _find_error(made.gradients(), expected)
        if error is not None:
            return {"error": f"{name}: {error}"}
        for _ in range(_WARM_UP_STEPS):
            made.step()
        dist.barrier()
        begin = time.perf_counter()
        made.step()
        seconds = time.perf_counter() - begin
        self._columns[name] = made
        gradient_bytes = sum(g.numel() * g.element_size() for g in expected)
        return {"seconds": seconds, "gradient_bytes": gradient_bytes, "tensors": len(expected)}

    def run(self, name: str, warm_up: int, steps: int) -> dict[str, Any]:
        """Seconds of each of `steps` steps, and the processor time of this process, all threads.

        `cpu_seconds` belongs to those steps, `turn_cpu_seconds` to the warm-up too.
        """
        step, clock = self._columns[name].step, time.perf_counter
        seconds = []
        turn_begin = time.process_time()
        for _ in range(warm_up):  # the caches hold another column's model
            step()
        dist.barrier()
        cpu_begin = time.process_time()
        last = clock()
        for _ in range(steps):
            step()
            now = clock()
            seconds.append(now - last)
            last = now
        end = time.process_time()
        return {
            "seconds": seconds,
            "cpu_seconds": end - cpu_begin,
            "turn_cpu_seconds": end - turn_begin,
        }

    def verify(self, name: str) -> dict[str, Any]:
        """Whether the weights are still numbers, after all the steps."""
        return {} if self._columns[name].is_finite() else {"error": f"{name}: weights overflowed"}

    def release(self) -> dict[str, Any]:
        """Give all models back."""
        self._columns.clear()
        gc.collect()
        return {}

    def close(self) -> None:
        """Leave the groups."""
        self._columns.clear()
        dist.destroy_process_group()


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """What this process writes answers to; anything else that is printed goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)
        yield answers


def _serve(worker: Worker, answers: TextIO) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        verb = command.pop("verb")
        if verb == "stop":
            return
        # A rank stuck inside a library cannot read "stop": let it print its stack and end.
        faulthandler.dump_traceback_later(command.pop("deadline_s"), exit=True)
        act: Callable[..., dict[str, Any]] = getattr(worker, verb)
        try:
            answer = act(**command)
        except Exception as error:
            first_line = (str(error).strip() or "(no text)").splitlines()[0]
            answer = {"error": f"{type(error).__name__}: {first_line[:300]}"}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers)


def main() -> None:
    """Join the groups and serve until told to stop."""
    torch.set_num_threads(1)
    with _own_output() as answers:
        worker = Worker()
        print(json.dumps({"version": torch.__version__}), file=answers)
        gc.collect()
        gc.disable()
        _serve(worker, answers)
        worker.close()


if __name__ == "__main__":
    main()
