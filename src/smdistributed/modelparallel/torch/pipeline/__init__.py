# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step of a model whose modules are on several ranks: what happens, and when a message comes.

Read in this order:

- `step`: `@smp.step`; it cuts a batch (`microbatches`) and puts results together (`step_output`).
- `pipeline`: the ranks that share a model, and the step that they are in.
- `executor`: the step on one rank. From here on nothing knows `smp`.
- `interception`: where calls of modules leave torch.
- `caller`: calls of modules on other ranks. `callee`: calls by other ranks of modules here.
- `messages`: what ranks tell each other, with a drawn sequence of one microbatch.
- `values`: what is promised and has not come, and what travels; `changes`: what modules change.
- `loop`: which activity runs next, on which stack.
"""
