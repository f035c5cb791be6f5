# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The ranks of a pipeline begin and end a method of Keras together, or hear why one cannot.

Between steps Keras runs code of the user's: callbacks, generators. Where that fails on one rank,
the others wait in the next step for that rank, so it tells them.

Source: our choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from smdistributed.modelparallel.tensorflow.step.pipeline import Pipeline

__all__ = ["end_of_data", "together"]

# What pybind11 says in a RuntimeError of its own.
_REPLACED_BY_INTERRUPT = "REPLACED BY KeyboardInterrupt"


@contextlib.contextmanager
def together(
    pipeline: Pipeline, method: str, facts: str, brings: Any = None
) -> Iterator[list[Any]]:
    """While it is open, this rank is in a method that all ranks of its pipeline are in.

    Args:
        method: its name.
        facts: what it was called with and must be the same on these ranks, in words.
        brings: something for the others, any that pickles. What all bring, by rank, is given.

    Raises:
        SMDDPMismatch: another rank calls another method, or with other facts; or it has left the
            method while this one has steps to run.
        Exception: what is raised while it is open; the other ranks end with it, too.
        KeyboardInterrupt: Ctrl-C, also where TensorFlow has made another error of it.
    """
    driver = pipeline.driver
    last: list[int] = []  # the number of what was done before the ranks end it

    def num_ends() -> int:
        return sum(driver.agreed > each for each in last)

    with pipeline.telling(num_ends), _interrupt_as_such():
        yield driver.agree(f"begins {method}({facts})", brings)
        last.append(driver.number)
        driver.agree(f"ends {method}()", None)


def end_of_data(pipeline: Pipeline) -> None:
    """This rank has no batch left in this pass over its data; the others have none, either.

    Raises:
        SMDDPMismatch: another rank has one.
    """
    pipeline.driver.agree(
        "has no batch left in this epoch (all ranks of a replica need the same number: read the"
        " same files, with drop_remainder=True)",
        None,
    )


@contextlib.contextmanager
def _interrupt_as_such() -> Iterator[None]:
    """Raises KeyboardInterrupt where Python did while TensorFlow made an exception of an error."""
    try:
        yield
    except RuntimeError as error:
        if _REPLACED_BY_INTERRUPT not in str(error):
            raise
        raise KeyboardInterrupt("interrupted by its user") from error
