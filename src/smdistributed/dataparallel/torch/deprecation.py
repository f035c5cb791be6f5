# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the legacy modules tell their users, once per process.

The warning must be a `DeprecationWarning`, and Python hides those unless the line that causes them
is in `__main__`. Adding a filter of our own would show it, but would also overrule a user who has
silenced warnings. So the warning is filed under `__main__` wherever it comes from: Python's default
filters then show it, and every filter of the user's keeps its effect.

Source: dataparallel specification, section 5.
"""

from __future__ import annotations

import sys
import warnings

__all__ = ["ACCUMULATION_ADVICE", "DEPRECATION_TEXT", "LegacyModuleWarning", "warn_legacy"]

DEPRECATION_TEXT = """\
smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel library v1.4.0+.
Please use torch.distributed and specify 'smddp' as a backend when initializing process group as follows:
torch.distributed.init_process_group(backend='smddp')
For more information, see the library's API documentation at
https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html
"""  # noqa: E501 -- the published text
DEPRECATION_TEXT = DEPRECATION_TEXT.removesuffix("\n")

ACCUMULATION_ADVICE = (
    "gradient_accumulation_steps is deprecated in the SageMaker distributed data parallel library"
    " v1.4.0+ and works here as before. Wrap all but the last forward and backward of an"
    " accumulation in DistributedDataParallel.no_sync() instead, which torch's class has too."
)

_PACKAGE = "smdistributed."
_told: set[str] = set()


class LegacyModuleWarning(DeprecationWarning):
    """A part of the legacy modules is used; the text names what takes its place."""


def warn_legacy(text: str) -> None:
    """Warn the line of the user's program that called the library, the first time in a process."""
    if text in _told:
        return
    _told.add(text)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame = frame.f_back
    warnings.warn_explicit(
        text, LegacyModuleWarning, frame.f_code.co_filename, frame.f_lineno, module="__main__"
    )
