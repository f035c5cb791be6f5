# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the functions that run as ranks of the engine share: sizes, and errors as data.

No pytest here nor in the modules of ranks: every rank would import it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from machine_speed import scaled

TIMEOUT_S = scaled(20.0)

# Elements; enough for several rounds through the staging buffers, so that a moment chosen at random
# is likely to be in the middle of an operation.
COUNT = 600_011


@dataclasses.dataclass(frozen=True)
class Heard:
    """What one rank was told, and when by the clock that all ranks of a host share."""

    type_name: str
    bases: tuple[str, ...]
    text: str
    at_s: float


def heard(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard | None:
    """The error of a call, None if there was none."""
    try:
        function(*args, **kwargs)
    except (Exception, KeyboardInterrupt) as error:
        now = time.monotonic()
        bases = tuple(base.__name__ for base in type(error).__mro__)
        return Heard(type(error).__name__, bases, str(error), now)
    return None


def wait_for_files(folder: str, names: Sequence[str]) -> None:
    """Until all of them are there; the deadline of the run is what ends this otherwise."""
    while not all(Path(folder, name).exists() for name in names):
        time.sleep(0.01)


def meet_by_files(folder: str, rank: int, world_size: int, name: str = "here") -> None:
    """What a barrier is where there is no group: before it is made, or after it has failed.

    Ranks that are to make a group within a short time come here first. Starting them may take
    longer than that.
    """
    Path(folder, f"{name}-{rank}").touch()
    wait_for_files(folder, [f"{name}-{r}" for r in range(world_size)])


def is_inside(kind: str) -> bool:
    """Whether this process is in the middle of a collective of that kind, in any group."""
    from smdistributed import collectives

    return any(
        (entry["kind"], entry["state"]) == (kind, "under way")
        for group in collectives.flight_record()
        for entry in group["collectives"]
    )


def say_when_inside(kind: str, folder: str, name: str) -> None:
    """Returns at once; makes a file as soon as this process is inside a collective of that kind."""

    def watch() -> None:
        while not is_inside(kind):
            time.sleep(0.005)
        Path(folder, name).touch()

    threading.Thread(target=watch, daemon=True).start()


def must_hear(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Heard:
    result = heard(function, *args, **kwargs)
    assert result is not None, f"{function} did not raise"
    return result
