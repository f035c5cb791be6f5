# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes to which partition.

assignment         a decision, as its users read it
problem            what is to be decided: groups, what they weigh, what flows between them
contiguous         decides, exactly, if partitions may not decrease along the order
tree               of a tree of modules with their costs: PyTorch's
graph              of a graph of operations: what it is
groups                 which operations stay together, and in which order
graph_assignment       the decision: TensorFlow's
"""

from smdistributed.modelparallel.decide.partition.assignment import Assignment, Share
from smdistributed.modelparallel.decide.partition.graph import Graph, Node, Tensor, Variable
from smdistributed.modelparallel.decide.partition.graph_assignment import (
    GraphAssignment,
    assign_by_hand,
    assign_graph,
)
from smdistributed.modelparallel.decide.partition.tree import Link, Module, assign

__all__ = [
    "Assignment",
    "Graph",
    "GraphAssignment",
    "Link",
    "Module",
    "Node",
    "Share",
    "Tensor",
    "Variable",
    "assign",
    "assign_by_hand",
    "assign_graph",
]
