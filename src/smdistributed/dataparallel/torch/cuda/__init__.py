# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through `smddp`: NCCL, or host memory and the engine, chosen for each group.

    choice     what the ranks have -> which path, and why: a pure function
    create     asks this rank, carries out the choice
    staged     all collectives over CUDA tensors by way of host memory
    chunks     an operation -> the pieces that pass through host memory one by one: pure
    pipeline   carries pieces out, so that copies and reductions overlap
    device     streams, events and pinned memory, as few as the pipeline needs
    slots      the host memory that pieces pass through
    lane       a thread that works jobs in order
    pending    the state of a staged operation, as its handle sees it

Source: docs/cuda.md.
"""

__all__: list[str] = []
