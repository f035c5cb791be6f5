# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Source: launch specification, section 1, the row of `sagemaker.exceptions`."""

import pickle

import pytest

from smdistributed.sagemaker.exceptions import CapacityError, UnexpectedStatusException


@pytest.mark.parametrize("kind", [UnexpectedStatusException, CapacityError])
def test_section_1_what_an_error_holds(kind: type[UnexpectedStatusException]) -> None:
    error = kind("Error for Training job ж: Failed", ["Completed", "Stopped"], "Failed")
    assert isinstance(error, ValueError)
    assert str(error) == "Error for Training job ж: Failed"
    assert error.allowed_statuses == ["Completed", "Stopped"]
    assert error.actual_status == "Failed"


def test_section_1_capacity_error_is_a_subclass() -> None:
    assert issubclass(CapacityError, UnexpectedStatusException)


def test_arguments_have_the_published_names() -> None:
    error = CapacityError(message="m", allowed_statuses=["Completed"], actual_status="Failed")
    assert (str(error), error.allowed_statuses, error.actual_status) == (
        "m",
        ["Completed"],
        "Failed",
    )


def test_an_error_survives_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(CapacityError("m", ["Completed"], "Failed")))
    assert type(error) is CapacityError
    assert (str(error), error.allowed_statuses, error.actual_status) == (
        "m",
        ["Completed"],
        "Failed",
    )
