# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A step as a graph: traced, read, decided on, and cut.

To read in this order:

    tracing     the body of a step as one graph; `labels`: which layer each operation is of
    reading     that graph as plain `nodes`
    canonical   what all ranks must have traced alike
    deciding    which partition a layer and a variable goes to
    cutting     which rank runs what in which segments, and what it sends: on plain nodes alone
    functions   callable functions of segments

Source: TensorFlow modelparallel specification, sections 3 and 4.
"""
