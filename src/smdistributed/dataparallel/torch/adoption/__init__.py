# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What becomes of a user's tensors that recur in collectives, and what we remember about storages.

By default such a tensor stays where it is, and one line of the log says what would be faster. With
`SMDDP_ZERO_COPY=recurring` it moves into memory that the ranks share:

    observer      which of the two a group does
    notice        the line of the log
    adopter       sees the tensors of collectives, moves what recurs
    rules         when a storage may be moved, and what keeps it where it is
    gate          lets a storage move only while no other call of ours is under way
    moving_group  the process group whose calls pass the gate
    watch         notes what torch itself does not remember: exports and resizes
    marks         what we remember about a storage, and for how long
    statistics    what is in shared memory in this process, what is not and why

A tensor is a view of a *storage*; torch can exchange the memory of two storages. So we take memory
of the group's arena, copy the bytes there and exchange. Every tensor that views the storage
follows. Whoever noted the old address does not, so the old memory is kept as long as the storage
lives: it can be read, but what is written there is lost. docs/zero_copy.md tells the whole story.

Source: our choice; docs/zero_copy.md, "moving what recurs".
"""
