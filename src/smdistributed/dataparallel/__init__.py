# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Data parallel training; the framework-neutral part.

Importing this package imports no framework, so that a launcher without one can look at
`smdistributed.dataparallel.exceptions`. For PyTorch, import
`smdistributed.dataparallel.torch.torch_smddp` and choose the backend `smddp`.

    smdistributed.dataparallel.start_profiler("runs/trace.json")    # a timeline of this rank
    ...
    smdistributed.dataparallel.stop_profiler()                      # writes runs/trace.0.json, ...

`__version__` is 2.0 or later, so scripts that ask for "1.4.0 or later" take the backend path.
Source: dataparallel specification, sections 1 and 9.
"""

from smdistributed._common.version import __version__
from smdistributed.dataparallel.profiler import start_profiler, stop_profiler

__all__ = ["__version__", "start_profiler", "stop_profiler"]
