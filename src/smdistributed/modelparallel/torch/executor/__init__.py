# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What runs a module tree over several ranks. It knows no `smp`: ranks, modules and messages only.

- `executor`: a step: the leader's microbatches, messages, what goes wrong.
- `fibers`: stacks of which one runs at a time.
- `interception`: where calls leave torch.
- `caller`: calls of remote modules, with `programs`, `deferred` and `signatures`.
- `frames`: programs that others called here.
- `wire`: messages.
- `modes`: what torch keeps per thread or process.
- `remote_errors`: exceptions that travel.
"""
