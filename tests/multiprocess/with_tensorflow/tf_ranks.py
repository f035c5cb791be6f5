# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of TensorFlow ranks share: many checks in one start of the ranks, told apart.

TensorFlow takes seconds to import, in each rank. So a file of ranks is a list of functions
`check_...(rank, size)`; they run one after the other, and each becomes a test of its own:

    CHECKS = Checks("reduction_ranks.py")

    @pytest.mark.parametrize("ranks", [2, 3])
    @pytest.mark.parametrize("name", CHECKS.names)
    def test_reductions(name, ranks):
        CHECKS.require(name, ranks)

The test's side imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DEADLINE_S = 240.0


class Checks:
    """The checks of one file of ranks, and what came of them; run when first asked for."""

    def __init__(self, file_name: str) -> None:
        self._path = Path(__file__).with_name(file_name)
        self.names = [
            line.removeprefix("def ").split("(")[0]
            for line in self._path.read_text().splitlines()
            if line.startswith("def check_")
        ]

    def require(
        self, name: str, ranks: int, names: Sequence[str] | None = None, **env: str
    ) -> None:
        """Fails unless a check passed on all ranks.

        Args:
            names: those that run together; default: all.
            env: variables of the ranks.
        """
        found = _run(self._path, ranks, tuple(names or self.names), tuple(sorted(env.items())))
        wrong = found.get(name, [])
        report = "\n".join(error for error in wrong if error)
        assert not report, report
        if len(wrong) < ranks:
            others = {name: errors for name, errors in found.items() if any(errors)}
            raise AssertionError(f"{name} was not reached, or did not end: {others}")


@functools.cache
def _run(
    path: Path, ranks: int, names: tuple[str, ...], env: tuple[tuple[str, str], ...]
) -> dict[str, list[str]]:
    """By check, what each rank found wrong; under the empty name, how ranks ended badly."""
    from harness import run_ranks

    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run_ranks(
            f"{Path(__file__)}:run_checks",
            ranks,
            path.stem,
            names,
            folder,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", "SMDDP_TIMEOUT_SECONDS": "60", **dict(env)},
            check=False,
            deadline_s=DEADLINE_S,
        )
        for rank, outcome in enumerate(outcomes):
            lines = Path(folder, f"rank{rank}.jsonl")
            for line in lines.read_text().splitlines() if lines.exists() else []:
                name, error = json.loads(line)
                found.setdefault(name, []).append(f"rank {rank}: {error}" if error else "")
            if not outcome.ok:
                found.setdefault("", []).append(f"{outcome.output[-3000:]}\n{outcome.stacks}")
    return found


def run_checks(
    rank: int, world_size: int, module_name: str, names: Sequence[str], folder: str
) -> None:
    """Of a rank: runs checks in one job until one fails, and writes what came of each."""
    module = __import__(module_name)
    with open(os.path.join(folder, f"rank{rank}.jsonl"), "w") as file, job():
        for name in names:
            error = ""
            try:
                getattr(module, name)(rank, world_size)
            except Exception:
                error = traceback.format_exc()
            file.write(json.dumps([name, error]) + "\n")
            file.flush()
            if error:  # from here on the ranks may be at different places
                os._exit(1)


@contextlib.contextmanager
def job() -> Iterator[None]:
    """The documented start of a script, and an orderly end."""
    import smdistributed.dataparallel.tensorflow as sdp

    sdp.init()
    yield
    sdp.shutdown()  # not after an error: the others may be elsewhere


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
    group = this_job.communicator("a test")
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
