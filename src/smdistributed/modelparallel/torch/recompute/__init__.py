# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Less memory for more computation: modules that keep their inputs, and compute the rest again.

`setting` is for modules that always do, `calls` for single calls of them (`patches.checkpoint`).
Both know where a module is. `recomputation` is torch's checkpoint with what we need beside it,
`elsewhere` runs rows of modules for a caller on another rank, `offloading` keeps inputs of CUDA
in CPU memory.

Source: modelparallel specification, section 6.4.
"""
