# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What test_one_process.py runs of operations/labels.py."""

from __future__ import annotations

import tensorflow as tf

from smdistributed.dataparallel.tensorflow.operations.labels import (
    creation_of,
    label_of,
    label_of_variables,
)
from tests.multiprocess.with_tensorflow.tf_ranks import no_job

around_checks = no_job


def check_labels_tell_parts_apart(rank: int, size: int) -> None:
    labels = {label_of("a", "b"), label_of("ab"), label_of("a", "b", ""), label_of("a", "b", 1)}
    assert len(labels) == 4
    assert all(0 < label < 1 << 63 for label in labels)
    assert label_of("gradients", 3) == 2797350511155134623, "the same in every process"


def check_variables_by_name_and_order_of_creation(rank: int, size: int) -> None:
    first, second, third = (tf.Variable(0.0) for _ in range(3))
    names = ["Variable:0"] * 2
    label = label_of_variables([first, second], names)
    assert label != label_of_variables([second, first], names)
    assert label == label_of_variables([second, third], names), "relative to each other"
    assert label != label_of_variables([first, second], ["Variable:0", "weight:0"])
    assert label_of_variables([None, None], names) != label


def check_counters_in_names_do_not_matter(rank: int, size: int) -> None:
    """A rank may have made another model before."""
    variables = [tf.Variable(0.0), tf.Variable(0.0)]
    label = label_of_variables(variables, ["dense/kernel", "dense_1/bias:0"])
    assert label == label_of_variables(variables, ["dense_7/kernel", "dense_8/bias_2:0"])
    assert label != label_of_variables(variables, ["dense/kernel", "dense1/bias:0"])


def check_variables_of_keras_and_of_graphs(rank: int, size: int) -> None:
    made = [creation_of(tf.keras.Variable(0.0)) for _ in range(2)]
    assert made[0] < made[1]
    for use_resource in (True, False):
        with tf.Graph().as_default():
            variables = [
                tf.compat.v1.get_variable(name, [], use_resource=use_resource) for name in "ba"
            ]
            assert creation_of(variables[0]) < creation_of(variables[1])
    assert creation_of(tf.constant(1.0)) is None
    assert creation_of(None) is None
