# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The options of a group: from settings to the engine, each exactly once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.settings import Settings
from smdistributed.collectives import _native

FIELDS = {field.name for field in dataclasses.fields(EngineOptions)}


class Watched:
    """Options that note which fields the engine has read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        value = getattr(EngineOptions(), name)
        self.read.add(name)
        return value


def alone(options: Any) -> _native.Communicator:
    return _native.Communicator(0, 1, lambda key, value: [value], options)


def test_the_engine_reads_every_field_and_no_other() -> None:
    options = Watched()
    alone(options).close()
    assert options.read == FIELDS


def test_a_group_names_ranks_of_the_job_if_its_own_numbers_differ() -> None:
    options = EngineOptions()
    assert options.of_group([0, 1, 2]) == options.of_group(()) == options
    assert options.of_group([0, 2]).job_ranks == (0, 2)


def test_names_for_another_number_of_ranks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"2 ranks of the job were named for a group of 1"):
        alone(EngineOptions(job_ranks=(0, 2)))


def test_without_variables_settings_give_the_defaults() -> None:
    assert EngineOptions.from_settings(Settings.from_environ({})) == EngineOptions()


def test_what_the_user_has_set_is_in_the_options() -> None:
    settings = Settings(
        timeout_s=7,
        stall_s=3,
        message_limit_bytes=1 << 20,
        signal_report=False,
        deterministic=True,
        cpu_transport="tcp",
        interfaces=("eth0", "^docker0"),
        token=b"secret",
        tls_cert="cert.pem",
        tls_key="key.pem",
        tls_ca="ca.pem",
    )
    assert EngineOptions.from_settings(settings) == EngineOptions(
        timeout_s=7,
        stall_s=3,
        message_limit_bytes=1 << 20,
        signal_report=False,
        deterministic=True,
        transport="tcp",
        interfaces="eth0,^docker0",
        token=b"secret",
        tls=("cert.pem", "key.pem", "ca.pem"),
    )


def test_secrets_are_not_shown() -> None:
    shown = repr(EngineOptions(token=b"secret", tls=("cert.pem", "key.pem", "ca.pem")))
    assert "secret" not in shown
    assert "key.pem" not in shown


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_field_of_another_type_is_named(name: str) -> None:
    options = dataclasses.replace(EngineOptions(), **{name: object()})
    with pytest.raises(TypeError, match=rf"EngineOptions\.{name} is of type .*; expected .*\."):
        alone(options)


def test_other_objects_are_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"no field timeout_s; expected an EngineOptions"):
        alone({})


def test_an_unknown_transport_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected auto, shm or tcp"):
        alone(EngineOptions(transport="pigeon"))
