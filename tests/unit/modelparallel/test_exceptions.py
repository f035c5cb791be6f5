# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions module, as training toolkits look at it (specification, section 0)."""

import inspect
import itertools

import pytest

from smdistributed._common import errors
from smdistributed.modelparallel import exceptions

TABLE = [
    ("SMPError", errors.SmdistributedError),
    ("ConfigError", ValueError),
    ("SMPNotInitialized", RuntimeError),
    ("ModelNotPartitionedError", RuntimeError),
    ("MultipleDistributedModelError", RuntimeError),
    ("StepAborted", RuntimeError),
]

CLASSES = {
    name: value for name in dir(exceptions) if inspect.isclass(value := getattr(exceptions, name))
}


def test_the_module_shows_these_classes_and_no_other() -> None:
    assert set(CLASSES) == {name for name, _ in TABLE}


@pytest.mark.parametrize(("name", "base"), TABLE)
def test_bases(name: str, base: type) -> None:
    assert issubclass(CLASSES[name], (exceptions.SMPError,))
    assert issubclass(CLASSES[name], base)


def test_no_name_is_a_part_of_another() -> None:
    assert not [pair for pair in itertools.permutations(CLASSES, 2) if pair[0] in pair[1]]
