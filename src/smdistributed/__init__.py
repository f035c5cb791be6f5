# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Open re-implementation of the `smdistributed` libraries.

This package has a version, and importing it loads no more than that: third-party trainers ask
`importlib.util.find_spec("smdistributed")` whether the library exists, and launchers that have
no framework installed look inside. What you came for lives in the rooms below:

- `smdistributed.collectives`: the collectives engine, on NumPy arrays, no framework needed.
- `smdistributed.dataparallel`: data parallel training; `...dataparallel.torch.torch_smddp`
  registers the `smddp` backend with `torch.distributed`.
- `smdistributed.modelparallel`: one PyTorch model over several processes; `...modelparallel.torch`
  is what scripts import as `smp`.
- `smdistributed.launch`: `smddprun`, the launcher.

Source: dataparallel specification, section 1, rules 1 and 2.
"""

from smdistributed._common.version import __version__

__all__ = ["__version__"]
