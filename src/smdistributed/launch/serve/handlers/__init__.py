# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What answers calls: the user's functions, and what stands for those that are not there.

    answers      one call to one answer, whatever is raised meanwhile
    functions    finds the user's functions, and gives each what it wants
    bodies       from bodies to arrays, and back
    pytorch      the contract of section 10.4
    tensorflow   the contract of section 10.5

Source: launch specification, sections 10.4 and 10.5.
"""
