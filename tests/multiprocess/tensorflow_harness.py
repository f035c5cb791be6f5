# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Ranks that find TensorFlow imported, and not yet used.

    from tensorflow_harness import run_tensorflow_ranks

To import it takes seconds of a processor, in each rank, and pytest's own process must not have it
(see tests/conftest.py). So there is a server per Keras that has imported it (`preloaded.py`).
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from harness import DEFAULT_DEADLINE_S, RankOutcome, require_success, run_ranks
from preloaded import Preload

# TensorFlow reads it when it is imported, for good.
_WHICH_KERAS = "TF_USE_LEGACY_KERAS"
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


def run_tensorflow_ranks(
    target: Any, world_size: int, *args: Any, env: Mapping[str, str] | None = None, **kwargs: Any
) -> list[Any]:
    """As `run_ranks`, for functions that use TensorFlow.

    Functions are loaded from their file in the rank, so the file may import TensorFlow if pytest
    does not import it as well: pass `"path/to/file.py:name"` then.
    """
    variables = {**_QUIET, **(env or {})}
    is_legacy = variables.get(_WHICH_KERAS, "0") == "1"
    preload = Preload.LEGACY_KERAS if is_legacy else Preload.KERAS_3
    return run_ranks(target, world_size, *args, env=variables, preload=preload, **kwargs)


def run_tensorflow_script(
    argv: Sequence[str],
    world_size: int,
    *,
    is_launched: bool = True,
    variables: Sequence[Mapping[str, str]] | None = None,
    deadline_s: float = DEFAULT_DEADLINE_S,
    check: bool = True,
    **kwargs: Any,
) -> list[RankOutcome]:
    """As `run_script`, for scripts that use TensorFlow and whose end is not what is tested.

    Args:
        is_launched: False lets it find nothing of a launcher in its environment.
        variables: by rank, what it finds there instead of ours.
    """
    outcomes: list[RankOutcome] = run_tensorflow_ranks(
        _run_script,
        world_size,
        list(argv),
        is_launched,
        variables or [{}] * world_size,
        deadline_s=deadline_s,
        check=False,
        **kwargs,
    )
    if check:
        require_success(outcomes, argv[0], deadline_s)
    return outcomes


def _run_script(
    rank: int,
    world_size: int,
    argv: list[str],
    is_launched: bool,
    variables: Sequence[Mapping[str, str]],
) -> None:
    if not is_launched:
        forget_the_launcher()
    os.environ.update(variables[rank])
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(argv[0]))
    runpy.run_path(argv[0], run_name="__main__")


def forget_the_launcher() -> None:
    """This rank is a process that nobody launched, from now on."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        del os.environ[name]
