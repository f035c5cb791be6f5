# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Less memory for more computation: modules that keep their inputs, and compute the rest again.

`recomputing_modules` is for modules that always do (`smp.set_activation_checkpointing`; of an
`nn.Sequential`, `sequential_rows` says which layers together), `calls` for single calls of them
(`patches.checkpoint`). Both know where a module is. `recomputation` is torch's checkpoint with what
we need beside it, `elsewhere` runs rows of modules for a caller on another rank, `offloading` keeps
inputs of CUDA in CPU memory.

Source: modelparallel specification, section 6.4.
"""
