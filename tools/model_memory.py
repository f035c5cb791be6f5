# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a large model is truly split by TensorFlow's model parallelism, and saved in parts.

Usage: python tools/model_memory.py [--mib MIB]

Trains layers of MIB (512) MiB of weights with Adam for three steps and saves them once, in one
process and in two partitions, each started by smddprun; prints how far resident memory rose, and
exits with 1 if that was more than what is promised:

    first trace        of each rank: 32 MiB
    three steps        of each rank, at the peak: 0.62 of what one process takes
    save() of rank 0   at the peak: 1.1 complete copies of weights and slots
    save() of others   64 MiB

Needs some 8 GiB of memory and 2 GiB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LAYERS, MICROBATCHES, MIB = 8, 4, 2**20
TRACE_MIB, SHARE, COPIES, OTHERS_MIB = 32, 0.62, 1.1, 64
SLOTS_AND_WEIGHTS = 3  # of Adam


def main() -> None:
    """Starts the ranks, or is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--folder", help="of a rank, which writes what it finds there")
    options = parser.parse_args()
    if options.folder is not None:
        _measure(options.mib, Path(options.folder))
        return
    (alone,), ranks = (_started(number, options.mib) for number in (1, 2))
    copy = SLOTS_AND_WEIGHTS * options.mib
    rows = [("one process, three steps", alone["steps"], None)]
    for rank, found in enumerate(ranks):
        to_save = COPIES * copy if rank == 0 else OTHERS_MIB
        rows += [
            (f"rank {rank}, first trace", found["trace"], TRACE_MIB),
            (f"rank {rank}, three steps", found["steps"], SHARE * alone["steps"]),
            (f"rank {rank}, save()", found["save"], to_save),
        ]
    for what, risen, limit in rows:
        promise = "" if limit is None else f", at most {limit:.0f}"
        print(f"{what}: {risen:.0f} MiB more{promise}", flush=True)
    print(f"a complete copy of weights and slots: {copy} MiB")
    share = max(found["steps"] for found in ranks) / alone["steps"]
    print(f"share of what one process takes: {share:.2f}")
    broken = [what for what, risen, limit in rows if limit is not None and risen > limit]
    sys.exit(f"more than promised: {', '.join(broken)}" if broken else 0)


def _started(ranks: int, mib: int) -> list[dict[str, float]]:
    """What each rank has found, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["smddprun", "-np", str(ranks), sys.executable, __file__]
        subprocess.run([*command, "--mib", str(mib), "--folder", folder], check=True)
        files = [Path(folder, f"rank-{rank}.json") for rank in range(ranks)]
        return [json.loads(each.read_text()) for each in files]


def _measure(mib: int, folder: Path) -> None:
    import tensorflow as tf

    import smdistributed.modelparallel.tensorflow as smp
    from smdistributed.modelparallel.tensorflow.step.preparing import Preparing

    tf.config.threading.set_intra_op_parallelism_threads(1)
    smp.init({"partitions": int(os.environ["WORLD_SIZE"]), "microbatches": MICROBATCHES})
    width = int((mib * MIB / 4 / LAYERS) ** 0.5)

    class Model(smp.DistributedModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for number in range(LAYERS):
                setattr(self, f"part{number}", tf.keras.layers.Dense(width, use_bias=False))

        def call(self, x: Any) -> Any:
            for number in range(LAYERS):
                x = getattr(self, f"part{number}")(x)
            return x

    model, optimizer = Model(), tf.keras.optimizers.Adam(1e-5)
    batch = tf.random.stateless_normal((MICROBATCHES, width), seed=(1, 2))

    @smp.step
    def gradients(x: Any) -> Any:
        loss = tf.reduce_mean(tf.square(model(x)))
        return optimizer.get_gradients(loss, model.trainable_variables)

    @tf.function
    def train(x: Any) -> None:
        means = [each.accumulate() for each in gradients(x)]
        optimizer.apply_gradients(zip(means, model.trainable_variables, strict=True))

    traces = []
    trace_alike = Preparing.trace_alike

    def traced(self: Any) -> Any:
        before = _resident("VmRSS")
        result = trace_alike(self)
        traces.append(_resident("VmRSS") - before)
        return result

    Preparing.trace_alike = traced  # type: ignore[method-assign]
    before = _begin()
    for _ in range(3):
        train(batch)
    steps = _resident("VmHWM") - before
    manager = smp.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer), folder / "checkpoints"
    )
    before = _begin()
    manager.save()
    found = {"trace": traces[0], "steps": steps, "save": _resident("VmHWM") - before}
    path = folder / f"rank-{smp.rank()}.json"
    path.write_text(json.dumps({name: each / MIB for name, each in found.items()}))


def _begin() -> int:
    """Lets the peak begin here; resident bytes of this process."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(name: str) -> int:
    """Bytes, of this process: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    main()
