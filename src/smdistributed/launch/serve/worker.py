# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A worker: `python -m smdistributed.launch.serve.worker PARENT MODEL FRAMEWORK SOCKET`.

It loads the model, says so, and answers one call after the other. It ends when nobody is left to
ask it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from smdistributed.launch.orphans import die_with_parent
from smdistributed.launch.serve.handlers.answers import (
    Handlers,
    answer_of,
    end_if_forked,
    print_trace,
)
from smdistributed.launch.serve.messages import Call, Loaded, frame, read_frame_from
from smdistributed.launch.serve.record import Framework

__all__ = ["main"]

_MOST_OF_A_TRACE = 4000


def main(arguments: list[str]) -> None:
    """Loads, and answers until the socket ends."""
    parent, model, framework, descriptor = arguments
    die_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the endpoint says when
    os.set_inheritable(int(descriptor), False)
    connection = socket.socket(fileno=int(descriptor))
    handlers, problem = _loaded(Path(model), Framework(framework))
    connection.sendall(frame(Loaded(problem)))
    if handlers is None:
        return
    with connection.makefile("rb") as file:
        while (received := read_frame_from(file)) is not None:
            fields, body = received
            answer = answer_of(handlers, Call(**fields, body=body))
            with contextlib.suppress(Exception):  # the disk is full, or a function has closed it
                sys.stdout.flush()
            connection.sendall(frame(answer))


def _loaded(model: Path, framework: Framework) -> tuple[Handlers | None, str]:
    """What answers calls; or why there is nothing."""
    process = os.getpid()
    try:
        handlers = _makers[framework]()(model)
        handlers.load()
    except BaseException as error:
        end_if_forked(process, error)
        print_trace()
        last = traceback.format_exception_only(error)[-1].strip()
        return None, f"the model could not be loaded: {last}"[:_MOST_OF_A_TRACE]
    end_if_forked(process)
    return handlers, ""


def _pytorch() -> Callable[[Path], Handlers]:
    from smdistributed.launch.serve.handlers.pytorch import PyTorchHandlers

    return PyTorchHandlers


def _tensorflow() -> Callable[[Path], Handlers]:
    from smdistributed.launch.serve.handlers.tensorflow import TensorFlowHandlers

    return TensorFlowHandlers


# Each imports its framework.
_makers = {Framework.PYTORCH: _pytorch, Framework.TENSORFLOW: _tensorflow}


if __name__ == "__main__":
    main(sys.argv[1:])
