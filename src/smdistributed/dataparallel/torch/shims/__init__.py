# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Scripts written for GPUs, on machines without one: the shims of `SMDDP_CPU_SHIM`.

Scripts of 2020-2024 say `torch.cuda.set_device(local_rank)` and `model.cuda()` without asking
whether there is CUDA, because there always was. What is put in their way here, and when:

    module      | what it changes                                  | off | auto | full
    ------------+--------------------------------------------------+-----+------+-----
    calls       | "0" is taken as device index 0                   |  x  |  x   |  x
    calls       | set_device(), .cuda(): nothing to do             |     |  x   |  x
    ddp         | DDP(device_ids=[...]) of a CPU module            |     |  x   |  x
    mapping     | .to("cuda"), zeros(device="cuda"), ...: CPU      |     |      |  x
    questions   | is_available(), ...: "yes" to the user's files   |     |      |  x
    streams     | Event, Stream, synchronize(): time on the CPU    |     |      |  x

Where CUDA is available nothing but the first row is in effect, whatever the mode. `auto` also asks
that the process is one rank of a job that a launcher has started or discovery has found; `full`
is asked for by name, so it is active without that.

**When CUDA is looked for.** `torch.cuda.is_available()` starts the driver, after which a script can
neither set `CUDA_VISIBLE_DEVICES` nor fork. So `auto` asks at the first call that needs the
answer, which is a call for CUDA anyway. `full` asks when it is installed, as it replaces too many
functions to let them all ask; `smddprun --cpu` hides the GPUs, which makes the answer harmless.

Each shim logs once, in the job's rank 0; in the other ranks the line is a debug message.

Source: specification, sections 4.1 and 4.6; what `full` covers beyond the table there is our
choice, and `docs/cpu_shims.md` lists it.
"""

from __future__ import annotations

import threading

import torch

from smdistributed._common import errors
from smdistributed._common.discovery import discover
from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid
from smdistributed.dataparallel.torch import notices
from smdistributed.dataparallel.torch.shims import calls, ddp, mapping, questions, streams
from smdistributed.dataparallel.torch.shims.patches import Patches

__all__ = ["install", "uninstall"]

_lock = threading.Lock()
_installed: Patches | None = None


def install() -> None:
    """Put the shims of this process's mode in place. Idempotent; any thread; prints nothing.

    Raises:
        SMDDPConfigInvalid: `SMDDP_CPU_SHIM` or another setting has a value that cannot work.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return
        try:
            mode = process_settings().cpu_shim
            is_rank = discover().source != "none"
        except errors.ConfigurationError as error:
            raise SMDDPConfigInvalid(str(error)) from None
        _installed = _install_mode(mode, is_rank=is_rank)


def uninstall() -> None:
    """Put torch's own functions back, for tests; what was replaced after `install` is lost."""
    global _installed
    with _lock:
        if _installed is not None:
            _installed.undo()
            _installed = None
        calls.forget()
        notices.forget()


def _install_mode(mode: str, *, is_rank: bool) -> Patches:
    patches = Patches()
    may_stand_in = mode == "full" or (mode == "auto" and is_rank)
    calls.install(patches, may_stand_in=may_stand_in)
    if may_stand_in:
        ddp.install(patches)
    if mode != "full":
        return patches
    if torch.cuda.is_available():
        notices.warn_once(
            "full",
            "SMDDP_CPU_SHIM=full has no effect, as CUDA is available; expected a machine without"
            " GPUs, or hidden ones. Start with smddprun --cpu, or set CUDA_VISIBLE_DEVICES= (empty)"
            " before Python starts.",
        )
        return patches
    mapping.install(patches)
    streams.install(patches)
    questions.install(patches)
    get_logger().debug("SMDDP_CPU_SHIM=full: %d functions of torch are replaced", len(patches))
    notices.inform_once(
        "full", "SMDDP_CPU_SHIM=full: what this script asks of cuda is done on the cpu"
    )
    return patches
