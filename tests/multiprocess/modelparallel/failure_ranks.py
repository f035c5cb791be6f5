# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PT017
# These are no tests of pytest's, and run where it is not loaded.
"""What the ranks of test_step_failures.py do: steps in which something goes wrong somewhere.

After each of them comes a step in which nothing does: it must work, and leave nothing behind.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from equality_ranks import leftovers
from torch import Tensor, nn
from torch.autograd import Function
from torch_ranks import give_up, wait_until_given_up

WIDTH = 8
MICROBATCHES = 6
BAD = 3  # the microbatch in which things go wrong


class Broken(ValueError):
    """Of user code."""


class RaisesInBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise Broken("backward of user code")


class Part(nn.Module):
    """Does `fault` to what it computes; each rank sets that on its own copy."""

    fault: Callable[[Tensor, Tensor], Any] | None = None
    change: Callable[[Any], Any] | None = None  # of `extra`

    def __init__(self, inner: Part | None = None) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.inner = inner

    def forward(self, x: Tensor, tag: Tensor, extra: Any = None) -> Any:
        x = torch.tanh(self.dense(x))
        if self.inner is not None:
            x = self.inner(x, tag)
        if self.change is not None:
            self.change(extra)
        return x if self.fault is None else self.fault(x, tag)


class Net(nn.Module):
    """`a` is on the leader, `b` on rank 1, `c` and what `b` holds on the last rank."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Part()
        self.b = Part(Part())
        self.c = Part()
        self.way: Callable[[Net, Tensor, Tensor], Any] | None = None

    def forward(self, x: Tensor, tag: Tensor) -> Any:
        if self.way is not None:
            return self.way(self, x, tag)
        return self.c(self.b(self.a(x, tag), tag), tag)


def is_bad(tag: Tensor) -> bool:
    return int(tag[0]) == BAD


class Job:
    """One rank, with a model and a step."""

    def __init__(self, pipeline: str = "interleaved") -> None:
        import smdistributed.modelparallel.torch as smp

        self.smp = smp
        smp.init(
            {
                "partitions": int(os.environ["WORLD_SIZE"]),
                "microbatches": MICROBATCHES,
                "auto_partition": False,
                "default_partition": 0,
                "pipeline": pipeline,
            }
        )
        torch.manual_seed(5)
        self.net = Net()
        last = smp.pp_size() - 1
        smp.set_partition(self.net.b, 1)
        assert self.net.b.inner is not None
        smp.set_partition(self.net.b.inner, last)
        smp.set_partition(self.net.c, last)
        self.model = smp.DistributedModel(self.net)
        self.body: Callable[..., Any] = plain_body
        job = self

        @smp.step
        def run(model: Any, x: Tensor, tag: Tensor) -> Any:
            return job.body(model, x, tag)

        self.run = run
        generator = torch.Generator().manual_seed(9)
        self.x = torch.randn(MICROBATCHES * 2, WIDTH, generator=generator)
        self.tag = torch.arange(MICROBATCHES).repeat_interleave(2)
        self.expected = self.step()
        self.gradients = {n: p.grad.clone() for n, p in self.model.local_named_parameters()}

    @property
    def rank(self) -> int:
        return int(self.smp.pp_rank())

    def step(self) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = None
        loss: Tensor = self.run(self.model, self.x, self.tag).reduce_mean()
        return loss

    def reset(self) -> None:
        for part in self.net.modules():
            part.__dict__.pop("fault", None)
            part.__dict__.pop("change", None)
        self.net.way = None
        self.body = plain_body

    def check_well(self) -> None:
        """A step without faults gives what the first one gave."""
        self.reset()
        loss = self.step()
        assert torch.allclose(loss, self.expected, atol=1e-7), (loss, self.expected)
        for name, parameter in self.model.local_named_parameters():
            assert torch.allclose(parameter.grad, self.gradients[name], atol=1e-6), name
        left = leftovers(self.runner)
        assert not any(left.values()), left

    @property
    def runner(self) -> Any:
        from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

        return current_pipeline("a test").runner()

    def fails(self, kind: str, *texts: str, step: Callable[[], Any] | None = None) -> None:
        """The step raises `kind` on the leader and StepAborted elsewhere; all say these texts."""
        expected = kind if self.rank == 0 else "StepAborted"
        try:
            (step or self.step)()
        except Exception as error:
            told = "".join([f"{error}", *getattr(error, "__notes__", ())])
            assert type(error).__name__ == expected, traceback.format_exc() + told
            for text in texts:
                assert text in told, f"rank {self.rank}: {text!r} is not in: {told}"
            if self.rank > 0:
                assert kind in told, told
        else:
            raise AssertionError(f"the step did not fail; expected {expected}")


def plain_body(model: Any, x: Tensor, tag: Tensor) -> Tensor:
    loss: Tensor = model(x, tag).pow(2).mean()
    model.backward(loss)
    return loss


# --- checks: each on all ranks, at the same time --------------------------------------------------


def _raise(x: Tensor, tag: Tensor) -> Tensor:
    if is_bad(tag):
        raise Broken(f"tag {int(tag[0])}")
    return x


def check_forward_on_rank_1(job: Job) -> None:
    job.net.b.fault = _raise
    where = "raised on rank 1 of the pipeline, in main/b, microbatch 3"
    job.fails("Broken", "tag 3", where, "in _raise")


def check_forward_on_the_last_rank_below_rank_1(job: Job) -> None:
    assert job.net.b.inner is not None
    job.net.b.inner.fault = _raise
    last = job.smp.pp_size() - 1
    where = "main/b/inner" if last > 1 else "main/b"
    job.fails("Broken", "tag 3", f"raised on rank {last} of the pipeline, in {where}")


def check_forward_on_the_leader(job: Job) -> None:
    job.net.a.fault = _raise
    job.fails("Broken", "tag 3")


def check_what_cannot_travel(job: Job) -> None:
    class Local(RuntimeError):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    def fault(x: Tensor, tag: Tensor) -> Tensor:
        if is_bad(tag):
            raise Local(1, 2)
        return x

    job.net.b.fault = fault
    job.fails("RemoteError", "Local: 1 and 2", "rank 1 of the pipeline")


def _explode(x: Tensor, tag: Tensor) -> Tensor:
    return RaisesInBackward.apply(x) if is_bad(tag) else x  # type: ignore[no-untyped-call,no-any-return]


def check_backward_on_rank_1(job: Job) -> None:
    job.net.b.fault = _explode
    job.fails("Broken", "backward of user code", "rank 1 of the pipeline", "main/b", "microbatch 3")


def check_backward_on_the_last_rank(job: Job) -> None:
    job.net.c.fault = _explode
    where = f"rank {job.smp.pp_size() - 1} of the pipeline, in the backward pass of"
    job.fails("Broken", "backward of user code", where, "main/c", "microbatch 3")


def check_backward_on_the_leader(job: Job) -> None:
    job.net.a.fault = _explode
    job.fails("Broken", "backward of user code")


def check_body(job: Job) -> None:
    def body(model: Any, x: Tensor, tag: Tensor) -> Tensor:
        loss = plain_body(model, x, tag)
        if is_bad(tag):
            raise Broken("after the backward pass")
        return loss

    job.body = body
    job.fails("Broken", "after the backward pass")


def check_caught_by_the_body(job: Job) -> None:
    """Forward and backward errors of other ranks; what the body does then counts."""
    for fault in (_raise, _explode):
        job.reset()
        job.net.b.fault = fault

        def body(model: Any, x: Tensor, tag: Tensor) -> Tensor:
            try:
                return plain_body(model, x, tag)
            except Broken:
                assert is_bad(tag)
                return torch.full((), 100.0)

        job.body = body
        losses = job.run(job.model, job.x, job.tag)
        assert float(losses[BAD]) == 100.0
        assert all(float(loss) < 100 for n, loss in enumerate(losses) if n != BAD)
        left = leftovers(job.runner)
        assert not any(left.values()), left


def check_caught_between(job: Job) -> None:
    """Rank 1 catches what its module on the last rank raises, and goes on without."""
    inner = job.net.b.inner
    assert inner is not None
    inner.fault = _raise
    given = job.net.b.dense.register_forward_hook(lambda module, args, output: output)
    forward = job.net.b.forward

    def careful(x: Tensor, tag: Tensor, extra: Any = None) -> Any:
        try:
            return forward(x, tag, extra).clone()  # looks at the result
        except Broken:
            return torch.tanh(job.net.b.dense(x))

    job.net.b.forward = careful  # type: ignore[method-assign]
    try:
        losses = job.run(job.model, job.x, job.tag)
        assert all(torch.isfinite(loss) for loss in losses)
    finally:
        del job.net.b.forward
        given.remove()


def check_caught_with_work_under_way(job: Job) -> None:
    """Rank 1 has called the last rank when it raises; the leader catches that, and goes on."""

    def fault(x: Tensor, tag: Tensor) -> Tensor:
        if is_bad(tag):
            assert job.net.b.inner is not None
            job.net.b.inner(x, tag)  # nobody looks at the result
            raise Broken("too early")
        return x

    job.net.b.fault = fault

    def way(net: Net, x: Tensor, tag: Tensor) -> Tensor:
        x = net.a(x, tag)
        try:
            y = net.b(x, tag)
            float(y.sum())
        except Broken:
            y = torch.tanh(x)
        result: Tensor = net.c(y, tag)
        return result

    job.net.way = way
    losses = job.run(job.model, job.x, job.tag)
    assert all(torch.isfinite(loss) for loss in losses)


def check_batch_that_does_not_divide(job: Job) -> None:
    def step() -> Any:
        return job.run(job.model, job.x[:-1], job.tag[:-1])

    job.fails("ValueError", str(MICROBATCHES), step=step)


def check_data_loader(job: Job) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(job.x))
    job.fails("TypeError", "DataLoader", step=lambda: job.run(job.model, loader, job.tag))


def check_second_model(job: Job) -> None:
    try:
        job.smp.DistributedModel(nn.Linear(2, 2))
    except Exception as error:
        assert type(error).__name__ == "MultipleDistributedModelError"
        assert "first" in str(error)
    else:
        raise AssertionError("a second model was taken")


def check_outside_of_a_step(job: Job) -> None:
    for call in (
        lambda: job.model(job.x, job.tag),
        lambda: job.model.backward(job.x.sum()),
        lambda: (job.net.b if job.rank == 0 else job.net.a)(job.x, job.tag),
    ):
        try:
            call()
        except Exception as error:
            assert "outside of a step" in str(error), error
        else:
            raise AssertionError("a call outside of a step was taken")


def check_nested_steps(job: Job) -> None:
    job.body = lambda model, x, tag: job.run(model, x, tag)
    job.fails("RuntimeError", "inside of a step")


def check_unpicklable_argument(job: Job) -> None:
    job.net.way = lambda net, x, tag: net.b(x, tag, extra=threading.Lock())
    job.fails("TypeError", "lock", "cannot be pickled")


def check_sparse_argument(job: Job) -> None:
    job.net.way = lambda net, x, tag: net.b(x, tag, extra=x.to_sparse())
    job.fails("TypeError", "sparse", "cannot go to another rank")


def check_unpicklable_result(job: Job) -> None:
    job.net.b.fault = lambda x, tag: (x, threading.Lock()) if is_bad(tag) else x
    job.net.way = lambda net, x, tag: net.b(x, tag, extra=object)  # known anew each time
    job.fails("TypeError", "pickle", "rank 1 of the pipeline, in main/b")


def check_sparse_result(job: Job) -> None:
    job.net.b.fault = lambda x, tag: x.detach().to_sparse() if is_bad(tag) else x
    job.net.way = lambda net, x, tag: net.b(x, tag).clone()
    job.fails("TypeError", "sparse", "rank 1 of the pipeline, in main/b")


def check_result_that_changes(job: Job) -> None:
    job.net.b.fault = lambda x, tag: (x, x) if is_bad(tag) else x
    job.fails("RuntimeError", "main/b returned something else", "rank 1 of the pipeline")


def check_unpicklable_step_result(job: Job) -> None:
    job.body = lambda model, x, tag: (model(x, tag).sum(), threading.Lock())
    job.fails("TypeError", "what the step function returned")


def check_containers_that_differ(job: Job) -> None:
    def body(model: Any, x: Tensor, tag: Tensor) -> Any:
        loss = plain_body(model, x, tag)
        return (loss, loss) if is_bad(tag) else loss

    job.body = body
    try:
        job.step()
    except RuntimeError as error:
        assert "different containers" in str(error), error
    else:
        raise AssertionError("different containers were taken")


def check_large_argument_changed_too_early(job: Job) -> None:
    def way(net: Net, x: Tensor, tag: Tensor) -> Tensor:
        large = torch.zeros(200_000)
        y = net.b(x, tag, extra=large)
        y = net.b(x, tag, extra=large)
        large += 1
        result: Tensor = net.c(y, tag)
        return result

    job.net.way = way
    job.fails("RuntimeError", "was changed in place after it was passed", "main/b")


def _changes_and_fails(extra: Any) -> None:
    extra.append(1)
    raise Broken("later")


def check_changes_that_cannot_come_back(job: Job) -> None:
    """A module changes its argument in a way that its caller cannot follow."""
    for number, (change, make, said) in enumerate(
        (
            (lambda extra: extra.unsqueeze_(0), torch.zeros, "changed the shape of its argument"),
            (lambda extra: extra.add_(1), lambda n: torch.zeros(1).expand(n), "more than one"),
            (
                lambda extra: extra[0].add_(1),
                lambda n: (shared := torch.zeros(n), shared[1:]),
                "shares memory with another tensor",
            ),
            (lambda extra: extra.append(1), bytearray, "or a bytearray in it, which its caller"),
            (lambda extra: extra[0].append(1), lambda n: [[]] * n, "stands more than once"),
            (lambda extra: extra.add(Part), lambda n: {object(), n}, "or a set in it"),
            (lambda extra: extra.random(), random.Random, "or a Random in it"),
            (_changes_and_fails, lambda n: [n], "raised Broken after it had changed"),
        )
    ):
        job.net.b.change = change
        job.net.way = lambda net, x, tag, make=make, number=number: net.c(
            net.b(x, tag, make(number + 3)), tag
        )
        job.fails("SMPError" if "raised" in said else "RuntimeError", said)
        if "argument" in said:
            job.fails("RuntimeError", "'extra'", "main/b")


def check_argument_changed_later_than_at_first(job: Job) -> None:
    """The caller has placeholders, and does not wait for changes any more."""
    job.net.way = lambda net, x, tag: net.c(net.b(x, tag, extra=tag + 0.0), tag)
    job.step()
    job.net.b.change = lambda extra: extra.add_(1)
    job.fails("RuntimeError", "main/b changed its argument 'extra', other than at earlier calls")


def check_forward_replaced_in_a_step(job: Job) -> None:
    def replaced(which: str, net: Net, x: Tensor, tag: Tensor) -> Tensor:
        module = net.get_submodule(which)
        module.forward = lambda *args: x
        try:
            return net.c(net.b(x, tag), tag)  # type: ignore[no-any-return]
        finally:
            del module.forward

    for which in ("b", "b.inner"):
        job.net.way = functools.partial(replaced, which)
        where = f"the forward() of Part at 'main/{which.replace('.', '/')}' was replaced in a step"
        rank = 1 if which == "b" else int(job.smp.pp_size()) - 1
        job.fails("SMPError", where, f"runs on rank {rank} of the pipeline")

    def put_back(net: Net, x: Tensor, tag: Tensor) -> Tensor:
        own, net.b.forward = net.b.forward, lambda *args: x
        net.b.forward = own
        return net.c(net.b(net.a(x, tag), tag), tag)  # type: ignore[no-any-return]

    job.net.way = put_back
    job.step()


def check_parameter_of_another_rank(job: Job) -> None:
    """The root computes with what rank 1 holds; by hand, nobody knows before."""
    job.net.way = lambda net, x, tag: net.c(x @ net.b.dense.weight, tag)
    job.fails("RuntimeError", "b.dense.weight", "partition 1")


CHECKS: tuple[Callable[[Job], None], ...] = (
    check_forward_on_rank_1,
    check_forward_on_the_last_rank_below_rank_1,
    check_forward_on_the_leader,
    check_what_cannot_travel,
    check_backward_on_rank_1,
    check_backward_on_the_last_rank,
    check_backward_on_the_leader,
    check_body,
    check_caught_by_the_body,
    check_caught_between,
    check_caught_with_work_under_way,
    check_batch_that_does_not_divide,
    check_data_loader,
    check_second_model,
    check_outside_of_a_step,
    check_nested_steps,
    check_unpicklable_argument,
    check_sparse_argument,
    check_unpicklable_result,
    check_sparse_result,
    check_result_that_changes,
    check_unpicklable_step_result,
    check_containers_that_differ,
    check_large_argument_changed_too_early,
    check_changes_that_cannot_come_back,
    check_argument_changed_later_than_at_first,
    check_forward_replaced_in_a_step,
    check_parameter_of_another_rank,
)


def run_checks(rank: int, world_size: int, names: Sequence[str], folder: str) -> None:
    """All of them, one after the other; `rank0.jsonl` and so on get [name, error or ""] each."""
    job = Job()
    by_name = {check.__name__: check for check in CHECKS}
    with open(Path(folder, f"rank{rank}.jsonl"), "w", buffering=1) as file:
        for name in names:
            error = ""
            try:
                job.reset()
                by_name[name](job)
            except Exception:
                error = traceback.format_exc()
            try:
                job.check_well()
            except Exception:
                error += "\nthe next step: " + traceback.format_exc()
            file.write(json.dumps([name, error]) + "\n")
    job.smp.reset()


# --- jobs of their own ----------------------------------------------------------------------------


def _raised(call: Callable[[], Any]) -> tuple[str, str, float]:
    begin = time.monotonic()
    try:
        call()
    except BaseException as error:
        notes = "".join(getattr(error, "__notes__", ()))
        return type(error).__name__, f"{error}{notes}", time.monotonic() - begin
    return "", "", time.monotonic() - begin


def a_rank_is_killed(rank: int, world_size: int, victim: int) -> tuple[str, str, float]:
    job = Job()

    def fault(x: Tensor, tag: Tensor) -> Tensor:
        if is_bad(tag):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    [job.net.a, job.net.b, job.net.c][victim].fault = fault
    return _raised(job.step)


def a_rank_is_interrupted(
    rank: int, world_size: int, victim: int
) -> tuple[tuple[str, str, float], dict[str, int]]:
    """Ctrl-C while the victim computes, and while it waits."""
    job = Job()

    def fault(x: Tensor, tag: Tensor) -> Tensor:
        if is_bad(tag):
            os.kill(os.getpid(), signal.SIGINT)
        return x

    [job.net.a, job.net.b, job.net.c][victim].fault = fault
    told = _raised(job.step)
    return told, leftovers(job.runner)


def a_waiting_rank_is_interrupted(
    rank: int, world_size: int, victim: int
) -> tuple[str, str, float]:
    job = Job()

    def fault(x: Tensor, tag: Tensor) -> Tensor:
        if is_bad(tag):
            time.sleep(4)  # the others wait meanwhile
        return x

    job.net.c.fault = fault

    def step() -> None:
        if rank == victim:  # here, where it is heard whenever it comes
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        job.step()

    return _raised(step)


def one_rank_takes_no_step(rank: int, world_size: int) -> tuple[str, str, float]:
    job = Job()
    if rank == 1:
        wait_until_given_up()
        return "", "", 0.0
    try:
        return _raised(job.step)
    finally:
        give_up()


def failures_leave_no_memory(rank: int, world_size: int) -> list[int]:
    """Tensors alive after few failed steps and after many, which ended in all ways.

    Each time after a step that went well: until then messages of a failed one may still lie here.
    """
    job = Job()
    counts = []
    for rounds in (4, 12):
        for _ in range(rounds):
            for part, fault in ((job.net.b, _raise), (job.net.c, _explode), (job.net.a, _raise)):
                job.reset()
                part.fault = fault
                _raised(job.step)
        job.check_well()
        gc.collect()
        counts.append(sum(isinstance(each, Tensor) for each in gc.get_objects()))
    job.smp.reset()
    return counts
