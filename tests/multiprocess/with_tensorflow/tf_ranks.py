# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of TensorFlow ranks share: many checks in one start of the ranks, told apart.

A file of ranks is a list of functions `check_...(rank, size)`; they run one after the other, and
each becomes a test of its own:

    CHECKS = Checks("reduction_ranks.py")

    @pytest.mark.parametrize("ranks", [2, 3])
    @pytest.mark.parametrize("name", CHECKS.names)
    def test_reductions(name, ranks):
        CHECKS.require(name, ranks)

They run in a job, as the documented script starts and ends it. A file that wants another beginning
and end has a context manager `around_checks(rank, size)`, and what that gives is what its checks
are called with. The test's side imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from machine_speed import scaled
from tensorflow_harness import run_tensorflow_ranks

DEADLINE_S = 240.0


class Checks:
    """The checks of one file of ranks, and what came of them; run when first asked for.

    Args:
        path: of the file; without a folder, in this one.
        deadline_s: of each start of ranks.
    """

    def __init__(self, path: str | Path, deadline_s: float = DEADLINE_S) -> None:
        self._path = Path(__file__).parent / path
        self._deadline_s = deadline_s
        self.names = [
            line.removeprefix("def ").split("(")[0]
            for line in self._path.read_text().splitlines()
            if line.startswith("def check_")
        ]

    def require(
        self, name: str, ranks: int, names: Sequence[str] | None = None, **env: str
    ) -> None:
        """Fails unless a check passed on all ranks; the last one, unless they also ended well.

        Args:
            names: those that run together; default: all.
            env: variables of the ranks.
        """
        together = tuple(names or self.names)
        found = _run(self._path, self._deadline_s, ranks, together, tuple(sorted(env.items())))
        wrong = found.get(name, [])
        report = "\n".join(error for error in wrong if error)
        assert not report, report
        if len(wrong) < ranks:
            others = {name: errors for name, errors in found.items() if any(errors)}
            raise AssertionError(f"{name} was not reached, or did not end: {others}")
        if name == together[-1]:
            assert "" not in found, f"after all checks: {found['']}"


@functools.cache
def _run(
    path: Path,
    deadline_s: float,
    ranks: int,
    names: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
) -> dict[str, list[str]]:
    """By check, what each rank found wrong; under the empty name, how ranks ended badly."""
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_tensorflow_ranks(
            run_checks,
            ranks,
            path,
            names,
            folder,
            env={"SMDDP_TIMEOUT_SECONDS": str(scaled(60.0)), **dict(env)},
            check=False,
            deadline_s=deadline_s,
        )
        for rank, outcome in enumerate(outcomes):
            lines = Path(folder, f"rank{rank}.jsonl")
            for line in lines.read_text().splitlines() if lines.exists() else []:
                name, error = json.loads(line)
                found.setdefault(name, []).append(f"rank {rank}: {error}" if error else "")
            if not outcome.ok:
                found.setdefault("", []).append(f"{outcome.output[-3000:]}\n{outcome.stacks}")
    return found


def run_checks(rank: int, world_size: int, path: Path, names: Sequence[str], folder: str) -> None:
    """Of a rank: runs checks until one fails, and writes what came of each."""
    sys.path[:0] = [str(path.parent), str(Path(__file__).parent)]
    module = __import__(path.stem)
    around_checks = getattr(module, "around_checks", job)
    lines = Path(folder, f"rank{rank}.jsonl")
    with lines.open("w", buffering=1) as file, around_checks(rank, world_size) as arguments:
        for name in names:
            error = ""
            try:
                getattr(module, name)(*arguments)
            except BaseException:  # pytest's failures are no Exception
                error = traceback.format_exc()
            file.write(json.dumps([name, error]) + "\n")
            if error and world_size > 1:  # from here on the ranks may be at different places
                os._exit(1)


@contextlib.contextmanager
def job(rank: int, world_size: int) -> Iterator[tuple[int, int]]:
    """The documented start of a script, and an orderly end."""
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    yield rank, world_size
    sdp.shutdown()  # not after an error: the others may be elsewhere


@contextlib.contextmanager
def no_job(rank: int, world_size: int) -> Iterator[tuple[int, int]]:
    """For `around_checks`: nothing."""
    yield rank, world_size


def tagged(rank: int, shape: Sequence[int], dtype: str = "float32") -> Any:
    """Elements that each tell their rank and index; exact in every dtype."""
    count = int(np.prod(shape))
    return (np.arange(count) % 7 + 8 * rank + 1).reshape(shape).astype(dtype)


def require_same_bits(*tensors: Any) -> None:
    """On all ranks: fails unless these tensors are the same on all of them, bit by bit."""
    from smdistributed.collectives import ReduceOp
    from smdistributed.dataparallel.tensorflow import job as this_job

    mine = b"".join(np.ascontiguousarray(each).tobytes() for each in tensors)
    least = np.frombuffer(mine, np.uint8).copy()
    greatest = least.copy()
    group = this_job.resolve_group(None, "a test").communicator("a test")
    group.all_reduce(least, ReduceOp.MIN)
    group.all_reduce(greatest, ReduceOp.MAX)
    assert (least == greatest).all(), "the ranks have different bits"


def raised(kind: type[BaseException], function: Callable[..., Any], *args: Any, **kw: Any) -> str:
    """The text of the error that a call must raise."""
    try:
        function(*args, **kw)
    except kind as error:
        return str(error)
    raise AssertionError(f"{function} did not raise {kind.__name__}")
