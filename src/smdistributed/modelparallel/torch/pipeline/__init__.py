# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step of a model whose modules are on several ranks: what happens, and when a message comes.

Read in this order:

- `step`: `StepFunction.__call__` is the whole step. It cuts a batch (`microbatches`), puts results
  together (`step_output`).
- `pipeline`: the ranks that share a model, and the parts of a step that need `smp`.
- `runner`: a step on one rank (`alone`: if it is the only one). From here on nothing knows `smp`.
  `leader` runs the user's function, `world` is what the schedule needs beside it, and
  `progress.step_state` is the state of the step, a new one each time.
- `interception`: where calls of modules leave torch.
- `devices`: what a model is called with goes to where the model is.
- `caller`: calls of modules on other ranks. `callee`: calls by other ranks of modules here.
- `handlers`: what happens when a message comes. `messages`: what ranks tell each other, with a
  drawn sequence of one microbatch.
- `values`: what is promised and has not come, and what travels; `changes`: what modules change.
- `loop`: which activity runs next, on which stack. `gradient_scale`: what gradients begin with.
"""
