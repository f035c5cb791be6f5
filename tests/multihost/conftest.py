# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Every test of this folder needs hosts; where none can be made it is skipped in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.multihost.hosts import Host, network
from tests.multihost.namespaces import why_not

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder `multihost`, and skip them if there is a reason to."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.multihost)
            if reason := why_not():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def four_hosts() -> Iterator[list[Host]]:
    """Hosts whose links are as fast as the processor; for tests that leave them as they are."""
    with network(4) as hosts:
        yield hosts
