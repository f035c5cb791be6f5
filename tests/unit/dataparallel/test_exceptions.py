# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The exceptions module, as training toolkits look at it (specification, section 9)."""

import inspect
import itertools
import subprocess
import sys

import pytest
from machine_speed import scaled

from smdistributed._common import errors
from smdistributed.dataparallel import exceptions

# Name, built-in base, engine error.
TABLE = [
    ("SMDDPError", Exception, errors.SmdistributedError),
    ("SMDDPTimeoutError", TimeoutError, errors.CollectiveTimeoutError),
    ("SMDDPNotInitialized", RuntimeError, errors.SmdistributedError),
    ("SMDDPAlreadyInitialized", RuntimeError, errors.SmdistributedError),
    ("SMDDPConfigInvalid", ValueError, errors.ConfigurationError),
    ("SMDDPUnsupported", NotImplementedError, errors.UnsupportedError),
    ("SMDDPPeerLost", ConnectionError, errors.PeerLostError),
    ("SMDDPMismatch", RuntimeError, errors.MismatchError),
]

CLASSES = {
    name: value for name in dir(exceptions) if inspect.isclass(value := getattr(exceptions, name))
}


def test_the_module_shows_these_classes_and_no_other() -> None:
    assert set(CLASSES) == {name for name, _, _ in TABLE}


@pytest.mark.parametrize(("name", "built_in", "engine_error"), TABLE)
def test_bases(name: str, built_in: type, engine_error: type) -> None:
    cls = CLASSES[name]
    assert issubclass(cls, (exceptions.SMDDPError,))
    assert issubclass(cls, built_in)
    assert issubclass(cls, engine_error)


def test_no_name_is_a_part_of_another() -> None:
    assert not [pair for pair in itertools.permutations(CLASSES, 2) if pair[0] in pair[1]]


def test_no_name_is_an_engine_error_name() -> None:
    assert not set(CLASSES) & set(errors.__all__)


def test_an_uncaught_error_ends_stderr_with_the_name_of_its_class() -> None:
    code = "from smdistributed.dataparallel.exceptions import *; raise SMDDPPeerLost('rank 3')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    last_line = done.stderr.splitlines()[-1]
    assert last_line == "smdistributed.dataparallel.exceptions.SMDDPPeerLost: rank 3"
