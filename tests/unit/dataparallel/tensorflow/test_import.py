# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an import says that does not find TensorFlow 2; and where the tests import it.

Source: dataparallel specification, section 7.1.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from machine_speed import scaled


def message(first: str) -> str:
    program = f"import sys, types; {first}; import smdistributed.dataparallel.tensorflow"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=scaled(110),
        check=False,
    )
    return done.stderr


def test_tensorflow_1_is_told_apart() -> None:
    told = message(
        "module = types.ModuleType('tensorflow'); module.__version__ = '1.15.5';"
        " sys.modules['tensorflow'] = module"
    )
    assert "ImportError" in told
    assert "found TensorFlow 1.15.5; expected TensorFlow 2" in told


def test_without_tensorflow_it_says_what_to_install() -> None:
    told = message("sys.modules['tensorflow'] = None")
    assert "pip install smdistributed-open[tensorflow]" in told


@pytest.mark.parametrize("name", ["tensorflow", "keras", "tf_keras"])
def test_pytests_own_process_has_none_of_it(name: str) -> None:
    assert importlib.util.find_spec(name) is not None, "whoever asks whether it is there is told so"
    with pytest.raises(ImportError, match="not imported into pytest's own process"):
        importlib.import_module(name)
    assert name not in sys.modules
