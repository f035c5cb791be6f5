# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's error classes: the public list, and what a Python user would catch."""

import pickle

import pytest

from smdistributed._common import errors

BUILT_INS = {
    "ConfigurationError": ValueError,
    "MismatchError": RuntimeError,
    "PeerLostError": ConnectionError,
    "CollectiveTimeoutError": TimeoutError,
    "UnsupportedError": NotImplementedError,
    "InternalError": RuntimeError,
}


def test_the_list_of_classes_is_a_decision() -> None:
    assert set(errors.__all__) == {"SmdistributedError", *BUILT_INS}


@pytest.mark.parametrize(("name", "built_in"), BUILT_INS.items())
def test_a_built_in_catches_it_and_the_text_survives(name: str, built_in: type) -> None:
    error = getattr(errors, name)("rank 3 is gone")
    assert isinstance(error, built_in)
    assert isinstance(error, errors.SmdistributedError)
    assert str(pickle.loads(pickle.dumps(error))) == "rank 3 is gone"
