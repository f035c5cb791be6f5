# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The public names, what an import loads, and calls before `init()`.

Source: dataparallel specification, sections 7.1, 7.2, 7.5.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Widening the public surface is a decision: it changes this list.
NAMES = {
    "init",
    "size",
    "local_size",
    "rank",
    "local_rank",
    "allreduce",
    "oob_allreduce",
    "broadcast",
    "broadcast_variables",
    "broadcast_global_variables",
    "overlap",
    "shutdown",
    "DistributedOptimizer",
    "DistributedGradientTape",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "ReduceOp",
    "keras",
}
PROGRAM = """
import json, sys, types
{first}
before = set(sys.modules)
import smdistributed.dataparallel.tensorflow as sdp
loaded = set(sys.modules) - before
print(json.dumps(sorted(name.partition(".")[0] for name in loaded)))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110
    )


def test_the_names() -> None:
    import smdistributed.dataparallel.tensorflow as sdp

    assert set(sdp.__all__) == NAMES
    assert len(sdp.__all__) == len(NAMES)
    for name in NAMES:
        assert getattr(sdp, name) is not None
    assert set(dir(sdp)) >= NAMES
    assert sdp.keras.__name__ == "smdistributed.dataparallel.tensorflow.keras"
    with pytest.raises(AttributeError, match="no attribute 'horovod'"):
        _ = sdp.horovod
    assert {name for name in vars(sdp.ReduceOp) if name.isupper()} == {
        "AVERAGE",
        "SUM",
        "MIN",
        "MAX",
    }


def test_the_import_loads_only_ours() -> None:
    done = run(PROGRAM.format(first="import tensorflow"))
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded - sys.stdlib_module_names == {"smdistributed"}


def test_tensorflow_1_is_told_apart() -> None:
    first = (
        "import sys, types; module = types.ModuleType('tensorflow');"
        " module.__version__ = '1.15.5'; sys.modules['tensorflow'] = module"
    )
    done = run(PROGRAM.format(first=first))
    assert "ImportError" in done.stderr
    assert "found TensorFlow 1.15.5; expected TensorFlow 2" in done.stderr
    done = run(PROGRAM.format(first="import sys; sys.modules['tensorflow'] = None"))
    assert "pip install smdistributed-open[tensorflow]" in done.stderr


def test_before_init() -> None:
    import tensorflow as tf

    import smdistributed.dataparallel.tensorflow as sdp
    from smdistributed.dataparallel.exceptions import SMDDPNotInitialized

    variable = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    tape = sdp.DistributedGradientTape(tape)
    calls = {
        "size()": sdp.size,
        "allreduce()": lambda: sdp.allreduce(variable, 0, 1),
        "oob_allreduce()": lambda: sdp.oob_allreduce(1.0),
        "broadcast()": lambda: sdp.broadcast(1.0, 0),
        "broadcast_variables()": lambda: sdp.broadcast_variables([variable], 0),
        "reduction of gradients": lambda: tape.gradient(loss, variable),
    }
    for caller, call in calls.items():
        with pytest.raises(
            SMDDPNotInitialized, match=r"Call smdistributed.*init\(\) first"
        ) as info:
            call()
        assert str(info.value).startswith(f"{caller} was called before init()")
    sdp.shutdown()
    assert sdp.overlap(variable).numpy().tolist() == [1.0, 2.0]


def test_documented_errors_survive_autograph() -> None:
    """AutoGraph makes errors of user code anew, and of some classes it cannot."""
    import tensorflow as tf

    from smdistributed.dataparallel import exceptions

    for name in dir(exceptions):
        kind = getattr(exceptions, name)
        if not (isinstance(kind, type) and issubclass(kind, exceptions.SMDDPError)):
            continue

        @tf.function
        def step(kind: type[Exception] = kind) -> None:
            raise kind("what was wrong")

        with pytest.raises(kind, match="what was wrong"):
            step()
