# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Prints decisions about graphs in which much is equal. Run with several PYTHONHASHSEED."""

import random

from smdistributed.modelparallel.decide.partition import (
    Graph,
    Node,
    Tensor,
    Variable,
    assign_graph,
)


def _graph(seed: int) -> Graph:
    chance = random.Random(seed)
    nodes = [
        Node(
            f"node{number}",
            chance.choice([None, f"m/layer{chance.randrange(30)}"]),
            tuple(Variable(f"w{each}", 8) for each in chance.sample(range(60), 1)),
            operations=chance.choice([0, 1, 1]),
        )
        for number in range(120)
    ]
    nodes += [Node(f"constant{number}", operations=0) for number in range(30)]
    names = [node.name for node in nodes]
    tensors = [
        Tensor(name, tuple(chance.choices(names, k=chance.randrange(4))), chance.choice([4, 8]))
        for name in names
    ]
    return Graph(nodes, tensors, (tuple(names[:2]), tuple(names[7:10])))


if __name__ == "__main__":
    for seed in range(10):
        for contiguous in (True, False):
            print(assign_graph(_graph(seed), 3, 0.8, contiguous=contiguous))
