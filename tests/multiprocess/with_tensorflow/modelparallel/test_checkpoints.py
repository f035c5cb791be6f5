# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of models whose parts are on several ranks.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.multiprocess.with_tensorflow.tf_ranks import DEADLINE_S, Checks
from tests.small_disks import mounted_disk

CHECKS = Checks(Path(__file__).with_name("checkpoint_ranks.py"))
OTHER_KERAS = "check_what_the_other_keras_has_written_is_named"
FULL_DISK = "check_a_full_disk_leaves_what_was_there"
TOGETHER = [name for name in CHECKS.names if name not in (OTHER_KERAS, FULL_DISK)]
# What each Keras does in its own way: names of what is kept, slots of optimizers, files and models
# that are served. The others are about directories, disks, processes and TensorFlow's iterators.
BY_KERAS = [
    "check_a_run_goes_on_bitwise",
    "check_plain_tensorflow_reads_and_writes_the_same",
    "check_two_optimizers_take_their_own_slots",
    "check_what_does_not_fit_is_named_and_nothing_changes",
    "check_layers_in_lists_are_not_left_out",
    "check_weights_are_those_of_the_whole_model",
    "check_keras_files_are_whole",
    "check_what_is_served_needs_no_library",
]

ONE_BY_DEFAULT = [
    pytest.param("0", id="keras-3"),
    pytest.param("1", id="tf-keras", marks=pytest.mark.slow),
]

pytestmark = pytest.mark.timeout(DEADLINE_S + 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


def _require(name: str, names: list[str], legacy_keras: str, folder: str) -> None:
    CHECKS.require(name, 2, names, TF_USE_LEGACY_KERAS=legacy_keras, TEST_FOLDER=folder)


@pytest.mark.parametrize("name", TOGETHER)
def test_checkpoints(name: str, folder: str) -> None:
    _require(name, TOGETHER, "0", folder)


@pytest.mark.parametrize("name", BY_KERAS)
def test_checkpoints_of_tf_keras(name: str, folder: str) -> None:
    _require(name, BY_KERAS, "1", folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_all_with_tf_keras(name: str, folder: str) -> None:
    _require(name, TOGETHER, "1", folder + "/all-with-tf-keras")


@pytest.mark.parametrize("legacy_keras", ONE_BY_DEFAULT)
def test_the_other_keras(legacy_keras: str, folder: str) -> None:
    _require(BY_KERAS[0], TOGETHER, "0", folder)
    _require(BY_KERAS[0], BY_KERAS, "1", folder)
    _require(OTHER_KERAS, [OTHER_KERAS], legacy_keras, folder)


@pytest.mark.parametrize("legacy_keras", ONE_BY_DEFAULT)
def test_a_full_disk(legacy_keras: str, tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "size=4m") as disk:
        env = {"TF_USE_LEGACY_KERAS": legacy_keras, "TEST_FOLDER": str(disk)}
        CHECKS.require(FULL_DISK, 2, [FULL_DISK], **env)


@pytest.mark.slow
@pytest.mark.parametrize("legacy_keras", ["0", "1"], ids=["keras-3", "tf-keras"])
def test_all_optimizers_and_more_partitions(legacy_keras: str, folder: str) -> None:
    env = {"TF_USE_LEGACY_KERAS": legacy_keras, "TEST_FOLDER": folder, "ALL_OPTIMIZERS": "1"}
    plain, other, two = (
        "check_plain_tensorflow_reads_and_writes_the_same",
        "check_other_partitions_take_it_up",
        "check_two_optimizers_take_their_own_slots",
    )
    CHECKS.require(plain, 2, [plain], **env)
    CHECKS.require(two, 2, [two], **{**env, "TEST_FOLDER": folder + "/all"})
    for ranks in (3, 4):
        CHECKS.require(other, ranks, [other], **env)


@pytest.mark.slow
@pytest.mark.parametrize("legacy_keras", ["0", "1"], ids=["keras-3", "tf-keras"])
def test_killed_at_many_places(legacy_keras: str, folder: str) -> None:
    name = "check_killed_anywhere_it_leaves_the_one_before"
    env = {"TF_USE_LEGACY_KERAS": legacy_keras, "TEST_FOLDER": folder + "/places"}
    CHECKS.require(name, 2, [name], ALL_PLACES="1", **env)
