# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The GPT example on 2 processes, as a user runs it, with a network of 30,000 parameters.

The text is Python's language reference, which every machine has, also where Debian's Bible is
installed: the figures of a test must not depend on that.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import math
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import pytest
import torch
from launchers import clean_environment, launch_command, run_to_end
from machine_speed import scaled

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "03_gpt"
VOCABULARY = 512
TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--lr", "0.01"]
TINY += ["--vocabulary", str(VOCABULARY), "--batch-size", "8", "--sample", "0", "--device", "cpu"]
TINY += ["--precision", "fp32"]  # where nothing else is said; by itself the processor decides
RUN_TIMEOUT_S = 200.0

pytestmark = pytest.mark.timeout(4 * RUN_TIMEOUT_S)


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"gpt_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text(_load("text")._python_reference(), encoding="utf-8")
    return path


def _command(text_file: Path, *options: str, num_processes: int = 2) -> list[str]:
    launcher = launch_command("smddprun", num_processes)
    return [*launcher, str(FOLDER / "train.py"), "--text", str(text_file), *TINY, *options]


def _train(text_file: Path, log: Path, *options: str, num_processes: int = 2) -> str:
    """Train to the end; the output."""
    command = _command(text_file, "--log", str(log), *options, num_processes=num_processes)
    ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    return ended.stdout


def _records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _losses(log: Path) -> list[float]:
    return [record["loss"] for record in _records(log)]


@pytest.fixture(scope="module")
def plain(
    text_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[dict[str, Any]]]:
    """Output and log of one uninterrupted run in float32."""
    log = tmp_path_factory.mktemp("plain") / "log.jsonl"
    output = _train(text_file, log, "--steps", "40", "--every", "20", "--sample", "30")
    return output, _records(log)


def test_losses_fall(plain: tuple[str, list[dict[str, Any]]]) -> None:
    _, records = plain
    assert [record["step"] for record in records] == list(range(40))
    # Fresh weights know nothing: the first loss is close to the logarithm of the vocabulary.
    assert records[0]["loss"] == pytest.approx(math.log(VOCABULARY), abs=0.1)
    assert sum(record["loss"] for record in records[-5:]) / 5 < 4.7
    validation = [r["validation_loss"] for r in records if "validation_loss" in r]
    assert len(validation) == 2
    assert validation[1] < validation[0] < math.log(VOCABULARY)


def test_learning_rate_rises_and_falls(plain: tuple[str, list[dict[str, Any]]]) -> None:
    rates = [record["lr"] for record in plain[1]]
    assert rates[0] == pytest.approx(0.01 / 20)
    assert max(rates) == rates[19] == pytest.approx(0.01)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[-1] < 0.0012


def test_output_tells_what_runs_and_ends_with_a_sample(
    plain: tuple[str, list[dict[str, Any]]],
) -> None:
    output, _ = plain
    assert "2 processes on cpu, float32, smddp" in output
    bars = [line for line in output.splitlines() if "training: " in line]
    assert [("20/40" in bar, "40/40" in bar) for bar in bars] == [(True, False), (False, True)]
    assert "\r" not in output
    sample = output.partition("--- and the network goes on ---")[2]
    assert len(sample.strip()) > 30, output


@pytest.mark.parametrize(
    ("instructions", "dtype"),
    [
        ({"avx2": True, "avx512_bf16": False}, "float32"),
        ({"avx512_bf16": True}, "bfloat16"),
        ({"amx_bf16": True}, "bfloat16"),
        ({}, "float32"),
    ],
)
def test_the_processor_decides_on_the_precision(
    instructions: dict[str, bool], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever processor this is. A test once expected that of the machine it was written on."""
    monkeypatch.syspath_prepend(str(FOLDER))
    train = _load("train")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)
    assert str(train.Precision.choose("auto", torch.device("cpu"))) == dtype
    assert str(train.Precision.choose("fp32", torch.device("cpu"))) == "float32"


def _waiting_bytes(pipe: IO[bytes]) -> int:
    """How much can be read from it now."""
    number = fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))
    return int.from_bytes(number, sys.byteorder)


def test_training_goes_on_after_a_kill_as_if_nothing_had_been(
    text_file: Path, tmp_path: Path
) -> None:
    # Dropout is on, and fp16 gives the loss scaler a state of its own.
    options = ["--steps", "90", "--every", "10", "--accumulate", "2", "--precision", "fp16"]
    options += ["--layers", "1", "--width", "16", "--heads", "1", "--context", "8"]
    straight, interrupted = tmp_path / "straight.jsonl", tmp_path / "interrupted.jsonl"
    _train(text_file, straight, *options)

    options += ["--checkpoint", str(tmp_path / "gpt.pt")]
    # A pipe of one page, which not all 90 lines fit into: the run cannot end before it is killed.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as log:
        fcntl.fcntl(log, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(log.fileno(), True)
        job = subprocess.Popen(
            _command(text_file, "--log", str(pipe), *options),
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            # Some 15 lines: the checkpoint after step 9 is written, and later steps are lost.
            deadline = time.monotonic() + scaled(RUN_TIMEOUT_S)
            while _waiting_bytes(log) < 1000:
                assert job.poll() is None, "the run ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
        interrupted.write_bytes(log.read())  # to its end: until no rank has it open any more
    before = interrupted.read_text().splitlines()
    assert 10 < len(before) < 90

    output = _train(text_file, interrupted, *options)
    expected = dict(enumerate(_losses(straight)))
    assert len(expected) == 90
    records = [json.loads(line) for line in interrupted.read_text().splitlines() if line]
    first = records[len(before)]["step"]
    assert 0 < first <= len(before)
    assert f"going on from {tmp_path / 'gpt.pt'} at step {first} of 90" in output
    # Every step, also one that was run twice, has the loss of the straight run, bit for bit.
    assert {record["step"] for record in records} == set(range(90))
    for record in records:
        assert record["loss"] == expected[record["step"]], record


def test_checkpoint_of_other_options_is_refused_by_name(text_file: Path, tmp_path: Path) -> None:
    checkpoint = ["--checkpoint", str(tmp_path / "gpt.pt"), "--steps", "2"]
    _train(text_file, tmp_path / "log", *checkpoint, num_processes=1)
    command = _command(text_file, *checkpoint, "--seed", "9", num_processes=1)
    ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode != 0
    assert "is the checkpoint of a different run: seed 1 there, 9 here" in ended.stdout


def test_number_of_processes_and_pieces_does_not_change_what_is_learnt(
    text_file: Path, tmp_path: Path
) -> None:
    options = ["--steps", "8", "--every", "8", "--dropout", "0"]
    one, two = tmp_path / "one", tmp_path / "two"
    _train(text_file, one, *options, "--accumulate", "4", num_processes=1)
    _train(text_file, two, *options, "--accumulate", "1")
    # The same windows in every step; sums in another order, amplified by AdamW over 8 steps.
    torch.testing.assert_close(
        torch.tensor(_losses(one)), torch.tensor(_losses(two)), rtol=1e-4, atol=0
    )


FEW = ["--steps", "12", "--every", "12", "--context", "16", "--batch-size", "4", "--dropout", "0"]


@pytest.fixture(scope="module")
def losses_in_float32(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    log = tmp_path_factory.mktemp("float32") / "log.jsonl"
    _train(text_file, log, *FEW, "--precision", "fp32")
    return _losses(log)


@pytest.mark.parametrize(
    "options", [["--precision", "bf16"], ["--precision", "fp16", "--fp16-gradients"]]
)
def test_mixed_precision_learns_the_same(
    options: list[str], losses_in_float32: list[float], text_file: Path, tmp_path: Path
) -> None:
    _train(text_file, tmp_path / "mixed", *FEW, *options)
    losses = _losses(tmp_path / "mixed")
    assert losses[-1] < losses[0] - 0.3
    # Scores rounded to 8 (bfloat16) or 11 bits differ by less than one part in a hundred; AdamW,
    # which takes steps of full size from the first one on, makes up to five of them in 12 steps.
    expected = torch.tensor(losses_in_float32)
    torch.testing.assert_close(torch.tensor(losses), expected, rtol=0.05, atol=0)
    torch.testing.assert_close(torch.tensor(losses[:1]), expected[:1], rtol=0.01, atol=0)
    # And they are not simply float32 under another name.
    assert losses != losses_in_float32


def test_batch_that_does_not_divide_is_refused_with_the_way_out(text_file: Path) -> None:
    ended = run_to_end(_command(text_file, "--batch-size", "6", "--accumulate", "2"))
    assert ended.returncode != 0
    assert "expected a multiple of 4" in ended.stdout, ended.stdout


def test_vocabulary_gives_back_every_text_exactly() -> None:
    text = _load("text")
    content = text._python_reference()
    vocabulary = text.Vocabulary.of(content, 2000)
    assert len(vocabulary) == 2000
    numbers = vocabulary.encode(content)
    assert vocabulary.decode(numbers) == content
    assert len(numbers) < 0.5 * len(content)  # words are tokens
    with pytest.raises(ValueError, match="only characters of it"):
        vocabulary.encode("snowman \u2603")
    with pytest.raises(ValueError, match="Ask for"):
        text.Vocabulary.of(content, 20)


def _compressed(text: bytes) -> bytes:
    """compress(1) without its first three bytes, and without compressing: literals of 9 bits."""
    assert len(text) < 250, "after 255 codes a reader would expect 10 bits"
    bits = sum(byte << (9 * place) for place, byte in enumerate(text))
    return bits.to_bytes((9 * len(text) + 7) // 8, "little")


def test_bible_of_debian_is_read(tmp_path: Path) -> None:
    pieces = [
        _compressed(b"A title.\nGe1:1 In the beginning\nGe1:2 And the"),
        _compressed(b" earth\n1Jo2:3 And hereby\n"),
    ]
    begin = 0x5C + 4 * (len(pieces) + 1) + 3
    offsets = [begin, begin + len(pieces[0]), begin + len(pieces[0]) + len(pieces[1])]
    head = b"EC02Compressed Data File".ljust(0x54, b"\0") + struct.pack(">2I", 65536, len(pieces))
    data = head + struct.pack(">3I", *offsets) + b"\x1f\x9d\x90" + b"".join(pieces)
    path = tmp_path / "bible.data"
    path.write_bytes(data)
    text = _load("text")
    assert text.load(path).content == "In the beginning\nAnd the earth\nAnd hereby\n"

    path.write_bytes(data[:-4] + b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="Install the package again"):
        text.load(path)


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match="byte 3 cannot be UTF-8"):
        _load("text").load(path)


def test_interrupted_writing_leaves_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_module = _load("checkpoint")
    path = tmp_path / "gpt.pt"
    checkpoint_module.save({"step": 1, "options": {}}, path)

    def fail(state: object, file: Any) -> None:
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint_module.torch, "save", fail)
    with pytest.raises(OSError, match="no space"):
        checkpoint_module.save({"step": 2, "options": {}}, path)
    state = checkpoint_module.load(path, torch.device("cpu"), expected={})
    assert state == {"step": 1, "options": {}}
