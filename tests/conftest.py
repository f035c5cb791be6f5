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
from collections.abc import Iterator, Sequence

import hypothesis
import pytest
from machine_speed import scaled
from preloaded import Run, start_fresh

_PLUGINS = ("cost", "alone", "clusters", "second_run", "repeat", "notes")
pytest_plugins = [
    *(f"tests.plugins.{name}" for name in _PLUGINS),
    "tests.clusters.fixtures",
    "tests.clusters.object_store",
]

# How long one example takes depends on what else the machine does; whole tests have a limit.
hypothesis.settings.register_profile("smdistributed", deadline=None)
hypothesis.settings.load_profile("smdistributed")

# A shell starts background jobs with SIGINT ignored, which every process of a test would inherit,
# those that are to be interrupted too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# pytest-timeout's limit of a test, as pyproject.toml has it for an idle machine.
os.environ["PYTEST_TIMEOUT"] = str(scaled(120))

# Where `make env` has compiled DeepSpeed's helper. In torch's own place for it a run that was
# killed leaves a lock for which all later ones wait.
os.environ.setdefault("TORCH_EXTENSIONS_DIR", os.path.join(sys.prefix, "torch_extensions"))

# Its own switch: transformers imports TensorFlow wherever it finds it, for nothing here.
os.environ["USE_TF"] = "0"

# No test asks the network. The library reads it when it is imported, which servers of preloaded
# processes do before a test can say so.
os.environ["HF_HUB_OFFLINE"] = "1"

# In the first process of a run, with these variables: its workers and their servers have them too.
Run.current()


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


def pytest_configure() -> None:
    if sys.flags.optimize:
        pytest.exit(
            "Python runs without its assert statements (python -O, or PYTHONOPTIMIZE), and tests"
            " would pass whatever is wrong; expected it with them. Unset PYTHONOPTIMIZE.",
            returncode=pytest.ExitCode.USAGE_ERROR,
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give tests with a limit of their own the time that the machine needs; leave slow ones out."""
    for item in items:
        if (limit := item.get_closest_marker("timeout")) is not None:
            seconds = scaled(limit.args[0]) * config.getoption("repeat")
            item.add_marker(pytest.mark.timeout(seconds), append=False)
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow; run it with --run-slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _real_interpreters(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test marked `fresh` starts interpreters of its own instead of preloaded processes."""
    start_fresh(request.node.get_closest_marker("fresh") is not None)
    yield
    start_fresh(False)
