# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of step functions, by the same rules for every framework.

- `structures` takes containers apart and puts them together.
- `splitting` binds the arguments of a step function and cuts them into microbatches.
- `gathering` makes one result of those of the microbatches.

Nothing here imports a framework. Each framework's room says what is a leaf (`structures`), which
types are tensors and how they are cut (`splitting.Cutting`), and what becomes of results.
"""
