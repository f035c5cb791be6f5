# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in for Horovod: what `import horovod` finds in jobs where no Horovod is installed.

It imports no framework; `horovod.tensorflow`, `horovod.keras` and `horovod.torch` do. What is there
is `smdistributed.compat.horovod` under the names that scripts import.

Source: our choice; see docs/horovod.md.
"""

from .runner import run

__version__ = "0.28.1"
"""The release of Horovod whose names are here; scripts look at its first numbers."""

__all__ = ["__version__", "run"]
