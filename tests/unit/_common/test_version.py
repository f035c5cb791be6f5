# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""One version, in one place."""

import tomllib
from pathlib import Path

from smdistributed import dataparallel
from smdistributed._common import version
from smdistributed._common.version import __version__

ROOT = Path(__file__).parents[3]


def test_the_build_takes_it_from_the_same_file() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert config["project"]["dynamic"] == ["version"]
    source = ROOT / config["tool"]["scikit-build"]["metadata"]["version"]["input"]
    assert source.samefile(str(version.__file__))


def test_dataparallel_shows_it_and_it_compares_as_2_or_later() -> None:
    assert dataparallel.__version__ == __version__
    assert int(__version__.split(".")[0]) >= 2
    # A pre-release of 2.0.0 would sort before 2.0.
    assert all(part.isdecimal() for part in __version__.split("."))
