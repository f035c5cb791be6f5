# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Zero copy for ordinary tensors: storages that recur move into memory that the ranks share.

    adopter       one per group: sees the tensors of collectives, moves what recurs
    rules         when a storage may be moved, and what keeps it where it is
    marks         what we remember about a storage, and for how long
    watch         notes what torch itself does not remember: exports and resizes
    statistics    what was moved in this process, what was not and why

A tensor is a view of a *storage*; torch can exchange the memory of two storages. So we take memory
of the group's arena, copy the bytes there, exchange, and drop the other half, which frees the old
memory. Every tensor that views the storage follows. docs/zero_copy.md tells the whole story.

Source: zero-copy trials, section 3; DESIGN, section 2, point 4.
"""
