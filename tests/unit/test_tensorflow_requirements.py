# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table of what model parallelism uses of TensorFlow that is not public has all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOM = Path(__file__).parents[2] / "src/smdistributed/modelparallel/tensorflow"
TABLE = ROOM / "remedies/requirements.py"


def _used() -> Iterator[str]:
    for path in ROOM.rglob("*.py"):
        if path == TABLE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
                yield from (f"{node.module}.{each.name}" for each in node.names)
            elif isinstance(node, ast.Attribute):
                path_of = ast.unparse(node)
                if path_of.startswith("tf.__internal__."):
                    yield path_of.replace("tf.", "tensorflow.", 1)


def test_the_table_has_all_that_is_not_public() -> None:
    (assigned,) = (
        node.value
        for node in ast.parse(TABLE.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOT_PUBLIC"
    )
    assert isinstance(assigned, ast.Tuple)
    table = [".".join(ast.literal_eval(entry)) for entry in assigned.elts]
    used = set(_used())
    assert used
    missing = [
        each for each in used if not any(f"{entry}.".startswith(f"{each}.") for entry in table)
    ]
    assert not missing, missing
