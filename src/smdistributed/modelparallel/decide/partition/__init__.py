# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes to which partition.

    tree    of a tree of modules with their costs
"""

from smdistributed.modelparallel.decide.partition.tree import (
    Assignment,
    Link,
    Module,
    Share,
    assign,
)

__all__ = ["Assignment", "Link", "Module", "Share", "assign"]
