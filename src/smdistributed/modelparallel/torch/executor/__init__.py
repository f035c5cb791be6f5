# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What runs a module tree over several ranks. It knows no `smp`: ranks, modules and messages only.

Read in this order:

- `messages`: what ranks tell each other, with a drawn sequence of one microbatch; `wire` packs it,
  and `mailbox` gives it to those whom it is for.
- `states`: the life of a program, on the rank that calls it and on the rank that runs it.
- `caller`: calls of remote modules, with `programs`, `deferred` and `signatures`.
- `owner`: programs that others called here, with `frames`.
- `executor`: a step: the leader's microbatches, and what goes wrong.
- `fibers`: stacks, of which one runs at a time.
- `interception`: where calls leave torch.
- `argument_changes`, `attributes`: what modules change beside what they return.
- `modes`: what torch keeps per thread or process.
- `remote_errors`: exceptions that travel.
"""
