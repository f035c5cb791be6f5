# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One rank of one measured library. Started by ``groups.py``; not for use by hand.

The worker joins its group, then sleeps in a read from the control socket until it is this library's
turn. No library is inside one of its own calls meanwhile, so none of them spins on a core that
another one is being measured on.
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
from typing import Any

from adapters.base import Adapter, Unsupported
from cases import Case
from operands import fill_inputs, fill_zeros, find_error

WARM_UP_CALLS = 5


class Worker:
    """Answers the commands ``prepare``, ``run``, ``verify`` and ``release``."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._case: Case | None = None
        self._views: tuple[Any, Any] | None = None
        self._call: Callable[[], object] | None = None

    def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        """Allocate, verify one call, warm up; answers ``{"error"}`` or the seconds of one call."""
        self.release()
        adapter = self._adapter
        self._case = Case(**case)
        source, source_view = adapter.allocate(
            self._case.source_elements(adapter.rank), self._case.dtype
        )
        output, output_view = adapter.allocate(
            self._case.output_elements(adapter.rank), self._case.dtype
        )
        self._views = (source_view, output_view)
        self._call = adapter.bind(self._case, source, output)
        answer = self.verify()
        if "error" in answer:
            return answer
        for _ in range(WARM_UP_CALLS - 1):
            self._call()
        adapter.barrier()
        begin = time.perf_counter()
        self._call()
        return {"seconds": time.perf_counter() - begin}

    def verify(self) -> dict[str, Any]:
        """One call on known data, compared with the expected result; leaves zeros behind."""
        assert self._case is not None
        assert self._views is not None
        assert self._call is not None
        rank = self._adapter.rank
        fill_inputs(self._case, rank, *self._views)
        self._adapter.barrier()
        self._call()
        error = find_error(self._case, rank, *self._views)
        fill_zeros(*self._views)
        return {} if error is None else {"error": f"rank {rank}: {error}"}

    def run(self, inner: int, batches: int) -> dict[str, Any]:
        """Seconds per call of each of ``batches`` batches of ``inner`` calls."""
        assert self._call is not None
        call, barrier, clock = self._call, self._adapter.barrier, time.perf_counter
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

    def release(self) -> dict[str, Any]:
        """Give the buffers back."""
        self._case = self._views = self._call = None
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
            answer = getattr(worker, verb)(**command)
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
