# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The examples of model parallelism, in short, as a user runs them.

What is compared exactly has to be equal in every bit: the same work on the same ranks.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from pathlib import Path

import pytest
import torch
from launchers import launch_command, run_to_end
from torch import nn
from torch.nn import functional

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDER = EXAMPLES / "08_model_parallel"
DIGITS = ["--epochs", "1", "--per-class", "250", "--batch-size", "32"]
TINY_GPT = ["--layers", "3", "--width", "32", "--heads", "2", "--context", "32"]
TINY_GPT += ["--vocabulary", "512", "--batch-size", "8", "--steps", "24", "--every", "8"]
RUN_TIMEOUT_S = 200.0

pytestmark = pytest.mark.timeout(3 * RUN_TIMEOUT_S)


def _run(
    script: str, *options: str, processes: int = 2, cpu: bool = False, launcher: str = "smddprun"
) -> str:
    launch = launch_command(launcher, processes, *(["--cpu"] if cpu else []))
    command = [*launch, str(FOLDER / f"{script}.py"), *options]
    ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    return ended.stdout


def _accuracy(output: str) -> float:
    found = re.search(r"epoch 1: loss ([\d.]+), test accuracy ([\d.]+)%", output)
    assert found is not None, output
    return float(found[2])


def _held(output: str) -> dict[int, tuple[int, int, set[str]]]:
    """By rank: the number of parameters that it held, of how many, and their names."""
    # torchrun starts Python with -u, which writes a line and its end apart: another rank's line may
    # come between them.
    line = r"rank (\d) holds ([\d,]+) of ([\d,]+) parameters: (.*?)(?=rank \d holds|$)"
    found = re.findall(line, output, re.MULTILINE)
    return {
        int(rank): (
            int(here.replace(",", "")),
            int(everything.replace(",", "")),
            set(names.strip().split(", ")),
        )
        for rank, here, everything, names in found
    }


@pytest.mark.parametrize(
    ("script", "cpu", "launcher"),
    [
        ("automatic", False, "smddprun"),
        ("automatic", True, "smddprun"),
        ("automatic", False, "torchrun"),
        ("manual", True, "smddprun"),
    ],
)
def test_scripts_of_the_guide_learn_with_a_part_on_each_rank(
    script: str, cpu: bool, launcher: str
) -> None:
    output = _run(script, *DIGITS, cpu=cpu, launcher=launcher)
    assert _accuracy(output) > 70, output  # chance is 10 %
    held = _held(output)
    assert sorted(held) == [0, 1], output
    assert held[0][0] + held[1][0] == held[0][1] == held[1][1], output
    assert min(here for here, _, _ in held.values()) > 0, output
    assert held[0][2].isdisjoint(held[1][2]), output


def test_partition_by_hand_is_what_the_script_says() -> None:
    held = _held(_run("manual", *DIGITS, cpu=True))
    assert {name.partition(".")[0] for name in held[0][2]} == {"features"}
    assert {name.partition(".")[0] for name in held[1][2]} == {"classifier"}


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="this machine has a GPU, so nothing is missing"
)
def test_without_cpu_option_cuda_is_refused() -> None:
    command = [*launch_command("smddprun", 2), str(FOLDER / "manual.py"), *DIGITS]
    ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode != 0
    told = ("Torch not compiled with CUDA enabled", "Found no NVIDIA driver on your system")
    assert any(text in ended.stdout for text in told), ended.stdout


class PlainModel(nn.Module):
    """The network of hybrid.py, written again without anything of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5, padding=2)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5, padding=2)
        self.norm2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(1568, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.norm1(self.conv1(x)).relu(), 2)
        x = functional.max_pool2d(self.norm2(self.conv2(x)).relu(), 2)
        scores: torch.Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def test_hybrid_trains_replicas_and_saves_what_plain_torch_loads(tmp_path: Path) -> None:
    saved = tmp_path / "digits.pt"
    output = _run("hybrid", *DIGITS, "--save", str(saved), processes=4)
    accuracy = _accuracy(output)
    assert accuracy > 70, output
    places = re.findall(r"rank (\d) of 4: partition (\d) of 2, replica (\d) of 2", output)
    assert sorted(places) == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]

    model = PlainModel()
    model.load_state_dict(torch.load(saved, weights_only=True), strict=True)
    model.eval()
    sys.path.insert(0, str(EXAMPLES / "01_mnist"))
    try:
        import digits
    finally:
        sys.path.pop(0)
    _, test = digits.split(digits.load(), per_class=250)
    with torch.no_grad():
        predicted = model(torch.from_numpy(test.images)).argmax(dim=1)
    num_correct = int((predicted == torch.from_numpy(test.labels)).sum())
    # Each replica has normalised its own images since the last broadcast of its buffers, so a few
    # of the half that the other one tested may be read differently.
    assert abs(num_correct / len(test.labels) - accuracy / 100) < 0.02


def _gpt_losses(output: str) -> dict[int, tuple[str, str]]:
    """By step: loss and validation, as they are printed."""
    pattern = r"step (\d+) of 24: loss ([\d.]+), validation ([\d.]+)"
    return {int(step): (loss, val) for step, loss, val in re.findall(pattern, output)}


def test_gpt_says_why_each_part_is_where_it_is_and_learns() -> None:
    output = _run("gpt", *TINY_GPT)
    assert re.search(r" 0 .* main  +the root runs on partition 0", output), output
    # The scores are made with the weights of the embedding, so that is with the root.
    assert re.search(r" 0 .* main/token  +it goes with the root", output), output
    places = set(
        re.findall(r" (\d)  +[\d,]+  +[\d.]+%  +[\d.]+%  main/blocks/\d  +in part", output)
    )
    assert places == {"0", "1"}, output
    assert re.search(r"partition 1 on rank 1: load [\d.]+%, [\d,]+ parameters", output), output
    losses = _gpt_losses(output)
    assert sorted(losses) == [8, 16, 24], output
    assert float(losses[24][1]) < 5.0 < float(losses[8][1]), output  # ln 512 is 6.2
    plain = re.search(r"the whole network in one process: validation ([\d.]+)", output)
    assert plain is not None, output
    assert float(plain[1]) == pytest.approx(float(losses[24][1]), abs=2e-4)


def test_gpt_goes_on_from_partial_checkpoints_as_if_nothing_had_been(tmp_path: Path) -> None:
    # Dropout is on.
    straight = _gpt_losses(_run("gpt", *TINY_GPT))
    checkpoint = ["--checkpoint", str(tmp_path / "checkpoints")]
    first = _gpt_losses(_run("gpt", *TINY_GPT, *checkpoint, "--stop-after", "11"))
    assert first[8] == straight[8]
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"newest", "step_11_0", "step_11_1"}
    output = _run("gpt", *TINY_GPT, *checkpoint)
    assert "at step 11 of 24" in output
    second = _gpt_losses(output)
    assert {step: second[step] for step in (16, 24)} == {s: straight[s] for s in (16, 24)}


def test_partial_checkpoints_hold_one_rank_each(tmp_path: Path) -> None:
    _run("gpt", *TINY_GPT, "--checkpoint", str(tmp_path), "--stop-after", "2")
    parts = [torch.load(tmp_path / f"step_2_{rank}", weights_only=False) for rank in (0, 1)]
    names = [set(part["model"]) - {"_smp_is_partial"} for part in parts]
    assert "token.weight" in names[0]
    assert names[0].isdisjoint(names[1])
    assert all(part["step"] == 2 for part in parts)


def _read_png(path: Path) -> tuple[int, int, bytes]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length)[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + length
    width, height = struct.unpack_from(">2I", chunks[b"IHDR"])
    return width, height, zlib.decompress(chunks[b"IDAT"])


def test_unet_removes_noise_and_draws_it(tmp_path: Path) -> None:
    picture = tmp_path / "digits.png"
    options = ["--epochs", "1", "--per-class", "125", "--width", "4", "--picture", str(picture)]
    output = _run("unet", *options)
    before = re.search(r"error of the noisy test images: ([\d.]+)", output)
    after = re.search(r"epoch 1: .*error after cleaning up ([\d.]+)", output)
    assert before is not None, output
    assert after is not None, output
    assert float(after[1]) < 0.35 * float(before[1]), output
    runs = dict(re.findall(r"rank (\d) runs (.+)", output))
    parts = set(", ".join(runs.values()).split(", "))
    assert parts == {"top", "middle", "bottom", "up_middle", "up_top", "last"}, output
    assert all(runs[rank].strip() for rank in ("0", "1")), output

    width, height, pixels = _read_png(picture)
    assert (width, height) == (10 * 28 * 3, 3 * 28 * 3)
    assert len(pixels) == height * (width + 1)
    # Three rows: with noise, cleaned up, the original; the second is nearer to the third.
    size = 84 * (width + 1)
    noisy, cleaned, clean = (
        torch.frombuffer(bytearray(pixels[row * size : (row + 1) * size]), dtype=torch.uint8).int()
        for row in range(3)
    )
    assert (cleaned - clean).abs().sum() < 0.8 * (noisy - clean).abs().sum()
