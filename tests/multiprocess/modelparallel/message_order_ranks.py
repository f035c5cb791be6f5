# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_message_order.py do: steps in which messages come in any order.

Executors are used without what lies above them, so that a new one, which has yet to learn what
modules return, costs nothing. Each *course* is some steps of a new runner, in the order of events
that its seed names (ordered_channel.py). A step is right if each rank has the results, errors and
gradients of one process, and nothing is left over.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import random_programs
import torch
from equality_ranks import leftovers
from failure_ranks import Broken, RaisesInBackward
from ordered_channel import (
    Order,
    OrderedChannel,
    RandomOrder,
    Stuck,
    Turn,
    others_first,
    others_last,
)
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named

WIDTH = 3
WIDE = 1000  # larger than what travels with the gradients
MICROBATCHES = 4
BAD = 2  # the microbatch in which things go wrong
TOLERANCE = 1e-10  # float64: sums of gradients in another order

Back = Callable[[Tensor], None]
Way = Callable[["Net", Tensor, Back], Any]


class Recomputed(Function):
    """A checkpoint; torch's own imports for seconds."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class Part(nn.Module):
    """Does `fault` to what it computes."""

    fault: Callable[[Tensor], Tensor] | None = None

    def __init__(self, inner: Part | None = None, width: int = WIDTH) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, width, dtype=torch.float64)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.dense(x))
        if self.inner is not None:
            y = self.through(y)
        return y if self.fault is None else self.fault(y)

    def through(self, y: Tensor) -> Tensor:
        """What the inner part makes of it, and itself."""
        assert self.inner is not None
        return self.inner(y) + y  # type: ignore[no-any-return]


class Careful(Part):
    """Goes on without its inner part where that fails."""

    def through(self, y: Tensor) -> Tensor:
        try:
            return super().through(y).clone()  # looks at it
        except Broken:
            return y


class Hasty(Part):
    """Has called for much, and looked at nothing, when its fault comes."""

    def __init__(self) -> None:
        super().__init__(Part(Part()))
        self.other = Part()

    def through(self, y: Tensor) -> Tensor:
        assert self.inner is not None
        return self.inner(self.other(self.inner(y)))  # type: ignore[no-any-return]


class Net(nn.Module):
    """`a` is on the leader. A rank's part may hold one of another rank, also of the leader."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Part()
        self.b = Part(Part())
        self.c = Part()
        self.d = Part(Part())
        self.e = Part(Part())
        self.careful = Careful(Part())
        self.hasty = Hasty()
        self.far = Part(Part(Part()))
        self.wide = Part(width=WIDE)
        self.versatile = random_programs.parts()

    def owners(self, size: int) -> dict[nn.Module, int]:
        last = size - 1
        between = last if last > 1 else 0
        owners: dict[nn.Module, int] = {self: 0, **random_programs.owners(self.versatile, size)}
        # By part: its owner, that of its inner part, and so on.
        for top, ranks in (
            (self.a, [0]),
            (self.b, [1, last]),
            (self.c, [last]),
            (self.d, [1, 0]),
            (self.e, [last, 1]),
            (self.careful, [1, between]),
            (self.far, [last, 0, 1]),
            (self.hasty, [1, between, 0]),
            (self.hasty.other, [0]),
            (self.wide, [last]),
        ):
            part: Part | None = top
            for rank in ranks:
                assert part is not None
                owners[part] = owners[part.dense] = rank
                part = part.inner
        return owners


# --- bodies: what is done with one microbatch; the same in one process ----------------------------


def chain(net: Net, x: Tensor, back: Back) -> Any:
    loss = net.c(net.b(net.a(x))).pow(2).mean()
    back(loss)
    return loss


def skips(net: Net, x: Tensor, back: Back) -> Any:
    """From each part to all later ones; d calls the leader meanwhile."""
    y = net.a(x)
    z = net.b(y)
    u = net.c(z + y)
    v = net.d(u + z)
    w = net.e(v * u + x)
    loss = (w + v + u + z + y).pow(2).mean()
    back(loss)
    return loss


def fans(net: Net, x: Tensor, back: Back) -> Any:
    """One value for many, and many for one; the last called is the first used."""
    y = net.b(x)
    p, q, r = net.c(y), net.e(y), net.d(y)
    loss = functional.mse_loss(net.c(r + q), p) + (net.b(q) * y).sum()
    back(loss)
    return loss


def looks(net: Net, x: Tensor, back: Back) -> Any:
    """The way depends on values."""
    y = net.b(x)
    z = net.c(y) if float(y.sum()) > 0 else net.d(y)
    w = net.a(z)
    u = net.e(w + y)
    total = float(u.sum())
    loss = (u * z).mean()
    back(loss)
    return loss, total


def looks_late(net: Net, x: Tensor, back: Back) -> Any:
    """At what is small and what is large, when gradients are through."""
    y, z = net.wide(net.b(x)), net.d(x)
    w = net.wide(z)
    loss = net.c(z).mean() + y.mean() + w.pow(2).sum()
    back(loss)
    return loss, float(y.sum()), z.detach().clone()


def in_two(net: Net, x: Tensor, back: Back) -> Any:
    """Two backward passes, which have nothing in common but parameters."""
    first = net.c(net.b(x)).mean()
    back(first)
    second = net.b(net.d(x)).pow(2).mean()
    third = net.e(x)
    back(second)
    return first, second, float(third.sum())


def one_after_the_other(net: Net, x: Tensor, back: Back) -> Any:
    """Two losses, then two backward passes; both go to one rank, from the leader's own parts."""
    first = net.c(net.a(x)).mean()
    second = net.c(net.a(x * 2)).pow(2).mean()
    third = net.b(x).sum()
    back(first)
    seen = float(second)
    back(second)
    back(third)
    return first, second, seen


def looked_at_between(net: Net, x: Tensor, back: Back) -> Any:
    """What the second loss is made of is looked at after the first backward pass, or not at all."""
    y, z = net.wide(net.d(x)), net.e(net.a(x))
    first = net.c(net.b(x)).pow(2).mean()
    back(first)
    second = y.pow(2).mean() + float(z.sum())
    back(second)
    back(net.c(z).sum() + z.clone().mean())
    return first, second


def with_a_neighbour(net: Net, x: Tensor, back: Back) -> Any:
    """Programs without inputs that require grad are one, and go back more than once."""
    y, z = net.b(x), net.b(x * 2)
    first, second = net.c(y).mean(), net.c(z).pow(2).mean()
    back(first)
    back(second)
    return first, second


def teacher(net: Net, x: Tensor, back: Back) -> Any:
    with torch.no_grad():
        target = net.e(net.b(x))
    loss = functional.mse_loss(net.b(net.c(net.a(x))), target)
    back(loss)
    return loss


def unused(net: Net, x: Tensor, back: Back) -> Any:
    """Nobody looks at some results, and some have no gradient."""
    net.d(x)
    net.e(net.b(x))
    y = net.b(x)
    net.wide(y)
    kept = net.c(y)
    loss = net.d(net.a(x)).mean()
    back(loss)
    return loss, kept


def recomputed(net: Net, x: Tensor, back: Back) -> Any:
    """Calls come again, in the middle of a backward pass."""
    y = net.a(x)
    z = Recomputed.apply(lambda t: net.c(net.b(t) + t), y)
    loss = net.d(z + y).pow(2).mean()
    back(loss)
    return loss


def there_and_back(net: Net, x: Tensor, back: Back) -> Any:
    """Ranks that call others for others, beside what they are called for directly."""
    y = net.far(net.b(x))
    loss = net.d(x).mean() + net.far(x).mean() + net.c(y).pow(2).sum()
    back(loss)
    return loss


def evaluated(net: Net, x: Tensor, back: Back) -> Any:
    with torch.no_grad():
        y = net.b(net.a(x))
        return net.c(y + net.d(x)), y


def careful(net: Net, x: Tensor, back: Back) -> Any:
    loss = net.c(net.careful(net.a(x))).pow(2).mean()
    back(loss)
    return loss


def hasty(net: Net, x: Tensor, back: Back) -> Any:
    y = net.hasty(net.b(x))
    loss = (net.c(y) + y).pow(2).mean()
    back(loss)
    return loss


WAYS: tuple[Way, ...] = (
    chain,
    skips,
    fans,
    looks,
    looks_late,
    in_two,
    one_after_the_other,
    looked_at_between,
    with_a_neighbour,
    teacher,
    unused,
    recomputed,
    there_and_back,
    evaluated,
    careful,
    hasty,
)


def random_way(seed: int) -> Way:
    """Parts called in any order with any earlier values, looked at or not; up to three losses."""

    def way(net: Net, x: Tensor, back: Back) -> Any:
        choose = random.Random(seed)
        values: list[Tensor] = [x]
        relatives: list[set[int]] = [set()]  # what has something in common; not the input
        seen = 0.0
        parts = [net.a, net.b, net.c, net.d, net.e, net.careful, net.far, net.hasty]
        for _ in range(choose.randint(2, 6)):
            inputs = choose.sample(range(len(values)), min(len(values), choose.randint(1, 3)))
            given = functools.reduce(torch.add, [values[number] for number in inputs])
            if choose.random() < 0.1:
                given = given.detach()
            related = {len(values)}.union(*(relatives[number] for number in inputs))
            relatives = [related if related & each else each for each in relatives] + [related]
            if choose.random() < 0.1:
                with torch.no_grad():
                    values.append(choose.choice(parts)(given))
            else:
                values.append(choose.choice(parts)(given))
            if choose.random() < 0.15:
                seen += float(choose.choice(values).sum())
        left = choose.sample(range(1, len(values)), choose.randint(1, len(values) - 1))
        losses, is_late = [], choose.random() < 0.5
        late = choose.choice(values)
        while left and len(losses) < 3:
            # What goes back once must not go back again: so the next loss has nothing of it.
            used = left[: choose.randint(1, len(left))]
            gone = set().union(*(relatives[number] for number in used))
            left = [number for number in left if number not in gone]
            loss = functools.reduce(torch.add, [values[number].pow(2).mean() for number in used])
            losses.append(loss)
            if is_late and loss.requires_grad:
                back(loss)
            if choose.random() < 0.15:
                seen += float(choose.choice(values).sum())
        if choose.random() < 0.5 or not losses[0].requires_grad:
            late = late.detach() * 2
        for loss in losses:
            if not is_late and loss.requires_grad:
                back(loss)
        return *losses, seen, float(late.sum())

    way.__name__ = f"random_way({seed})"
    return way


def kept_from_raising(way: Way) -> Way:
    """The same, but an error ends the microbatch only."""

    def kept(net: Net, x: Tensor, back: Back) -> Any:
        try:
            return way(net, x, back)
        except Broken:
            return 0.0

    kept.__name__ = f"kept_from_raising({way.__name__})"
    return kept


def caught(net: Net, x: Tensor, back: Back) -> Any:
    """What the body does when it has failed counts; among it further calls."""
    try:
        return chain(net, x, back)
    except Broken:
        loss = net.d(net.a(x)).sum()
        back(loss)
        return loss


def caught_looking(net: Net, x: Tensor, back: Back) -> Any:
    """An error that comes out of a look; other work is under way, and what was seen is there."""
    y = net.e(x).clone()
    net.d(x)
    try:
        z = net.b(y)
        float(z.sum())
    except Broken:
        z = y
    loss = net.c(z).mean()
    back(loss)
    return loss


def caught_hasty(net: Net, x: Tensor, back: Back) -> Any:
    """What others were called for by a part that has failed is dropped; more of the same comes."""
    try:
        return hasty(net, x, back)
    except Broken:
        loss = net.c(net.e(x)).mean()
        back(loss)
        return loss


def caught_both(net: Net, x: Tensor, back: Back) -> Any:
    """Two ranks fail in one backward pass; that is one error, whenever the other one comes."""
    y, z = net.d(x), net.e(x)
    seen = float(y.sum()) + float(z.sum())  # so that they are no parts of what follows
    loss = (y + z).mean()
    with contextlib.suppress(Broken):
        back(loss)
    return loss, seen, float(net.b(x).sum()), float(net.c(x).sum())


def caught_then_back_again(net: Net, x: Tensor, back: Back) -> Any:
    """A backward pass that has failed, and another one that has a part in common with it."""
    y = net.b(x)
    seen = float(y.sum())
    first, second = net.e(y).mean(), net.d(y)
    try:
        back(first)
        loss = first
    except Broken:
        loss = second.sum()
        back(loss)
    return loss, seen


def crossing(net: Net, x: Tensor, back: Back) -> Any:
    """A backward pass that waits here for a gradient while another one, asked for before, fails."""
    y = net.b(x)
    p = net.c(net.a(x))
    seen = float(p.sum())
    z = net.e(y)
    loss = (net.d(p) + net.d(z)).mean()
    back(loss)
    return loss, seen


def raises_before(net: Net, x: Tensor, back: Back) -> Any:
    loss = net.c(net.b(x)).mean()
    if is_bad_body(net):
        raise Broken("of the body")
    back(loss)
    return loss


def raises_after(net: Net, x: Tensor, back: Back) -> Any:
    loss = skips(net, x, back)
    if is_bad_body(net):
        raise Broken("of the body")
    return loss


def refused(net: Net, x: Tensor, back: Back) -> Any:
    """The step ends before it begins, see `Rank._run()`."""
    raise Broken("of the batch")


# --- faults ---------------------------------------------------------------------------------------

# The microbatch under way; set by the one who runs it.
microbatch: Callable[[], int] = int


def is_bad_body(net: Net) -> bool:
    return microbatch() == BAD


def fails(y: Tensor) -> Tensor:
    if microbatch() == BAD:
        raise Broken("in forward")
    return y


def fails_always(y: Tensor) -> Tensor:
    raise Broken("in forward")


def fails_in_backward(y: Tensor) -> Tensor:
    return RaisesInBackward.apply(y) if microbatch() == BAD else y  # type: ignore[no-untyped-call,no-any-return]


@dataclasses.dataclass(frozen=True)
class Step:
    """What is done with a batch.

    Attributes:
        part, fault: of the part with that name; or of several.
        told: what the error says, on all ranks.
        is_known: all steps with this runner do the same, so that the last backward pass can be
            foreseen.
        leeway: "gradients" may be others, an "error" may come again: errors come later than in one
            process, and what is asked of a rank together fails together.
    """

    way: Way
    pipeline: str = "interleaved"
    bound: int = MICROBATCHES
    part: str = ""
    fault: Callable[[Tensor], Tensor] | None = None
    told: tuple[str, ...] = ()
    is_known: bool = False
    leeway: str = ""

    def __str__(self) -> str:
        fault = f", {self.part} {getattr(self.fault, '__name__', '')}" if self.part else ""
        return f"{self.way.__name__} ({self.pipeline}, {self.bound}{fault})"


REFUSED = Step(refused, told=("of the batch",))


def failures(size: int) -> tuple[Step, ...]:
    """Steps that must fail on all ranks, saying where."""
    last = size - 1

    def at(rank: int, part: str) -> tuple[str, ...]:
        return f"raised on rank {rank} of the pipeline", part, f"microbatch {BAD} ---"

    return (
        Step(chain, part="b", fault=fails, told=at(1, "b")),
        Step(chain, part="b", fault=fails_in_backward, told=at(1, "b")),
        Step(skips, part="b", fault=fails, told=at(1, "b")),
        Step(skips, part="e", fault=fails_in_backward, told=at(last, "e")),
        Step(skips, part="d.inner", fault=fails, told=at(0, "d.inner")),
        Step(skips, part="d.inner", fault=fails_in_backward, told=at(0, "d.inner")),
        Step(chain, part="c", fault=fails_always, told=("in forward",)),
        Step(fans, part="e.inner", fault=fails, told=("raised on rank 1 of", "in e")),
        Step(looks, part="e", fault=fails, told=at(last, "e")),
        Step(in_two, part="d", fault=fails_in_backward, told=at(1, "d")),
        Step(unused, part="wide", fault=fails, told=at(last, "wide")),
        Step(teacher, part="e", fault=fails, told=at(last, "e")),
        Step(recomputed, part="c", fault=fails_in_backward, told=at(last, "c")),
        Step(evaluated, part="c", fault=fails, told=at(last, "c")),
        Step(chain, part="a", fault=fails, told=("in forward",)),
        Step(chain, part="b c", fault=fails_in_backward, told=at(last, "c")),
        Step(fans, part="d e", fault=fails, told=("in forward",)),
        Step(there_and_back, part="far.inner.inner", fault=fails, told=at(1, "far.inner.inner")),
        Step(there_and_back, part="far.inner", fault=fails_in_backward, told=at(0, "far.inner")),
        Step(crossing, part="e", fault=fails_in_backward, told=at(last, "e")),
        REFUSED,
        Step(raises_before, told=("of the body",)),
        Step(raises_after, told=("of the body",)),
    )


CAUGHT: tuple[Step, ...] = (
    Step(caught, part="b", fault=fails),
    Step(caught, part="b", fault=fails_in_backward),
    Step(caught, part="c", fault=fails),
    Step(caught, part="b.inner", fault=fails),
    Step(caught_looking, part="b", fault=fails),
    Step(caught_looking, part="b.inner", fault=fails),
    Step(careful, part="careful.inner", fault=fails),
    Step(caught_hasty, part="hasty", fault=fails),
    Step(caught_hasty, part="hasty", fault=fails_in_backward),
    Step(caught_hasty, part="hasty.inner", fault=fails),
    Step(caught_hasty, part="hasty.other", fault=fails_in_backward, leeway="gradients"),
    Step(caught_both, part="d e", fault=fails_in_backward),
    Step(caught_then_back_again, part="e", fault=fails_in_backward, leeway="error"),
)


# --- a rank ---------------------------------------------------------------------------------------


@dataclasses.dataclass
class Expected:
    """Of one process."""

    results: list[Any]
    gradients: dict[str, Tensor | None]
    error: Broken | None


class Rank:
    """One rank, its model, and the same model whole."""

    def __init__(self, native: Any, rank: int, size: int, folder: str) -> None:
        self.rank = rank
        self.size = size
        self.channel = OrderedChannel(native, rank, size, folder)
        torch.manual_seed(1)
        self.net = Net()
        self.whole = copy.deepcopy(self.net)
        self.owners = self.net.owners(size)
        owner_of = {id(p): o for m, o in self.owners.items() for p in m.parameters(recurse=False)}
        self.local = {n for n, p in self.net.named_parameters() if owner_of[id(p)] == rank}
        self.inputs = torch.randn(MICROBATCHES, 2, WIDTH, dtype=torch.float64)
        self.runner: Any = None
        self.digest = self.num_noticed = 0
        self._num_late: dict[str, int] = {}
        for name, parameter in self.net.named_parameters():
            parameter.register_post_accumulate_grad_hook(functools.partial(self._note, name))

    def _note(self, name: str, parameter: Tensor) -> None:
        if self._is_noticed:
            self._num_late[name] = self._num_late.get(name, 0) + 1

    def renew(self) -> None:
        """A new runner, that has learned nothing."""
        from smdistributed.modelparallel.torch.pipeline.runner import Runner

        before = self.runner
        if before is not None:
            before.close()
        names = [name for name, _ in self.net.named_modules()]
        self.runner = runner = Runner(
            self.rank,
            self.size,
            self.channel,
            list(self.net.modules()),
            names,
            self.owners,
            torch.device("cpu"),
            predecessor=before,
        )
        self.channel.describe = runner._activities.awaited

    @functools.cache  # noqa: B019 -- as long as the process
    def expected(self, step: Step) -> Expected:
        """What one process does, if `back` adds gradients up."""
        global microbatch
        self.whole.zero_grad()
        results = []
        error = None
        with _fault(self.whole, step):
            for number, x in enumerate(self.inputs):
                microbatch = functools.partial(int, number)
                try:
                    results.append(_plain(step.way(self.whole, x, _back_here)))
                except Broken as raised:
                    error = raised
                    break
        gradients = {
            n: None if p.grad is None else p.grad.clone() for n, p in self.whole.named_parameters()
        }
        return Expected(results, gradients, error)

    def follow(self, order: Order, steps: Sequence[Step]) -> list[str]:
        """Does the steps. Returns: what was wrong."""
        wrong = []
        self.channel.begin(order)
        if self.channel.is_over:
            wrong.append("not reached, as an earlier course got stuck")
            steps = ()
        for number, step in enumerate(steps):
            try:
                found = self.check(step)
            except Stuck as error:
                wrong.append(f"step {number}, {step}: {error}")
                break
            wrong += [f"step {number}, {step}: {each}" for each in found]
        self.digest = self.channel.end()
        return wrong

    # --- a step ----------------------------------------------------------------------------------

    def check(self, step: Step) -> list[str]:
        """Does it. Returns: what was wrong."""
        self.net.zero_grad()
        self._num_late.clear()
        self._is_noticed = False
        expected = self.expected(step)
        results: list[Any] = []
        error: Exception | None = None
        with _fault(self.net, step):
            try:
                results = self._run(step)
            except Stuck:
                raise
            except Exception as raised:
                error = raised
        wrong = self._wrong_error(step, expected, error)
        if error is None and not wrong:
            wrong = self._wrong_results(results, expected)
            wrong += self._wrong_gradients(step, expected)
        left = leftovers(self.runner)
        if any(left.values()):
            wrong.append(f"left over: {left}")
        return wrong

    def _run(self, step: Step) -> list[Any]:
        global microbatch
        runner = self.runner
        microbatch = lambda: runner.microbatch  # noqa: E731
        schedule = schedule_named(step.pipeline, MICROBATCHES, step.bound)
        if self.rank > 0:
            return runner.serve(schedule, self._notice).results  # type: ignore[no-any-return]
        if step.way is refused:
            error = Broken("of the batch")
            runner.refuse(error)
            raise error
        bodies = [functools.partial(step.way, self.net, x, self._back) for x in self.inputs]
        return runner.lead(schedule, bodies, self._notice).results  # type: ignore[no-any-return]

    def _back(self, loss: Tensor) -> None:
        self.runner.backward([loss], [None])

    def _notice(self) -> None:
        """The gradients of all backward passes but one are there."""
        self._is_noticed = True
        self.num_noticed += 1

    def _wrong_error(self, step: Step, expected: Expected, error: Exception | None) -> list[str]:
        may_fail = "error" in step.leeway
        if error is None:
            return [f"raised nothing; expected {expected.error!r}"] if expected.error else []
        told = "".join([repr(error), *getattr(error, "__notes__", ())])
        if expected.error is None and not may_fail:
            return [f"raised {told}\n{''.join(traceback.format_tb(error.__traceback__))}"]
        kind = type(error).__name__
        wanted = "Broken" if self.rank == 0 else "StepAborted"
        if kind != wanted or not all(text in told for text in ("Broken", *step.told)):
            return [f"raised {kind}; expected {wanted} with {step.told!r}: {told}"]
        return []

    def _wrong_results(self, results: list[Any], expected: Expected) -> list[str]:
        wrong = []
        for number, (mine, theirs) in enumerate(zip(results, expected.results, strict=True)):
            mine = _plain(mine)
            if len(mine) != len(theirs) or not all(map(_is_close, mine, theirs)):
                wrong.append(f"microbatch {number} returned {mine}; expected {theirs}")
        return wrong

    def _wrong_gradients(self, step: Step, expected: Expected) -> list[str]:
        wrong = []
        if "gradients" in step.leeway:
            return []
        for name, parameter in self.net.named_parameters():
            theirs = expected.gradients[name] if name in self.local else None
            if not _is_close(parameter.grad, theirs):
                wrong.append(f"gradient of {name} is {parameter.grad}; expected {theirs}")
        late = {name: count for name, count in self._num_late.items() if count > 1}
        if late and step.is_known:
            wrong.append(f"it was told too early that one backward pass is left; then came {late}")
        return wrong


def _back_here(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def _plain(result: Any) -> tuple[Any, ...]:
    result = result if isinstance(result, tuple) else (result,)
    return tuple(each.detach() if isinstance(each, Tensor) else each for each in result)


def _is_close(mine: Any, theirs: Any) -> bool:
    if mine is None or theirs is None:
        # A part that has gone back without a gradient may have none, or zeros.
        given = mine if theirs is None else theirs
        return given is None or not bool(given.any())
    mine, theirs = (torch.as_tensor(each, dtype=torch.float64) for each in (mine, theirs))
    return mine.shape == theirs.shape and torch.allclose(mine, theirs, TOLERANCE, TOLERANCE)


@contextlib.contextmanager
def _fault(net: Net, step: Step) -> Iterator[None]:
    parts: list[Any] = [net.get_submodule(name) for name in step.part.split()]
    for part in parts:
        part.fault = step.fault
    try:
        yield
    finally:
        for part in parts:
            del part.fault


# --- courses --------------------------------------------------------------------------------------

Course = tuple[Order, Sequence[Step]]


def run_courses(rank: int, world_size: int, folder: str, names: Sequence[tuple[str, int]]) -> Any:
    """One after the other; each is named by its kind and its seed.

    Returns: by kind what was wrong; the digests; and how often gradients were said to be there.
    """
    from smdistributed import collectives

    wrong: dict[str, list[str]] = {kind: [] for kind, _ in names}
    digests: list[int] = []
    gc.disable()  # what it frees, and when, would not be the same in every run
    with collectives.init() as comm:
        me = Rank(comm._native, rank, world_size, folder)
        comm.barrier()  # all have their sockets
        for kind, seed in names:
            order, steps = COURSES[kind](world_size, seed)
            me.renew()
            found = me.follow(order, steps)
            wrong[kind] += [f"{kind}, seed {seed}, {each}" for each in found]
            digests.append(me.digest)
        me.runner.close()
        comm.barrier()  # none leaves before all have ended
    return wrong, digests, me.num_noticed


def _any_schedule(choose: random.Random, step: Step) -> Step:
    pipeline = choose.choice(tuple(SCHEDULES))
    return dataclasses.replace(step, pipeline=pipeline, bound=choose.randint(1, MICROBATCHES))


def _good(size: int, seed: int) -> Course:
    choose = random.Random(seed)
    ways = choose.sample(WAYS, 3)
    steps = [Step(ways[0]), Step(ways[0]), *(Step(way) for way in ways[1:])]
    steps = [_any_schedule(choose, step) for step in steps]
    return RandomOrder(seed), steps


def _repeated(size: int, seed: int) -> Course:
    """The same again and again, so that the last backward pass can be foreseen."""
    choose = random.Random(seed)
    step = Step(WAYS[seed % len(WAYS)], is_known=True)
    alone = dataclasses.replace(step, bound=1)
    simple = dataclasses.replace(step, pipeline="simple")
    steps = [step, *choose.sample((alone, simple), 2)]
    if choose.random() < 0.3:
        steps.insert(0, REFUSED)
    return RandomOrder(seed), steps


def _random(size: int, seed: int) -> Course:
    choose = random.Random(seed)
    first, second = (Step(random_way(2 * seed + n)) for n in range(2))
    parts = ["a", "b", "c", "d", "e", "hasty", "d.inner", "e.inner", "b.inner", "far.inner"]
    parts += ["hasty.other", "b e", "d far"]
    fault = choose.choice([fails, fails_in_backward])
    faulty = dataclasses.replace(second, part=choose.choice(parts), fault=fault)
    kept = dataclasses.replace(faulty, way=kept_from_raising(faulty.way), leeway="gradients, error")
    steps = [_any_schedule(choose, step) for step in (first, first, faulty, kept, second)]
    return RandomOrder(seed), steps


def _program(size: int, seed: int) -> Course:
    choose = random.Random(seed)
    first, second = (Step(random_programs.random_program(2 * seed + n)) for n in range(2))
    part = f"versatile.{choose.randrange(random_programs.NUM_PARTS)}"
    if choose.random() < 0.3:
        part = f"versatile.{choose.choice((1, 3))}.inner"
    fault = choose.choice([fails, fails_in_backward])
    faulty = dataclasses.replace(second, part=part, fault=fault)
    kept = dataclasses.replace(faulty, way=kept_from_raising(faulty.way), leeway="gradients, error")
    steps = [_any_schedule(choose, step) for step in (first, first, faulty, kept, second)]
    return RandomOrder(seed), steps


def _failing(size: int, seed: int) -> Course:
    choose = random.Random(seed)
    steps = [Step(chain)]
    for step in choose.sample(failures(size), 2):
        steps += [step, Step(choose.choice((chain, step.way)))]
    steps = [_any_schedule(choose, step) for step in steps]
    return RandomOrder(seed), steps


def _late(size: int, seed: int) -> Course:
    """All that can go wrong, where one rank is later than all others, or earlier, always."""
    faulty = [*failures(size), *CAUGHT]
    rank, number = divmod(seed, len(faulty))
    order = (others_first if rank % (2 * size) < size else others_last)(rank % size)
    step = faulty[number]
    well = Step(chain if step.way is refused else step.way)
    simple = dataclasses.replace(step, pipeline="simple")
    return order, [well, step, simple, well]


def _caught(size: int, seed: int) -> Course:
    choose = random.Random(seed)
    steps = [Step(chain), choose.choice(CAUGHT), Step(choose.choice(WAYS)), choose.choice(CAUGHT)]
    steps = [_any_schedule(choose, step) for step in steps]
    return RandomOrder(seed), steps


COURSES: dict[str, Callable[[int, int], Course]] = {
    "good": _good,
    "repeated": _repeated,
    "random": _random,
    "program": _program,
    "failing": _failing,
    "caught": _caught,
    "late": _late,
}


def an_error_comes_while_a_microbatch_waits_for_its_turn(
    rank: int, world_size: int, folder: str, pipeline: str
) -> tuple[list[str], int]:
    """What a module raises is known to the leader when the body turns back, not when it waits.

    So the leader is late: whenever it looks, all has come that can come. Not before bodies turn
    back in the simple schedule, where they wait for one another.

    Returns: what was wrong, and how many errors came when nobody waited.
    """
    from smdistributed import collectives

    steps = [Step(chain, pipeline)]
    for part in ("b", "c"):
        steps.append(Step(caught, pipeline, part=part, fault=fails))
        steps.append(Step(chain, pipeline, part=part, fault=fails, told=("microbatch 2",)))
    steps.append(Step(chain, pipeline))
    with collectives.init() as comm:
        me = Rank(comm._native, rank, world_size, folder)
        comm.barrier()
        me.renew()
        runner = me.runner
        wake_with = runner._activities.wake_with
        num_unexpected = 0

        def watched(activity: Any, error: BaseException) -> bool:
            nonlocal num_unexpected
            is_waiting: bool = wake_with(activity, error)
            num_unexpected += not is_waiting
            return is_waiting

        def order(turns: Sequence[Turn]) -> Turn:
            is_ahead = rank == 0 and runner._step.num_forwards_done < MICROBATCHES
            is_late = not is_ahead or pipeline == "interleaved"
            return (others_first if is_late else others_last)(0)(turns)

        runner._activities.wake_with = watched
        wrong = me.follow(order, steps)
        runner.close()
    return wrong, num_unexpected


def waits_for_what_nobody_sends(rank: int, world_size: int, folder: str) -> str:
    """After one message that goes round. Returns: what the wait says."""
    from smdistributed import collectives

    with collectives.init() as comm:
        channel = OrderedChannel(comm._native, rank, world_size, folder)
        comm.barrier()
        channel.begin(RandomOrder(1))
        channel.post_message((rank + 1) % world_size, bytes(8), [])
        message = channel.next_message(1.0)
        assert message.source == (rank - 1) % world_size
        try:
            channel.next_message(1.0)
        except Stuck as error:
            return str(error)
        finally:
            channel.end()
            comm.barrier()
    return "it came"
