# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What happens to gradients during backward, and when. How buckets are averaged: `averaging.py`.

    forward      prepare_forward()      a step is to come; checks that the last one is complete
    backward     _arrive(slot)          autograd has added to a parameter's gradient [1]
                 _launch_ready()        a bucket that is complete is reduced at once [2]
                 _finish()              the step is complete: wait for all buckets [3]

[1] The gradient is moved into its bucket and becomes a view of it; if it is one already (gradients
    that were zeroed in place) autograd has added into the bucket, and nothing is moved.
[2] Buckets are reduced in the order of the plan, the reverse of registration, on every rank. A
    bucket that is complete early waits for those before it: the order in which gradients arrive
    may differ between ranks, that of collectives must not.
[3] Autograd runs `_finish` when the backward in which the last gradient arrived is at its end; so
    what follows `backward()` finds averages.

**Which steps are reduced.** A forward with `sync` arms the reducer; completion disarms it.
Gradients that arrive unarmed stay local, and where they are: those of `no_sync`, of a backward
through the wrapped module itself, and of another wrapper of the same parameters. The next step that
is reduced takes along what it finds in `.grad`.

A second backward of one forward (`retain_graph`), and the backwards of two forwards one after the
other, are armed by a hook on the forward's outputs and reduced too. Averaging what is averaged
already changes nothing, so both backwards count in full. Outputs are the tensors that torch's
`_find_tensors` sees: alone or in lists, tuples, dicts and dataclasses. Those inside other objects
have no hook, and only the first complete backward after the forward is reduced; another one stays
local. Nor does the hook do anything where no parameter accumulates: `torch.autograd.grad` reduces
nothing, and a gradient penalty is reduced by the `backward()` that comes after it.

**Gradients that never come.** Normally every parameter must receive one in a step, possibly spread
over several backwards; the next forward raises otherwise. With `find_unused` the end of a backward
ends the step: what is missing counts as zeros, and ranks tell each other who had which gradients,
so that a parameter nobody used keeps its `None`. With `static_graph` moreover the first step counts
how many gradients each parameter receives; later steps wait for exactly these.

Source: dataparallel specification, sections 5.2, 6.1 and 6.5.
"""

# torch's tensor hooks have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.autograd.variable import Variable

from smdistributed.dataparallel import trace
from smdistributed.dataparallel.exceptions import SMDDPMismatch, SMDDPUnsupported
from smdistributed.dataparallel.torch.parallel.arrivals import call_on_arrival
from smdistributed.dataparallel.torch.parallel.averaging import Averager
from smdistributed.dataparallel.torch.parallel.buckets import GradientSlot, make_buckets
from smdistributed.dataparallel.torch.parallel.comm_hook import CommHook
from smdistributed.dataparallel.torch.process_group import ProcessGroupSmddp
from smdistributed.dataparallel.trace.recorder import Open

__all__ = ["GradientReducer"]

_NAMES_SHOWN = 10


class GradientReducer:
    """Averages the gradients of parameters over the ranks of a group, bucket by bucket.

    Args:
        parameters: (name, parameter) in order of registration; all require a gradient.
        group: a torch process group of two or more ranks.
        bucket_cap_bytes: see `fusion.plan_buckets`.
        find_unused: parameters may stay without a gradient in a step, others on every rank.
        static_graph: every step is like the first; unused and repeated parameters are learnt.

    Making one is not a collective and takes no memory for gradients; the first forward does.

    Thread rule: one forward or backward at a time; within it autograd may use several threads.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Tensor]],
        group: Any,
        bucket_cap_bytes: int,
        *,
        find_unused: bool = False,
        static_graph: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self._group = group
        self._bucket_cap_bytes = bucket_cap_bytes
        self._find_unused = find_unused or static_graph
        self._is_learning = static_graph
        self._averager = Averager(group)
        self._lock = threading.Lock()  # a model on several GPUs has a backward thread on each
        self.has_gradients = False
        """Gradients have arrived since this was last set to False, reduced or not."""
        self._plan()
        hooks = [
            call_on_arrival(slot.parameter, _arrival_hook(weakref.ref(self), index))
            for index, slot in enumerate(self._slots)
        ]
        # The parameters outlive the wrapper; a second wrapper must not find hooks of the first.
        self.remove_hooks = weakref.finalize(self, _remove, hooks)
        self.remove_hooks.atexit = False

    # ---- the shape of the work -------------------------------------------------------------

    def _plan(self) -> None:
        """Buckets without memory, for the parameters as they are now."""
        backwards = self._parameters[::-1]
        self._buckets = make_buckets(backwards, self._bucket_cap_bytes, self._group.size())
        slots = [slot for bucket in self._buckets for slot in bucket.slots]
        self._slots = sorted(slots, key=lambda slot: slot.index)
        self._layout = _layout(self._slots)
        self._accumulators: list[Any] | None = None
        self._is_allocated = False
        self._reset()

    def _reset(self) -> None:
        """Be ready for a step."""
        for bucket in self._buckets:
            bucket.expect()
        self._works: list[Any] = []  # of launched buckets; their number is the next to launch
        self._num_arrived = 0
        self._is_armed = False
        self._is_ending = False  # `_end_of_backward` is queued
        self._active_ranks: Callable[[], float] | None = None
        self._filling: Open | None = None

    def _allocate(self) -> None:
        for bucket in self._buckets:
            bucket.allocate(self._group)
        device = self._slots[0].parameter.device
        self._is_used = torch.ones(len(self._slots), dtype=torch.uint8, device=device)
        self._is_allocated = True

    @property
    def bucket_sizes(self) -> list[int]:
        """Bytes of each bucket, in the order of reduction."""
        return [bucket.plan.capacity_bytes for bucket in self._buckets]

    def follow_parameters(self) -> None:
        """Plan anew if the parameters have been moved to another device or dtype."""
        if _layout(self._slots) != self._layout:
            self._plan()

    def _follow_inner_moves(self) -> None:
        """The same for moves that nobody told us of, such as `ddp.module.half()`.

        Runs in every forward: asking each parameter for its device would take most of the time, so
        one stands for all.
        """
        dtypes = [dtype for dtype, _ in self._layout]
        is_same = [slot.parameter.dtype for slot in self._slots] == dtypes
        if not is_same or self._slots[0].parameter.device != self._layout[0][1]:
            self._plan()

    def learn_graph(self) -> None:
        """Take the next step as the pattern of all later ones (`static_graph`)."""
        self._find_unused = self._is_learning = True

    def set_comm_hook(self, hook: CommHook, state: Any) -> None:
        """Let `hook(state, bucket)` reduce instead; its result is taken as the average.

        Raises:
            SMDDPUnsupported: there is a hook already.
        """
        self._averager.set_comm_hook(hook, state)

    # ---- a step ----------------------------------------------------------------------------

    def prepare_forward(
        self, *, sync: bool, active_ranks: Callable[[], float] | None = None
    ) -> None:
        """Announce a forward whose backward is to be reduced, or (`sync=False`) is not.

        Args:
            sync: whether to reduce.
            active_ranks: asked when the first bucket is reduced; the sum is then divided by the
                answer instead of the world size (uneven batches).

        Call `require_complete` first.
        """
        is_open = self._num_arrived or self._is_ending  # in activation checkpointing
        if not sync:
            if not is_open:
                self._is_armed = False
            return
        if not is_open:
            self._follow_inner_moves()
        if not self._is_allocated:
            self._allocate()
        self._is_armed = True
        self._active_ranks = active_ranks

    def watch_output(self, output: Tensor) -> None:
        """Arm when a backward starts from this output of a forward that is to be reduced."""
        output.register_hook(self._arm)

    def _arm(self, _: Tensor) -> None:
        if not self._accumulates():
            return
        self._is_armed = True
        if self._find_unused and not self._is_ending:
            self._queue_end()

    def _accumulates(self) -> bool:
        """Whether the backward that runs now adds to gradients of our parameters."""
        engine: Any = Variable._execution_engine
        if engine.is_checkpoint_valid():
            return True  # a backward() for all leaves; its checkpoints may hide parameters
        if self._accumulators is None:
            parameters = [slot.parameter for slot in self._slots if slot.parameter.requires_grad]
            self._accumulators = [get_gradient_edge(p).node for p in parameters]
        try:
            return any(map(torch._C._will_engine_execute_node, self._accumulators))
        except RuntimeError:  # a parameter is an input of autograd.grad()
            return False

    def _arrive(self, slot: GradientSlot) -> None:
        self.has_gradients = True
        if not self._is_armed or slot.view is None:
            return
        slot.adopt_gradient()
        with self._lock:
            self._count(slot)

    def _count(self, slot: GradientSlot) -> None:
        bucket = slot.bucket
        if bucket.index < len(self._works):
            self._abandon()
            raise SMDDPUnsupported(
                f"parameter {slot.name} received another gradient after its bucket had been handed"
                " to the reduction; expected one per backward. With activation checkpointing use"
                " use_reentrant=False; for parameters used by several backwards of one forward pass"
                " find_unused_parameters=True, or static_graph=True if all steps are alike."
            )
        if not self._num_arrived:
            self._filling = trace.begin("bucket 0", "fill")
        self._num_arrived += 1
        if self._find_unused and not self._is_ending:
            self._queue_end()
        slot.arrivals += 1
        if slot.arrivals <= slot.expected:
            bucket.missing -= 1
            if not bucket.missing and not self._is_learning:
                self._guarded(self._launch_ready)

    def _launch_ready(self) -> None:
        while len(self._works) < len(self._buckets):
            if self._buckets[len(self._works)].missing:
                return
            self._launch()
        if not self._find_unused:
            _queue_callback(self._finish)

    def _launch(self) -> None:
        """Start the reduction of the next bucket."""
        index = len(self._works)
        bucket = self._buckets[index]
        for slot in bucket.slots:
            if not slot.arrivals:
                slot.settle()
        trace.end(self._filling, bytes=bucket.plan.used_bytes, tensors=len(bucket.slots))
        work = self._averager.start(bucket, len(self._buckets), self._active_ranks)
        self._works.append(work)
        if index + 1 < len(self._buckets):
            self._filling = trace.begin(f"bucket {index + 1}", "fill")

    # ---- the end of a step -----------------------------------------------------------------

    def _queue_end(self) -> None:
        self._is_ending = True
        _queue_callback(self._end_of_backward)

    def _end_of_backward(self) -> None:
        """Complete a step in which gradients may be missing."""
        if not self._is_ending:
            return
        self._guarded(self._reduce_the_rest)
        self._finish()

    def _reduce_the_rest(self) -> None:
        while len(self._works) < len(self._buckets):
            self._launch()
        if self._is_learning:
            for slot in self._slots:
                slot.expected = slot.arrivals
            self._is_learning = False
        unused = [slot for slot in self._slots if slot.parameter.grad is None]
        used = self._is_used.fill_(1)
        for slot in unused:
            used[slot.index] = 0
        self._averager.maximum(used)
        for slot in unused:
            if used[slot.index]:
                slot.parameter.grad = slot.view  # zeros here, averaged with what others have

    def _finish(self) -> None:
        """Wait for all buckets; afterwards every gradient is an average."""
        with trace.span("wait", "wait", buckets=len(self._works)):
            self._guarded(lambda: self._averager.wait(self._buckets, self._works))
        for slot in self._slots:
            if slot.arrivals and slot.parameter.grad is not slot.view:
                slot.parameter.grad = slot.view  # another wrapper's hook has taken it
        self._reset()

    def reduce_zeros(self, *, average: bool) -> None:
        """Take part in a step of other ranks, with zeros. This rank's gradients are lost.

        Args:
            average: as the other ranks do; False if they divide by the number of active ranks.
        """
        if not self._is_allocated:
            self._allocate()
        self._reset()
        self._active_ranks = None if average else lambda: 1
        for bucket in self._buckets:
            assert bucket.buffer is not None
            bucket.buffer.zero_()
            work = self._averager.start(bucket, len(self._buckets), self._active_ranks)
            self._works.append(work)
        if self._find_unused:
            self._averager.maximum(self._is_used.zero_())
        self._finish()

    # ---- when something goes wrong ---------------------------------------------------------

    def require_complete(self) -> None:
        """Raise `SMDDPMismatch` if the last step is not complete; every forward begins with it."""
        if not (self._num_arrived or self._is_ending):
            return
        if torch._C._current_graph_task_id() != -1:
            return  # a forward inside a backward: activation checkpointing
        if self._find_unused and not self._works:
            self._reset()  # an exception ended that backward; nothing has been sent
            return
        missing = [slot.name for slot in self._slots if slot.arrivals < slot.expected]
        shown = ", ".join(missing[:_NAMES_SHOWN])
        if len(missing) > _NAMES_SHOWN:
            shown += f" and {len(missing) - _NAMES_SHOWN} more"
        text = (
            f"the last backward was not reduced: {len(missing)} of {len(self._slots)} parameters"
            f" received no gradient ({shown}). Expected one for every parameter that was trainable"
            " when the model was wrapped, on every rank, before the next forward. Pass"
            " find_unused_parameters=True if some are not used in every step, freeze what is never"
            " used before wrapping, and look for an exception that ended that backward."
        )
        self._end_group(text)
        raise SMDDPMismatch(text)

    def _end_group(self, reason: str) -> None:
        """Let ranks that wait for this one's buckets fail too, and read why."""
        if isinstance(self._group, ProcessGroupSmddp):
            self._group.abort(reason)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do it; if it fails, no reduction is left under way and the reducer is as new."""
        try:
            action()
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        for work in self._works:
            with contextlib.suppress(Exception):  # the first error is the one to tell
                work.wait()
        self._reset()


def _arrival_hook(owner: weakref.ref[GradientReducer], index: int) -> Callable[[Tensor], None]:
    def arrived(_: Tensor) -> None:
        reducer = owner()
        if reducer is not None:
            reducer._arrive(reducer._slots[index])

    return arrived


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _queue_callback(callback: Callable[[], None]) -> None:
    """Let autograd call back when the backward that runs now is at its end."""
    engine: Any = Variable._execution_engine
    engine.queue_callback(callback)


def _layout(slots: Sequence[GradientSlot]) -> list[Any]:
    return [(slot.parameter.dtype, slot.parameter.device) for slot in slots]
