# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The environment in which tests of this folder start interpreters."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.multiprocess.compat.installed import Installed


@pytest.fixture(scope="session")
def one_environment(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture
def installed(one_environment: Installed) -> Iterator[Installed]:
    """Into which a test may install; what it has installed is gone afterwards."""
    before = set(one_environment.packages.iterdir())
    yield one_environment
    for path in set(one_environment.packages.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
