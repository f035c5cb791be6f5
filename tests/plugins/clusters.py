# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""All tests of Ray run on one worker, whatever module they are in.

A fixture of the session lives once in each worker of pytest-xdist. A cluster of Ray takes 10 s to
start and 800 MB, so one is enough. Other tests go to workers by their modules, as `--dist loadfile`
says; clusters of other kinds start in a moment.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

_GROUP = "ray"


def group_of(test: str) -> str:
    """Tests of one group run on one worker.

    Args:
        test: as pytest names it, such as `tests/clusters/test_ray.py::test_one` or
            `tests/conformance/backends/test_backends.py::test_one[ray]`.
    """
    module, _, rest = test.partition("::")
    name = module.rpartition("/")[2].removesuffix(".py")
    parameters = re.split(r"[\[\]-]", rest)[1:]
    is_of_ray = _GROUP in name.split("_") or _GROUP in parameters
    return _GROUP if is_of_ray else module


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist is untyped here
    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
