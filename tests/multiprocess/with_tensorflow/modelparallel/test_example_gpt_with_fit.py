# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The GPT of `examples/15_tensorflow_model_parallel` as a user runs it: by `fit`, stopped, resumed.

What it prints is compared: four digits of each loss.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from launchers import clean_environment, launch_command, run_to_end
from preloaded import Preload
from tensorflow_harness import run_tensorflow_script

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "examples" / "15_tensorflow_model_parallel" / "gpt.py"
PRELOADS = {"0": Preload.KERAS_3, "1": Preload.LEGACY_KERAS}
# Real English text, and short.
TINY = ["--text", str(ROOT / "LICENSE"), "--blocks", "2", "--width", "32", "--heads", "2"]
TINY += ["--context", "16", "--vocabulary", "128", "--batch-size", "8", "--microbatches", "2"]
TINY += ["--steps", "30", "--every", "10", "--write", "4"]
# Of the last loss and validation with all defaults, where the text is Python's language reference.
README_BOUNDS = (3.6, 2.6)
RUN_TIMEOUT_S = 300.0

pytestmark = pytest.mark.timeout(4 * RUN_TIMEOUT_S)


def run(ranks: int, keras: str, *options: str) -> str:
    """What a run that must succeed has printed; of one process without a launcher."""
    environment = {"TF_USE_LEGACY_KERAS": keras, "TF_CPP_MIN_LOG_LEVEL": "3"}
    argv = [str(SCRIPT), *options]
    if ranks == 1:
        (outcome,) = run_tensorflow_script(
            [*argv, "--partitions", "1"],
            1,
            is_launched=False,
            env=environment,
            deadline_s=RUN_TIMEOUT_S,
        )
        return outcome.output
    command = [*launch_command("smddprun", ranks, preload=PRELOADS[keras]), *argv]
    ended = run_to_end(command, environment=environment, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout
    assert not re.search(r"\[rank [1-9]\].*(loss|saved|text)", ended.stdout), ended.stdout
    return ended.stdout


def losses(output: str) -> list[tuple[str, str]]:
    """Of each epoch the loss, and that of the validation."""
    return re.findall(r"- loss: ([\d.]+).* - val_loss: ([\d.]+)", output)


def require_parts(output: str, ranks: int) -> None:
    """Each rank of a replica has its own part, and the replicas have the same."""
    found = re.findall(r"rank (\d): partition (\d), ([\d,]+) parameters", output)
    assert [int(rank) for rank, _, _ in found] == list(range(ranks)), output
    parts = {(partition, parameters) for _, partition, parameters in found}
    assert len(parts) == min(ranks, 2), output


def require_learning(found: list[tuple[str, str]], epochs: int) -> None:
    assert len(found) == epochs
    assert float(found[-1][0]) < float(found[0][0]) - 0.3, found


def test_it_learns_and_saves(tmp_path: Path) -> None:
    short = ["--blocks", "1", "--steps", "20", "--write", "0"]
    output = run(2, "0", *TINY, *short, "--checkpoint", str(tmp_path))
    require_learning(losses(output), 2)
    require_parts(output, 2)
    assert {each.name for each in tmp_path.glob("*.index")} == {"ckpt-1.index", "ckpt-2.index"}


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["0", "1"], ids=["keras-3", "tf-keras"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_goes_on_where_it_stopped(ranks: int, keras: str, tmp_path: Path) -> None:
    options = [*TINY, "--checkpoint", str(tmp_path)]
    first = run(ranks, keras, *options, "--stop-after", "10")
    assert f"saved {tmp_path}/ckpt-1" in first
    second = run(ranks, keras, *options)
    assert f"going on from {tmp_path}/ckpt-1, step 10" in second
    require_parts(second, ranks)
    whole = losses(run(ranks, keras, *TINY))
    require_learning(whole, 3)
    assert losses(first) + losses(second) == whole


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("keras", ["0", "1"], ids=["keras-3", "tf-keras"])
def test_after_ctrl_c_the_same_line_goes_on(keras: str, tmp_path: Path) -> None:
    options = [*TINY, "--checkpoint", str(tmp_path)]
    command = [*launch_command("smddprun", 2, preload=PRELOADS[keras]), str(SCRIPT), *options]
    environment = {"TF_USE_LEGACY_KERAS": keras, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(
        command,
        env=clean_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # a process group of its own, as a terminal gives
    ) as job:
        assert job.stdout is not None
        said = []
        for line in job.stdout:
            said.append(line)
            if "saved " in line:
                os.killpg(job.pid, signal.SIGINT)
        assert job.wait(RUN_TIMEOUT_S) != 0, said
    second = run(2, keras, *options)
    found = re.search(rf"going on from {tmp_path}/ckpt-(\d), step (\d+)", second)
    assert found is not None, second
    number = int(found[1])
    assert int(found[2]) == 10 * number
    assert losses(second) == losses(run(2, keras, *TINY))[number:]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "keras"), [(2, "0"), (2, "1"), (4, "0"), (1, "1")])
def test_the_loss_falls_as_the_page_says(ranks: int, keras: str, tmp_path: Path) -> None:
    reference = tmp_path / "reference.txt"
    reference.write_text("\n\n".join(topics[name] for name in sorted(topics)))
    found = losses(run(ranks, keras, "--text", str(reference)))
    assert len(found) == 4
    for value, bound in zip(found[-1], README_BOUNDS, strict=True):
        assert float(value) < bound, found


@pytest.mark.slow
def test_without_a_text_it_says_what_to_pass(tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    (outcome,) = run_tensorflow_script(
        [str(SCRIPT), "--text", str(missing)], 1, is_launched=False, check=False
    )
    assert outcome.error is not None
    assert outcome.error.type_name == "SystemExit"
    assert f"{missing}" in outcome.error.message
    assert "Pass one in UTF-8: --text FILE" in outcome.error.message


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["0", "1"], ids=["keras-3", "tf-keras"])
def test_another_number_of_processes_goes_on(keras: str, tmp_path: Path) -> None:
    """On two processes, on one, on two replicas of two; each from where the one before stopped."""
    options = [*TINY, "--checkpoint", str(tmp_path)]
    first = run(2, keras, *options, "--stop-after", "10")
    second = run(1, keras, *options, "--stop-after", "20")
    assert f"going on from {tmp_path}/ckpt-1, step 10" in second
    third = run(4, keras, *options)
    assert f"going on from {tmp_path}/ckpt-2, step 20" in third
    require_parts(third, 4)
    whole = losses(run(2, keras, *TINY))
    for one, other in zip(losses(first) + losses(second), whole, strict=False):
        assert [float(each) for each in one] == pytest.approx([float(each) for each in other], 1e-3)
    (last,) = losses(third)  # of other batches, as replicas have batches of their own
    assert float(last[0]) < float(losses(first)[0][0]) - 0.3
