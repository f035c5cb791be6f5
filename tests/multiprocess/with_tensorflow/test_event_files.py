# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""TensorFlow reads the event files that agents write (launch specification, section 8.2)."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

from tensorflow_harness import run_tensorflow_ranks

from smdistributed.launch.home import Home
from smdistributed.launch.tensorboard import EventFile
from smdistributed.sagemaker.pytorch import PyTorch
from smdistributed.sagemaker.session import Session
from tests.packages import require

require("tensorflow")

Series = dict[str, list[tuple[int, float, float]]]


def read(rank: int, world_size: int, folder: str) -> tuple[list[str], Series]:
    """By TensorFlow: versions of the files, and of each series its steps, times and values."""
    import tensorflow as tf

    versions: list[str] = []
    series: Series = {}
    for path in sorted(Path(folder).glob("*tfevents*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.file_version:
                versions.append(event.file_version)
            for value in event.summary.value:
                found = series.setdefault(value.tag, [])
                found.append((event.step, event.wall_time, value.simple_value))
    return versions, series


def series_of(folder: Path) -> tuple[list[str], Series]:
    (found,) = run_tensorflow_ranks(read, 1, str(folder))
    return found


def test_every_value_is_read(tmp_path: Path) -> None:
    names = ["loss", "valid/accuracy", "ä loss", "x" * 255]
    events = EventFile(tmp_path, "algo-1")
    for number in range(300):  # steps and lengths of one and of two bytes
        for name in names:
            events.add(1764244800.25 + number, name, number / 4)
    versions, series = series_of(tmp_path)
    assert versions == ["brain.Event:2"]
    expected = [(number, 1764244800.25 + number, number / 4) for number in range(300)]
    assert series == dict.fromkeys(names, expected)


def test_values_of_every_size_and_a_file_after_another(tmp_path: Path) -> None:
    first = EventFile(tmp_path, "algo-1")
    for value in (0.0, -1.5, 1e-40, 1e300, -1e300):
        first.add(5.0, "loss", value)
    EventFile(tmp_path, "algo-1", ["loss"] * 5).add(6.0, "loss", 0.25)
    _, series = series_of(tmp_path)
    steps, _, values = zip(*series["loss"], strict=True)
    assert steps == (0, 1, 2, 3, 4, 5)
    assert values[:2] == (0.0, -1.5)
    assert math.isclose(values[2], 1e-40, rel_tol=1e-3)
    assert values[3:] == (math.inf, -math.inf, 0.25)


def test_a_job_writes_them_while_it_runs(tmp_path: Path) -> None:
    script = """
        import glob, os, time
        for step in range(3):
            print(f"loss: {1.0 / (step + 1)}")
        folder = os.environ["JOB"] + "/tensorboard/" + os.environ["SM_CURRENT_HOST"]
        until = time.monotonic() + 30
        while not glob.glob(folder + "/events.out.tfevents.*"):
            assert time.monotonic() < until, "there is no file while it runs"
            time.sleep(0.05)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    arguments: dict[str, Any] = {"framework_version": "2.0", "py_version": "py310"}
    session = Session(home=Home(tmp_path / "home"))
    estimator = PyTorch(
        str(tmp_path / "train.py"),
        instance_count=2,
        instance_type="local",
        environment={"JOB": str(session.home.jobs / "mine")},
        metric_definitions=[{"Name": "train:loss", "Regex": "loss: ([0-9.]+)"}],
        sagemaker_session=session,
        **arguments,
    )
    estimator.fit(job_name="mine", logs="None")
    for host in ("algo-1", "algo-2"):
        _, series = series_of(session.home.jobs / "mine" / "tensorboard" / host)
        values = [(step, round(value, 4)) for step, _, value in series.pop("train:loss")]
        assert values == [(0, 1.0), (1, 0.5), (2, 0.3333)]
        assert not series
