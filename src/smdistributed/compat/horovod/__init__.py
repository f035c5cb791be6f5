# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Horovod's names, with Horovod's signatures, over the engine of this package.

A script changes its import line, and nothing else:

    import smdistributed.compat.horovod.tensorflow as hvd          # was: horovod.tensorflow
    import smdistributed.compat.horovod.tensorflow.keras as hvd    # was: horovod.tensorflow.keras
    import smdistributed.compat.horovod.torch as hvd               # was: horovod.torch

or not even that: in jobs of `smddprun`, and by `python -m smdistributed.compat.horovod train.py`
under other launchers, `import horovod` finds the stand-in where no Horovod is installed.

Importing this package imports no framework, and nothing else of ours.

Source: our choice; see docs/horovod.md.
"""
