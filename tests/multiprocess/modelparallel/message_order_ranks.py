# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_message_order.py do: steps in which messages come in any order.

Runners are used without what lies above them, so that a new one, which has yet to learn what
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

import message_order_models as models
import random_programs
import torch
from equality_ranks import leftovers
from failure_ranks import Broken
from message_order_models import MICROBATCHES, TOLERANCE, WIDTH, Net
from message_order_ways import (
    CAUGHT,
    REFUSED,
    WAYS,
    Step,
    caught_elsewhere,
    chain,
    elsewhere,
    fails,
    fails_in_backward,
    failures,
    kept_from_raising,
    random_way,
    refused,
)
from ordered_channel import (
    Order,
    OrderedChannel,
    RandomOrder,
    Stuck,
    Turn,
    others_first,
    others_last,
)
from torch import Tensor

from smdistributed.modelparallel.decide.schedules import SCHEDULES, schedule_named
from smdistributed.modelparallel.torch.pipeline.gradient_scale import Scale

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
        self.whole.zero_grad()
        results = []
        error = None
        with _fault(self.whole, step):
            for number, x in enumerate(self.inputs):
                models.microbatch = functools.partial(int, number)
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
        runner = self.runner
        models.microbatch = lambda: runner._caller.running().task.microbatch
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
        self.runner.backward([loss], [None], Scale())

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

    steps = [Step(elsewhere, pipeline)]
    for part in ("b", "c"):
        steps.append(Step(caught_elsewhere, pipeline, part=part, fault=fails))
        steps.append(Step(elsewhere, pipeline, part=part, fault=fails, told=("microbatch 2",)))
    steps.append(Step(elsewhere, pipeline))
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
