# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The pretraining examples, in short, as a user runs them, beside plain torch in one process.

Losses are printed with four decimals. Weights are compared bit by bit where a run is resumed; to
make that certain for weights that are used twice, one microbatch is under way at a time there.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from launchers import launch_command, run_to_end
from preloaded import Preload

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RUN_TIMEOUT_S = 200.0
STEPS = 6
BATCH_SIZE = 16
BERT = ["--layers", "3", "--width", "32", "--heads", "2", "--context", "32", "--vocabulary", "512"]
BERT += ["--batch-size", str(BATCH_SIZE), "--steps", str(STEPS), "--log-every", "1"]
GPT2 = ["--layers", "3", "--width", "32", "--heads", "2", "--context", "16", "--vocabulary", "300"]
GPT2 += ["--train_batch_size", str(BATCH_SIZE), "--max_steps", str(STEPS), "--logging_freq", "1"]
GPT2 += ["--warmup_steps", "2", "--lr", "0.01"]
ONE_BY_ONE = {"active_microbatches": 1}

pytestmark = pytest.mark.timeout(4 * RUN_TIMEOUT_S)


@pytest.fixture(scope="module")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An option: some of Python's reference, which is read sooner than all of it."""
    from pydoc_data.topics import topics

    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(topics[name] for name in ("assignment", "class", "types")))
    return ["--text", str(path)]


def _run(
    example: str, *options: str, processes: int = 2, parameters: dict[str, Any] | None = None
) -> str:
    passed = ["-x", f"SM_HP_MP_PARAMETERS={json.dumps(parameters)}"] if parameters else []
    command = launch_command("smddprun", processes, *passed, preload=Preload.TRAINERS)
    command += [str(EXAMPLES / example / "train.py"), *options]
    ended = run_to_end(command, timeout_s=RUN_TIMEOUT_S)
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout, ended.stdout
    return ended.stdout


def _printed(output: str, name: str = "loss") -> dict[int, float]:
    """By step, a number of the progress lines."""
    found = re.findall(rf"step (\d+) of {STEPS}: .*?\b{name} ([\d.]+)", output)
    return {int(step): float(number) for step, number in found}


def _import(example: str, *names: str) -> list[ModuleType]:
    """Modules of an example; two examples have modules of one name."""
    sys.path.insert(0, str(EXAMPLES / example))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.pop(0)
        for name in ("train", "data", "modeling", "text"):
            sys.modules.pop(name, None)


def _arguments(train: ModuleType, options: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    return train.parse_arguments()


def _samples(dataset: Any, step: int) -> list[Any]:
    return [dataset[number] for number in range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)]


def _weights(path: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return weights


def _assert_same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


# ---- BERT ----------------------------------------------------------------------------------------


def _plain_bert(options: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Losses of plain torch, with microbatches as large as those of two replicas of two.

    A mean over masked words weighs each word the more, the fewer there are in a microbatch.
    """
    train, data, modeling = _import("10_bert_pretraining", "train", "data", "modeling")
    args = _arguments(train, options, monkeypatch)
    corpus = data.Corpus(data.text.load(args.text).content, args.vocabulary)
    num_training = int(len(corpus.sentences) * 0.9)
    pairs = data.Pairs(corpus.sentences[:num_training], args.context, len(corpus), args.seed)
    torch.manual_seed(args.seed)
    model = modeling.BertForPreTraining(
        modeling.BertConfig(
            len(corpus), args.context, args.layers, args.heads, args.width, args.dropout
        )
    )
    optimizer = train.smp.optimizers.FusedLAMB(train.parameter_groups(model), lr=args.lr)
    losses = {}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * train.share_of_peak(step, args)
        optimizer.zero_grad()
        batch = data.Batch(*map(torch.stack, zip(*_samples(pairs, step), strict=True)))
        total = 0.0
        for piece in zip(*(field.chunk(4) for field in batch), strict=True):
            tokens, segments, is_there, labels, is_elsewhere = piece
            words, following = modeling.losses(
                model(tokens, segments, is_there), labels, is_elsewhere
            )
            ((words + following) / 4).backward()
            total += float((words + following).detach()) / 4
        optimizer.step()
        losses[step + 1] = total
    return losses


def test_bert_with_replicas_learns_what_plain_torch_learns(
    short_text: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = [*BERT, *short_text, "--dropout", "0"]
    output = _run(
        "10_bert_pretraining",
        *[*options, "--activation-checkpointing", "group_2", "--output", str(tmp_path)],
        processes=4,
        parameters={"microbatches": 2},
    )
    plain = _plain_bert(options, monkeypatch)
    assert _printed(output) == pytest.approx(plain, abs=5e-4), output
    assert plain[STEPS] < plain[1] - 0.1
    held = re.findall(r"rank (\d): partition (\d), ([\d,]+) parameters", output)
    assert sorted(where for where, *_ in held) == ["0", "1", "2", "3"], output
    of_partition = {int(p): int(number.replace(",", "")) for _, p, number in held}
    assert min(of_partition.values()) > 0, output
    total = re.search(r"network: ([\d,]+) parameters in 2 partitions; 2 replica\(s\)", output)
    assert total is not None, output
    assert sum(of_partition.values()) == int(total[1].replace(",", "")), output
    assert re.search(r"test: masked words [\d.]+, [\d.]+% .* told right [\d.]+%", output), output
    # Replicas hold the same: only the first one writes.
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"newest", "model.pt", f"step_{STEPS}_0", f"step_{STEPS}_1"}


def test_bert_goes_on_from_partial_checkpoints_bit_by_bit(
    short_text: list[str], tmp_path: Path
) -> None:
    # Dropout is on, and the script places the layers.
    run = ["10_bert_pretraining", *BERT, *short_text, "--save-every", "2", "--keep", "2"]
    run += ["--output", str(tmp_path)]
    manual = {**ONE_BY_ONE, "auto_partition": False, "default_partition": 0}
    straight = _printed(_run(*run, parameters=manual))
    weights = _weights(tmp_path / "model.pt")
    kept = {path.name for path in tmp_path.glob("step_*")}
    assert kept == {"step_4_0", "step_4_1", "step_6_0", "step_6_1"}

    (tmp_path / "newest").write_text("step_4\n")  # as if it had been killed soon after
    output = _run(*run, parameters=manual)
    assert f"at step 4 of {STEPS}" in output
    assert _printed(output) == {step: straight[step] for step in (5, 6)}
    _assert_same_bits(_weights(tmp_path / "model.pt"), weights)
    of_rank = [
        torch.load(tmp_path / f"step_{STEPS}_{rank}", weights_only=False)["model"]
        for rank in (0, 1)
    ]
    assert "encoder.0.output.weight" in of_rank[0]
    assert "encoder.2.output.weight" in of_rank[1]
    assert of_rank[0].keys() & of_rank[1].keys() == {"_smp_is_partial"}


# ---- GPT-2 ---------------------------------------------------------------------------------------


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the package transformers is not installed")


def _plain_gpt2(
    options: list[str], monkeypatch: pytest.MonkeyPatch, model: Any = None
) -> tuple[dict[int, float], dict[int, float], Any]:
    """Losses and gradient norms of plain torch, and the model afterwards.

    Args:
        model: to begin with; None: a new one.
    """
    train, data = _import("11_gpt2", "train", "data")
    args = _arguments(train, options, monkeypatch)
    content = data.load_text(args.text).content
    tokenizer = data.train_tokenizer(content, args.vocabulary, args.context)
    windows = data.Windows(tokenizer, content[: int(len(content) * 0.9)], args.seed)
    if model is None:
        torch.manual_seed(args.seed)
        model = train.GPT2LMHeadModel(train.gpt2_config(args, tokenizer))
    groups = train.parameter_groups(model, args.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    losses, norms = {}, {}
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * train.share_of_peak(step, args)
        optimizer.zero_grad()
        batch = torch.stack(_samples(windows, step))
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train.LARGEST_GRADIENT_NORM)
        optimizer.step()
        losses[step + 1], norms[step + 1] = loss.item(), norm.item()
    return losses, norms, model


def test_gpt2_learns_what_plain_transformers_learns_and_that_loads_it(
    transformers: Any,
    short_text: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    options = [*GPT2, *short_text, "--dropout", "0"]
    losses, norms, plain = _plain_gpt2(options, monkeypatch)
    assert losses[STEPS] < losses[1] - 0.1

    output = _run(
        *["11_gpt2", *options, "--activation_checkpointing", "1", "--model_dir", str(tmp_path)]
    )
    assert "2 partitions; 1 replica(s), 4 microbatches, cpu, float32" in output
    assert _printed(output) == pytest.approx(losses, abs=5e-4), output
    assert _printed(output, "norm") == pytest.approx(norms, rel=5e-3), output
    assert "goes on: " in output
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    for (name, ours), (_, theirs) in zip(
        loaded.named_parameters(), plain.named_parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0, msg=name)

    # From there on two replicas, in bfloat16, which has three digits.
    options += ["--bf16", "1", "--shard_optimizer_state", "1", "--manual_partition", "1"]
    options += ["--checkpoint_dir", str(tmp_path / "run"), "--load_full", str(tmp_path)]
    output = _run("11_gpt2", *options, processes=4)
    assert "2 partitions; 2 replica(s), 4 microbatches, cpu, bfloat16" in output
    further, norms, _ = _plain_gpt2(options, monkeypatch, loaded)
    assert further[1] < losses[1] - 0.1
    assert _printed(output) == pytest.approx(further, abs=0.03), output
    assert _printed(output, "norm") == pytest.approx(norms, rel=0.1), output
    names = {path.name for path in (tmp_path / "run" / f"step_{STEPS}_partial").iterdir()}
    for partition in (0, 1):
        assert f"model_{partition}_0.pt" in names
        assert {f"optimizer_{partition}_0_{replica}.pt" for replica in (0, 1)} <= names


def test_gpt2_in_fp16_goes_on_from_partial_checkpoints_bit_by_bit(
    transformers: Any,
    short_text: list[str],
    tmp_path: Path,
) -> None:
    # Dropout is on.
    run = ["11_gpt2", *GPT2, *short_text, "--fp16", "1", "--checkpoint_freq", "2"]
    run += ["--num_kept_checkpoints", "2", "--checkpoint_dir", str(tmp_path / "run")]
    output = _run(*run, "--model_dir", str(tmp_path / "straight"), parameters=ONE_BY_ONE)
    straight = _printed(output)
    assert straight[STEPS] < straight[1] - 0.1
    assert "loss scale 65536" in output
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert kept == {"newest", "step_4_partial", "step_6_partial"}

    (tmp_path / "run" / "newest").write_text("step_4_partial")  # as if killed soon after
    output = _run(*run, "--model_dir", str(tmp_path / "resumed"), parameters=ONE_BY_ONE)
    assert f"at step 4 of {STEPS}" in output
    assert _printed(output) == {step: straight[step] for step in (5, 6)}
    _assert_same_bits(
        _weights(tmp_path / "resumed" / "pytorch_model.bin"),
        _weights(tmp_path / "straight" / "pytorch_model.bin"),
    )
