# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of one measured library. Started by ``groups.py``; not for use by hand.

The worker joins its group, then sleeps in a read from the control socket until it is this library's
turn. No library is inside one of its own calls meanwhile, so none of them spins on a core that
another one is being measured on.

A command names its case; several may be prepared at a time, each with buffers of its own.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from adapters.base import Adapter, Unsupported
from cases import Case
from operands import ArrayLike, fill_inputs, fill_zeros, find_error

WARM_UP_CALLS = 5


@dataclass(frozen=True)
class Prepared:
    """A case with its buffers: what the harness sees of them, and the call on them."""

    views: tuple[ArrayLike, ArrayLike]
    call: Callable[[], object]


class Worker:
    """Answers the commands ``prepare``, ``run``, ``verify`` and ``release``."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._prepared: dict[Case, Prepared] = {}

    def prepare(self, case: Case) -> dict[str, Any]:
        """Allocate, verify one call, warm up; answers ``{"error"}`` or the seconds of one call."""
        self.release(case)
        adapter = self._adapter
        source, source_view = adapter.allocate(case.source_elements(adapter.rank), case.dtype)
        output, output_view = adapter.allocate(case.output_elements(adapter.rank), case.dtype)
        call = adapter.bind(case, source, output)
        self._prepared[case] = Prepared((source_view, output_view), call)
        answer = self.verify(case)
        if "error" in answer:
            return answer
        for _ in range(WARM_UP_CALLS - 1):
            call()
        adapter.barrier()
        begin = time.perf_counter()
        call()
        return {"seconds": time.perf_counter() - begin}

    def verify(self, case: Case) -> dict[str, Any]:
        """One call on known data, compared with the expected result; leaves zeros behind."""
        prepared, rank = self._prepared[case], self._adapter.rank
        fill_inputs(case, rank, *prepared.views)
        self._adapter.barrier()
        prepared.call()
        has_results = self._adapter.has_results
        error = find_error(case, rank, *prepared.views) if has_results else None
        fill_zeros(*prepared.views)
        return {} if error is None else {"error": f"rank {rank}: {error}"}

    def run(self, case: Case, inner: int, batches: int) -> dict[str, Any]:
        """Seconds per call of each of ``batches`` batches of ``inner`` calls."""
        call, barrier = self._prepared[case].call, self._adapter.barrier
        clock = time.perf_counter
        seconds = []
        for _ in range(min(inner, WARM_UP_CALLS * 4)):  # caches are cold after the others' turns
            call()
        for _ in range(batches):
            barrier()
            begin = clock()
            for _ in range(inner):
                call()
            seconds.append((clock() - begin) / inner)
        return {"seconds": seconds}

    def release(self, case: Case) -> dict[str, Any]:
        """Give the buffers back."""
        self._prepared.pop(case, None)
        gc.collect()
        return {}


def _serve(worker: Worker, control: socket.socket) -> None:
    commands = control.makefile("r", encoding="utf-8")
    for line in commands:
        command = json.loads(line)
        verb = command.pop("verb")
        if verb == "stop":
            return
        # A rank stuck inside a library cannot read "stop": let it print its stack and end.
        faulthandler.dump_traceback_later(command.pop("deadline_s"), exit=True)
        try:
            answer = getattr(worker, verb)(Case(**command.pop("case")), **command)
        except Unsupported as reason:
            answer = {"unsupported": str(reason)}
        except Exception as error:
            first_line = (str(error).strip() or "(no text)").splitlines()[0]
            answer = {"error": f"{type(error).__name__}: {first_line[:300]}"}
        faulthandler.cancel_dump_traceback_later()
        control.sendall((json.dumps(answer) + "\n").encode())


def main() -> None:
    """Join the group named on the command line and serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adapter", required=True, help="module:class")
    parser.add_argument("--control", required=True, help="path of the control socket")
    arguments = parser.parse_args()
    module_name, class_name = arguments.adapter.split(":")
    # Connected before the library is imported: the parent then sees which rank never came up.
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.connect(arguments.control)
    faulthandler.dump_traceback_later(120, exit=True)
    hello: dict[str, Any] = {"pid": os.getpid()}
    adapter: Adapter | None = None
    try:
        adapter = getattr(importlib.import_module(module_name), class_name)()
        version = adapter.start()
        hello |= {"rank": adapter.rank, "ranks": adapter.world_size, "version": version}
    except ImportError as error:
        hello["absent"] = f"it cannot be imported: {error}"
    except Exception as error:
        hello["error"] = f"{type(error).__name__}: {error}"
    faulthandler.cancel_dump_traceback_later()
    control.sendall((json.dumps(hello) + "\n").encode())
    if adapter is None or "version" not in hello:
        raise SystemExit(1)
    gc.disable()
    _serve(Worker(adapter), control)
    adapter.stop()


if __name__ == "__main__":
    main()
