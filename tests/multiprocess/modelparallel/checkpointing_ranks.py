# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_activation_checkpointing.py do.

A model is run as it is, then with checkpoints: the same model, weights, batch and random numbers,
so losses and gradients have the same bits. Without dropout they are also those of the module in one
piece.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from heard import listen
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

WIDTH = 8
MICROBATCHES = 4


class Kept:
    """Which tensors of blocks on this rank live when its first backward pass of a step begins."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.made: dict[str, list[StorageWeakRef]] = {"inside": [], "between": []}
        self.found = {"inside": 0, "between": 0}
        self.is_counted = False

    def note(self, kind: str, tensor: Tensor) -> None:
        self.made[kind].append(StorageWeakRef(tensor.untyped_storage()))

    def count(self, _: Any = None) -> None:
        if not self.is_counted:
            self.is_counted = True
            for kind, made in self.made.items():
                self.found[kind] = sum(not each.expired() for each in made)


kept = Kept()


class Block(nn.Module):
    """Drops out; keeps what is inside, and its result, which the next one keeps as well."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first = nn.Linear(WIDTH, 4 * WIDTH)
        self.drop = nn.Dropout(0.3)
        self.second = nn.Linear(4 * WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if torch._C._current_graph_task_id() != -1:  # it computes again
            kept.count()
        inner = torch.tanh(self.first(self.norm(x)))
        result = x + self.drop(self.second(inner))
        kept.note("inside", inner)
        kept.note("between", result)
        if result.requires_grad:
            result.register_hook(kept.count)
        return result


class Row(nn.Module):
    """A row of blocks after and before modules of partition 0."""

    def __init__(self, places: list[int | None]) -> None:
        super().__init__()
        import smdistributed.modelparallel.torch as smp

        self.enter = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(*(nn.Tanh() if p is None else Block() for p in places))
        self.leave = nn.Linear(WIDTH, WIDTH)
        self.strategy: str | None = None
        self.calls_layers = False
        for layer, place in zip(self.body, places, strict=True):
            if place is not None:
                smp.set_partition(layer, min(place, smp.pp_size() - 1))
        if set(places) == {1}:
            smp.set_partition(self.body, smp.pp_size() - 1)

    def forward(self, x: Tensor) -> Tensor:
        from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint_sequential

        x = self.enter(x)
        if self.strategy is not None:
            x = checkpoint_sequential(self.body, x, strategy=self.strategy)
        elif self.calls_layers:
            for layer in self.body:
                x = layer(x)
        else:
            x = self.body(x)
        result: Tensor = self.leave(x)
        return result


class Talkative(nn.Module):
    """Takes and returns what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, state: dict[str, Any], *, flags: tuple[bool, ...] = ()) -> Any:
        assert flags == (True, False)
        mask = state["mask"]
        y = self.block(x * mask) + self.gate(state["first"])
        return y, {"mask": mask, "first": y, "seen": [*state["seen"], x.mean()]}


class Called(nn.Module):
    """Single calls of modules on both partitions: arguments of any kind, one module twice."""

    def __init__(self) -> None:
        super().__init__()
        import smdistributed.modelparallel.torch as smp

        self.parts = nn.ModuleList(Talkative() for _ in range(4))
        self.twice = Block()
        for number, part in enumerate(self.parts):
            smp.set_partition(part, (number + 1) % smp.pp_size())
        smp.set_partition(self.twice, smp.pp_size() - 1)
        self.recomputes = False

    def forward(self, x: Tensor) -> Tensor:
        from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return (
                checkpoint(module, *args, **kwargs) if self.recomputes else module(*args, **kwargs)
            )

        mask = (x > -1).to(x.dtype)  # without gradient, as x is
        state: dict[str, Any] = {"mask": mask, "first": x, "seen": []}
        for part in self.parts:
            x, state = call(part, x, state, flags=(True, False))
        return call(self.twice, call(self.twice, x)) + sum(state["seen"])


def by_hand(smp: Any, **config: Any) -> None:
    smp.init(
        {
            "partitions": 2 if dist.get_world_size() > 1 else 1,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
            "ddp": dist.get_world_size() > 2,
            **config,
        }
    )


class Runner:
    """Steps of one model."""

    def __init__(self, smp: Any, module: nn.Module, modes: Any = contextlib.nullcontext) -> None:
        self.smp = smp
        self.model = smp.DistributedModel(module)

        @smp.step
        def step(model: Any, x: Tensor) -> Tensor:
            with modes():
                loss: Tensor = model(x).float().pow(2).mean()
            model.backward(loss)
            return loss

        self.step = step

    def batch(self) -> Tensor:
        generator = torch.Generator().manual_seed(3 + self.smp.rdp_rank())
        return torch.randn(2 * MICROBATCHES, WIDTH, generator=generator)

    def run(self, batch: Tensor | None = None) -> dict[str, Tensor]:
        """Losses and gradients of a step; fills `kept.found`."""
        for parameter in self.model.parameters():
            parameter.grad = None
        kept.begin()
        torch.manual_seed(11)
        results = {
            "losses": self.step(self.model, self.batch() if batch is None else batch).stack()
        }
        for name, parameter in self.model.local_named_parameters():
            assert parameter.grad is not None, name
            results[name] = parameter.grad.clone()
        return results


def blocks(module: nn.Module) -> list[Block]:
    return [part for part in module.modules() if isinstance(part, Block)]


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], what: Any = "") -> None:
    """Losses have the same bits; gradients are sums in any order."""
    assert torch.equal(found["losses"], expected["losses"]), what
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6), (what, name)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], what: Any = "") -> None:
    differing = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not differing, (what, differing)


def assert_as_whole(smp: Any, runner: Runner, whole: nn.Module, batch: Tensor) -> None:
    """Without dropout: losses and gradients of the module in one piece."""
    for block in (*blocks(runner.model), *blocks(whole)):
        block.drop.p = 0.0
    found = runner.run(batch)
    replicas = smp.rdp_size()
    losses = []
    for part in torch.cat(smp.allgather(batch, smp.RDP_GROUP)).split(2):
        loss = whole(part).pow(2).mean()
        (loss / MICROBATCHES / replicas).backward()
        losses.append(loss.detach())
    first = smp.rdp_rank() * MICROBATCHES
    mine = torch.stack(losses[first : first + MICROBATCHES])
    assert torch.allclose(found.pop("losses"), mine, rtol=1e-6)
    for name, gradient in found.items():
        expected = whole.get_parameter(name).grad
        assert expected is not None
        bound = 1e-6 * float(expected.abs().max()) + 2e-7
        assert float((gradient - expected).abs().max()) <= bound, name


# --- cases ----------------------------------------------------------------------------------------

# By place of the layers: by strategy how many results of blocks are kept on each partition, for
# each microbatch: those that the next block gets there, or that are returned to another rank. None:
# a layer without parameters, which goes with the row it is in.
Counts = tuple[int, int] | None
ROWS: dict[str, tuple[list[int | None], dict[str, Counts]]] = {
    "on both": ([0, 1, 1, 1, 0, 1], {"each": (0, 4), "contiguous": (0, 2), "group_2": (0, 3)}),
    "on the other": ([1, 1, 1, 1], {"each": (0, 4), "contiguous": (0, 1), "group_3": (0, 2)}),
    "with others": ([0, None, 0, None, 1, None, 1, None], {"each": None, "contiguous": None}),
}


def rows_of_layers(smp: Any, ways: tuple[str, ...] = ("called", "set")) -> None:
    """Each strategy, in a call and set; the plain run first."""
    for title, (places, strategies) in ROWS.items():
        for strategy, counts in strategies.items():
            for way in ways:
                what = (title, strategy, way)
                by_hand(smp, pipeline="simple")
                torch.manual_seed(1)
                module = Row(places)
                torch.manual_seed(1)
                whole = Row(places)
                runner = Runner(smp, module)
                module.calls_layers = way == "called"  # else there is one row of random numbers
                for _ in range(2):
                    plain = runner.run()
                # Alone, a microbatch goes back before the next one begins.
                is_alone = smp.pp_size() == 1
                times = 1 if is_alone else MICROBATCHES
                num_blocks = len(places) - places.count(None)
                num_here = num_blocks if is_alone else places.count(smp.pp_rank())
                assert kept.found["inside"] == times * num_here, (what, kept.found)
                if way == "set":
                    smp.set_activation_checkpointing(module.body, strategy=strategy)
                else:
                    module.strategy = strategy
                # Where results are waited for, at first, microbatches may go back in another order.
                assert_close(runner.run(), plain, what)
                assert_same(runner.run(), plain, what)
                assert kept.found["inside"] == 0, (what, kept.found)
                if not is_alone and counts is not None:
                    between = times * counts[smp.pp_rank()]
                    assert kept.found["between"] == between, (what, kept.found)
                assert_as_whole(smp, runner, whole, runner.batch())
                del runner
                smp.reset()
                dist.barrier()


def single_calls(smp: Any) -> None:
    """Interleaved: a microbatch computes again between forward passes of others."""
    by_hand(smp, active_microbatches=3)
    torch.manual_seed(2)
    module = Called()
    torch.manual_seed(2)
    whole = Called()
    runner = Runner(smp, module)
    for _ in range(2):
        plain = runner.run()
    before = [block.calls for block in blocks(module)]
    module.recomputes = True
    for _ in range(2):
        assert_close(runner.run(), plain)
    after = [block.calls for block in blocks(module)]
    here = [part in set(runner.model.local_modules()) for part in blocks(module)]
    assert [2 * num for num in before] == [
        num - old if is_here else 0 for num, old, is_here in zip(after, before, here, strict=True)
    ], "each is called again, where it is"
    assert_as_whole(smp, runner, whole, runner.batch())
    del runner
    smp.reset()
    dist.barrier()


def settings(smp: Any) -> None:
    """Before wrapping, on what the wrapped model shows, after the first step; nested; modes."""

    @contextlib.contextmanager
    def modes() -> Iterator[None]:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16):
                yield
        finally:
            torch.set_default_dtype(torch.float32)

    for cast in (contextlib.nullcontext, modes):
        by_hand(smp)
        torch.manual_seed(4)
        module = Called()
        runner = Runner(smp, module, cast)
        for _ in range(2):
            plain = runner.run()
        del runner
        smp.reset()
        by_hand(smp)
        torch.manual_seed(4)
        module = Called()
        smp.set_activation_checkpointing(module.parts[0])
        runner = Runner(smp, module, cast)
        smp.set_activation_checkpointing(runner.model.module.parts[1])
        runner.run()
        for part in (module.parts[1].block, *module.parts[2:], module.twice):
            smp.set_activation_checkpointing(part)
        before = [block.calls for block in blocks(module)]
        for _ in range(2):
            assert_close(runner.run(), plain)
        calls = [block.calls - old for block, old in zip(blocks(module), before, strict=True)]
        # Nested ones: a third time, as the outer one computes again without keeping.
        times = [2, 3, 2, 2, 4]
        here = [part in set(runner.model.local_modules()) for part in blocks(module)]
        expected = [2 * MICROBATCHES * n * is_here for n, is_here in zip(times, here, strict=True)]
        assert calls == expected, (calls, expected)

        @smp.step
        def evaluate(model: Any, x: Tensor) -> Tensor:
            with torch.no_grad():
                result: Tensor = model(x)
            return result

        evaluate(runner.model, runner.batch())
        once = [1, 1, 1, 1, 2]
        again = [block.calls - old for block, old in zip(blocks(module), before, strict=True)]
        plain_calls = [MICROBATCHES * n * is_here for n, is_here in zip(once, here, strict=True)]
        assert [n - c for n, c in zip(again, calls, strict=True)] == plain_calls
        del runner
        smp.reset()
        dist.barrier()


def divided_modules(smp: Any) -> None:
    """By hand it is an error, at the first step, at the call, and when set later.

    So is what other ranks do not have.
    """
    from smdistributed.modelparallel.exceptions import ConfigError, StepAborted
    from smdistributed.modelparallel.torch.patches.checkpoint import checkpoint

    class Divided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()
            self.called = ""

        def forward(self, x: Tensor) -> Tensor:
            if self.called == "the pair":
                x = checkpoint(self.pair, x)
            elif self.called == "what is not in the model":
                x = checkpoint(nn.Sequential(self.pair.other), x)
            else:
                x = self.pair(x)
            return x

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Block(), Block()
            smp.set_partition(self.other, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.other(self.one(x))
            return result

    text = "main/pair is to be checkpointed, but its parts are in partitions 0, 1"
    for way in ("before", "the pair", "what is not in the model", "after"):
        by_hand(smp)
        module = Divided()
        runner = Runner(smp, module)
        if way == "before":
            smp.set_activation_checkpointing(module.pair)
            with pytest.raises(ConfigError, match=text):
                runner.run()
        elif way != "after":
            module.called = way
            error = (
                (ConfigError, text) if way == "the pair" else (ValueError, "is no module of the")
            )
            kind = error[0] if smp.pp_rank() == 0 else StepAborted
            with pytest.raises(kind, match=error[1]):
                runner.run()
        else:
            runner.run()
            with pytest.raises(ConfigError, match=text):
                smp.set_activation_checkpointing(module.pair)
            runner.run()
        del runner
        smp.reset()
        dist.barrier()


def language_model(smp: Any) -> None:
    """GPT-2 of Hugging Face, divided by cost: all of it set, its own switch, and nothing."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4, n_embd=32, n_head=2, vocab_size=61, n_positions=16, use_cache=False
    )
    words = torch.randint(0, 61, (2 * MICROBATCHES, 12), generator=torch.Generator().manual_seed(1))
    results: dict[str, dict[str, Tensor]] = {}
    for way in ("plain", "set", "reentrant", "not reentrant"):
        heard = listen()
        by_hand(smp, auto_partition=True)
        torch.manual_seed(0)
        module = GPT2LMHeadModel(config)
        if way == "set":
            for block in (module.transformer, *module.transformer.h):
                smp.set_activation_checkpointing(block)
        elif way != "plain":
            kwargs = {"use_reentrant": way == "reentrant"}
            module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
        model = smp.DistributedModel(module).train()

        @smp.step
        def step(model: Any, words: Tensor) -> Tensor:
            loss: Tensor = model(input_ids=words, labels=words).loss
            model.backward(loss)
            return loss

        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = None
            torch.manual_seed(5)
            found = {"losses": step(model, words).stack()}
            found |= {n: p.grad for n, p in model.local_named_parameters() if p.grad is not None}
            assert_close(found, results.setdefault("plain", found), way)
        logging.getLogger("smdistributed").removeHandler(heard)
        of_hooks = [text for text in heard.texts if "within torch.utils.checkpoint" in text]
        assert len(of_hooks) == (way == "not reentrant" and smp.pp_rank() == 0), heard.texts
        warned = [text for text in heard.texts if "main/transformer is to be" in text]
        assert len(warned) == (way == "set" and smp.rank() == 0), heard.texts
        del model
        smp.reset()
        dist.barrier()


# --- all architectures of the equality test -------------------------------------------------------

# Not those that change an argument in place, which is what they compute again from.
UNFIT = ("in_place", "resnet")


def architectures(smp: Any) -> None:
    """Every module of every architecture is set, many of them divided; compared with none set."""
    from architectures import ARCHITECTURES
    from equality_ranks import Case, check_case

    wrong = []
    for name, architecture in list(ARCHITECTURES.items()):
        if name in UNFIT:
            continue
        made: list[nn.Module] = []

        def make(architecture: Any = architecture, made: list[nn.Module] = made) -> nn.Module:
            module: nn.Module = architecture.make()
            made.append(module)
            if len(made) == 1:  # the second one is what it is compared with
                for part in module.modules():
                    if next(part.children(), None) is not None and part is not module:
                        smp.set_activation_checkpointing(part)
            return module

        ARCHITECTURES[name] = dataclasses.replace(architecture, make=make)
        try:
            check_case(Case(name, 2, 3, "auto", "interleaved"))
        except Exception:
            wrong.append(f"{name}: {traceback.format_exc()[-1500:]}")
        dist.barrier()
    assert not wrong, "\n".join(wrong)


CASES: dict[int, list[Callable[[Any], None]]] = {
    1: [rows_of_layers, single_calls],
    2: [rows_of_layers, single_calls, settings, divided_modules, language_model, architectures],
    4: [single_calls],
}


def run_cases(rank: int, world_size: int) -> dict[str, str]:
    """By name what went wrong; those after one that hangs are not reached."""
    import smdistributed.modelparallel.torch as smp

    dist.init_process_group("gloo")
    found = {}
    for case in CASES[world_size]:
        try:
            case(smp)
            found[case.__name__] = ""
        except Exception:
            found[case.__name__] = traceback.format_exc()
            smp.reset()
        dist.barrier()
    return found
