# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the steps of test_message_order.py do with one microbatch, and what goes wrong in them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import message_order_models as models
import torch
from failure_ranks import Broken, RaisesInBackward
from message_order_models import BAD, MICROBATCHES, Back, Net, Recomputed, Way
from torch import Tensor
from torch.nn import functional

# --- bodies: what is done with one microbatch; the same in one process ----------------------------


def chain(net: Net, x: Tensor, back: Back) -> Any:
    loss = net.c(net.b(net.a(x))).pow(2).mean()
    back(loss)
    return loss


def elsewhere(net: Net, x: Tensor, back: Back) -> Any:
    """No gradient comes back to the leader, which so does not wait for one."""
    loss = net.c(net.b(x)).pow(2).mean()
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
    elsewhere,
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


def caught_elsewhere(net: Net, x: Tensor, back: Back) -> Any:
    """The same, where no gradient comes back to the leader."""
    try:
        return elsewhere(net, x, back)
    except Broken:
        loss = net.d(net.b(x)).sum()
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


def is_bad_body(net: Net) -> bool:
    return models.microbatch() == BAD


def fails(y: Tensor) -> Tensor:
    if models.microbatch() == BAD:
        raise Broken("in forward")
    return y


def fails_always(y: Tensor) -> Tensor:
    raise Broken("in forward")


def fails_in_backward(y: Tensor) -> Tensor:
    return RaisesInBackward.apply(y) if models.microbatch() == BAD else y  # type: ignore[no-untyped-call,no-any-return]


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
    Step(caught_elsewhere, part="b", fault=fails),
    Step(caught_elsewhere, part="c", fault=fails_in_backward),
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
