# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Options that every test room shares."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import signal
import sys
import types
from collections.abc import Sequence

import hypothesis
import pytest

# How long one example takes depends on what else the machine does; whole tests have a limit.
hypothesis.settings.register_profile("smdistributed", deadline=None)
hypothesis.settings.load_profile("smdistributed")

# A shell starts background jobs with SIGINT ignored, which every process of a test would inherit,
# those that are to be interrupted too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Its own switch: transformers imports TensorFlow wherever it finds it, for nothing here.
os.environ["USE_TF"] = "0"


class _InRanksOnly(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds TensorFlow, as many a library asks whether it is there; and refuses to import it here.

    Both TensorFlow and Triton bring LLVM, and a process that has loaded TensorFlow dies when it
    loads Triton, as torch does where it is installed: this one, with all tests.
    """

    _NAMES = ("tensorflow", "keras", "tf_keras")

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._NAMES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        raise ImportError(
            f"{module.__name__} is not imported into pytest's own process, which may meet Triton;"
            " use it in a rank (tests/multiprocess/tensorflow_harness.py) or a script of its own."
        )


sys.meta_path.insert(0, _InRanksOnly())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-slow",
        action="store_true",
        help="also run the tests marked slow (minutes each)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked slow, saying how to run it, unless --run-slow is given."""
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow; run it with --run-slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)
