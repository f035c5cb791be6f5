# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The table of section 4.1 row by row, and what users put into hyperparameters."""

from __future__ import annotations

import json
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.contract.hyperparameters import (
    Hyperparameters,
    command_line,
    decode,
    encode,
    encode_plainly,
    variable_text,
)

# Of the table: the value, its argument, its variable, and its JSON in SM_HPS.
ROWS: list[tuple[Any, str, str, str]] = [
    (5, "5", "5", "5"),
    (0.1, "0.1", "0.1", "0.1"),
    (True, "True", "true", "true"),
    (False, "False", "false", "false"),
    (None, "", "", "null"),
    ("x y", "x y", "x y", '"x y"'),
    ([1, 2], "[1, 2]", "[1,2]", "[1,2]"),
    ({"b": 1, "a": 2}, "a=2,b=1", '{"a":2,"b":1}', '{"a":2,"b":1}'),
]


@pytest.mark.parametrize(("value", "argument", "variable", "in_hps"), ROWS)
def test_the_table(value: Any, argument: str, variable: str, in_hps: str) -> None:
    decoded = decode(json.loads(json.dumps(encode({"key": value}))))
    assert decoded == {"key": value}
    assert type(decoded["key"]) is type(value)
    assert command_line(decoded) == ["--key", argument]
    assert variable_text(decoded["key"]) == variable
    assert variable_text(decoded) == '{"key":' + in_hps + "}"


@pytest.mark.parametrize(
    ("value", "text"), [("abc", '"abc"'), (True, "true"), (5, "5"), (None, "null"), ("5", '"5"')]
)
def test_framework_estimators_send_json(value: Any, text: str) -> None:
    assert encode({"key": value}) == {"key": text}


@pytest.mark.parametrize(("value", "text"), [("abc", "abc"), (True, "True"), (5, "5")])
def test_the_generic_estimator_sends_text(value: Any, text: str) -> None:
    assert encode_plainly({"key": value}) == {"key": text}


@pytest.mark.parametrize("text", ["abc", "", "{", "nan?", "01", "s3://bucket/key"])
def test_what_is_no_json_stays_as_it_is(text: str) -> None:
    assert decode({"key": text}) == {"key": text}


def test_arguments_are_sorted_and_short_names_have_one_hyphen() -> None:
    assert command_line({"lr": 0.1, "b": 2, "batch-size": 64}) == [
        "-b", "2", "--batch-size", "64", "--lr", "0.1",
    ]  # fmt: skip


ODD = [
    "x y",
    "'",
    '"',
    "$(rm -rf /)",
    "`x`",
    ";",
    "a\nb",
    "",
    "\t",
    "\\",
    "ä€😀",
    "--flag",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", ODD)
def test_odd_text_survives(text: str) -> None:
    decoded = decode(json.loads(json.dumps(encode({"key": text}))))
    assert command_line(decoded) == ["--key", text]
    assert variable_text(decoded["key"]) == text


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(string.ascii_letters), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(string.ascii_letters + "-_ .", min_size=1), values))
def test_any_json_value_survives(given_values: dict[str, Any]) -> None:
    before = json.dumps(given_values)
    assert decode(encode(given_values)) == given_values
    assert json.loads(variable_text(given_values)) == given_values
    assert len(command_line(given_values)) == 2 * len(given_values)
    assert json.dumps(given_values) == before


def test_numbers_of_numpy_are_numbers() -> None:
    assert encode({"n": np.int64(3), "x": np.float32(0.5), "on": np.bool_(True)}) == {
        "n": "3", "x": "0.5", "on": "true",
    }  # fmt: skip
    assert encode({"list": [np.int32(1)]}) == {"list": "[1]"}


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.zeros(3), {"a": object()}])
def test_what_json_cannot_hold_is_refused_by_name(value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"hyperparameter 'key' is .* which JSON cannot hold"
    ):
        encode({"key": value})


def test_a_value_that_holds_itself_is_refused_by_name() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ConfigurationError, match="hyperparameter 'key' is"):
        encode({"key": value})


@pytest.mark.parametrize("key", ["", "a=b", "a\0b", "\ud800"])
def test_names_of_no_variable_are_refused(key: str) -> None:
    for way in (encode, encode_plainly):
        with pytest.raises(ConfigurationError, match="a hyperparameter has the name"):
            way({key: 1})


def test_names_must_be_text() -> None:
    with pytest.raises(ConfigurationError, match="the name 5 of type int"):
        encode({5: 1})  # type: ignore[dict-item]


@pytest.mark.parametrize("value", ["a\0b", {"k": "a\0b"}, {"a\0b": 1}, "\ud800"])
def test_text_that_no_process_can_be_given_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="hyperparameter 'key' has "):
        encode({"key": value})


def test_the_frameworks_own_leave_the_users() -> None:
    assert Hyperparameters.of(
        {
            "epochs": 3,
            "mp_parameters": {"partitions": 2},
            "sagemaker_mpi_enabled": True,
            "sagemaker_instance_type": "ml.p4d.24xlarge",
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
            "sagemaker_enable_cloudwatch_metrics": False,
            "sagemaker_region": "eu-west-1",
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": "job",
            "sagemaker_s3_output": "s3://bucket",
            "_tuning_objective_metric": "loss",
            "default_user_module_name": "train",
        }
    ) == Hyperparameters(
        user={"epochs": 3, "mp_parameters": {"partitions": 2}},
        framework={"sagemaker_mpi_enabled": True, "sagemaker_instance_type": "ml.p4d.24xlarge"},
        job={
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": "s3://bucket/code.tar.gz",
            "sagemaker_enable_cloudwatch_metrics": False,
            "sagemaker_region": "eu-west-1",
            "sagemaker_container_log_level": 20,
            "sagemaker_job_name": "job",
            "sagemaker_s3_output": "s3://bucket",
            "_tuning_objective_metric": "loss",
            "default_user_module_name": "train",
        },
    )
