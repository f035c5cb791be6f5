# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the environment holds after discovery."""

import logging

import pytest

from smdistributed._common.discovery import Membership, export_membership

ONE_HOST = Membership(
    rank=1,
    world_size=2,
    local_rank=1,
    local_world_size=2,
    node_rank=0,
    num_nodes=1,
    master_addr="127.0.0.1",
    master_port=23456,
    source="openmpi",
)


def test_everything_that_is_missing_is_set() -> None:
    environ: dict[str, str] = {}
    changed = export_membership(ONE_HOST, environ)
    assert environ == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "23456",
        "SMDATAPARALLEL_LOCAL_RANK": "1",
        "SMDATAPARALLEL_SERVER_ADDR": "127.0.0.1",
        "SMDATAPARALLEL_SERVER_PORT": "7592",
        "SMDATAPARALLEL_USE_SINGLENODE": "1",
        "SAGEMAKER_INSTANCE_TYPE": "local",
        "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled":true}',
    }
    assert changed == tuple(sorted(environ))


def test_a_second_time_changes_nothing() -> None:
    environ: dict[str, str] = {}
    export_membership(ONE_HOST, environ)
    assert export_membership(ONE_HOST, environ) == ()


def test_what_is_set_stays() -> None:
    environ = {"MASTER_PORT": "1", "RANK": "1", "SMDATAPARALLEL_USE_HOMOGENEOUS": "1"}
    export_membership(ONE_HOST, environ)
    assert environ["MASTER_PORT"] == "1"
    assert "SMDATAPARALLEL_USE_SINGLENODE" not in environ


def test_several_hosts_and_unknown_local_numbers() -> None:
    environ = {"SM_CURRENT_INSTANCE_TYPE": "ml.p4d.24xlarge"}
    membership = Membership(0, 4, None, None, None, None, None, 9, "pmi")
    export_membership(membership, environ)
    assert "LOCAL_RANK" not in environ
    assert "MASTER_ADDR" not in environ
    assert not {name for name in environ if name.startswith("SMDATAPARALLEL_USE")}
    assert environ["SAGEMAKER_INSTANCE_TYPE"] == "ml.p4d.24xlarge"
    known = Membership(0, 4, 0, 2, 0, 2, "m", 9, "pmi")
    export_membership(known, environ)
    assert environ["SMDATAPARALLEL_USE_HOMOGENEOUS"] == "1"


def test_a_process_without_a_job_exports_nothing() -> None:
    environ: dict[str, str] = {}
    assert export_membership(Membership(0, 1, 0, 1, 0, 1, "127.0.0.1", None, "none"), environ) == ()
    assert environ == {}


def test_numbers_per_host_are_replaced_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    environ = {"RANK": "0", "WORLD_SIZE": "1", "NODE_RANK": "7", "MASTER_PORT": "5"}
    membership = Membership(
        0, 2, 0, 2, 0, 1, "m", 9, "openmpi", warnings=("counted hosts",), overrules_torch=True
    )
    with caplog.at_level(logging.WARNING):
        export_membership(membership, environ)
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["NODE_RANK"]) == ("0", "2", "0")
    assert environ["MASTER_PORT"] == "5"
    assert "counted hosts" in caplog.text
