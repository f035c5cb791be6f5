# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What importing TensorFlow's front end loads beyond TensorFlow: next to nothing, so it is quick.

Source: our choice: it is to add less than half a second to `import tensorflow`.
"""

from __future__ import annotations

import json
import sys

import pytest
from launchers import run_to_end

REPORT = """
import json, sys
import tensorflow
before = set(sys.modules)
import {package}.keras
print("loaded:", json.dumps([sorted(before), sorted(set(sys.modules) - before)]))
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("legacy_keras", ["0", "1"])
def test_importing_it_loads_nothing_but_itself(legacy_keras: str) -> None:
    package = "smdistributed.dataparallel.tensorflow"
    ended = run_to_end(
        [sys.executable, "-c", REPORT.format(package=package)],
        environment={"TF_USE_LEGACY_KERAS": legacy_keras, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert ended.returncode == 0, ended.stdout
    of_tensorflow, loaded = map(set, json.loads(ended.stdout.rpartition("loaded:")[2]))
    assert {package, f"{package}.keras"} <= loaded
    assert {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names == {
        "smdistributed"
    }
    # Which Keras it is, and when it is loaded, is TensorFlow's affair; torch is nobody's here.
    assert "torch" not in of_tensorflow
