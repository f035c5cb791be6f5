# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""In which steps the gradients of a model are reduced over its replicas, and when in a step.

`replicas` does it; here is the choice: every so many steps that call `backward`, not within
`no_sync()`, and during the last backward pass of a step or after it.

What `loss.backward()` adds, and backward passes outside of steps, is reduced before it is needed:
by `optimizer.step()`, or by clipping. A replica without gradients must take part in that, though
nothing here tells it to. So whoever has got none since they were let go of reduces as well; in
training with steps, which reduce theirs, nothing of it happens.

Source: modelparallel specification, sections 3.9, 3.10, 4.4 and 8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.replicas.replicas import Replicas

__all__ = ["GradientReduction"]


class GradientReduction:
    """Of the model of this process; without replicas nothing is ever reduced.

    Args:
        job: what this process knows of the others.
        overlaps: during the last backward pass of a step; else after it.
        passes_per_step: every so many steps that call `backward`.
        broadcast_buffers, bucket_cap_mb, gradient_as_bucket_view: as of `Replicas`.
    """

    def __init__(
        self,
        job: Job,
        *,
        overlaps: bool,
        passes_per_step: int,
        broadcast_buffers: bool,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
    ) -> None:
        self._job = job
        self._overlaps = overlaps
        self._passes_per_step = passes_per_step
        self._passes = 0
        self._syncs = True
        self._options: dict[str, Any] = {
            "broadcast_buffers": broadcast_buffers,
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        self._replicas: Replicas | None = None
        self._comm_hook: tuple[object, Callable[..., Any]] | None = None
        self._ended_by = ""

    def place(self, placement: Placement) -> None:
        """The model has been placed: it becomes that of the first replica; a collective of them."""
        job = self._job
        if not job.config.ddp or job.size_of(GroupKind.DP) == 1:
            return
        group = job.process_group(GroupKind.DP)
        self._replicas = Replicas(placement, group, job.device, **self._options)
        self._replicas.syncs = self._syncs
        if self._comm_hook is not None:
            self._replicas.register_comm_hook(*self._comm_hook)

    @property
    def has_replicas(self) -> bool:
        """Whether gradients are reduced at all."""
        return self._replicas is not None

    @property
    def has_hook(self) -> bool:
        """Whether a hook of the user's averages them, over microbatches too."""
        return self._comm_hook is not None

    # --- steps -----------------------------------------------------------------------------------

    def begin_step(self, is_training: bool) -> None:
        """Before the microbatches.

        Raises:
            SMPError: an earlier step has ended the groups of replicas.
        """
        if self._replicas is None or not torch.is_grad_enabled():
            return
        if self._ended_by:
            raise SMPError(
                "a step was called after one that had failed on this replica, with which the groups"
                f" of replicas have ended: {self._ended_by}\nExpected the job to end, or to begin"
                " anew. Start it again from a checkpoint, or call smp.reset() and smp.init()."
            )
        self._replicas.follow_changes()
        if is_training:
            self._replicas.sync_buffers()

    def before_last_backward(self) -> None:
        """Of a step, on this rank."""
        if self._replicas is not None and self._overlaps and self._reduces_now():
            self._replicas.arm()

    def end_step(self) -> None:
        """After the microbatches of a step that has called `backward`."""
        reduces = self._reduces_now()
        if self._syncs:
            self._passes = (self._passes + 1) % self._passes_per_step
        if self._replicas is not None and reduces:
            self._replicas.finish()

    def end_groups(self, reason: str) -> None:
        """A step has failed here, and so other replicas wait no more."""
        self._ended_by = self._ended_by or reason

    def fail_step(self) -> None:
        """The step has raised."""
        if self._replicas is not None:
            self._replicas.forget_step()

    def reduce_pending(self) -> None:
        """Averages gradients that are not averages yet; every replica must call it."""
        replicas = self._replicas
        if replicas is None or not (self._passes or replicas.has_unreduced or replicas.has_nothing):
            return
        self._passes = 0
        replicas.follow_changes()
        replicas.finish()

    def note_update(self) -> None:
        """`optimizer.step()` has been called; as often as on every replica."""
        if self._replicas is not None:
            self._replicas.num_updates += 1

    def note_zero_grad(self) -> None:
        """Gradients were let go of; the next ones may come to other replicas alone."""
        if self._replicas is not None and self._syncs:
            self._replicas.is_idle = True

    def _reduces_now(self) -> bool:
        return self._syncs and self._passes == self._passes_per_step - 1

    # --- the user's choice -----------------------------------------------------------------------

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps in this block leave gradients of this replica alone."""
        before = self._syncs
        self._set_syncs(False)
        try:
            yield
        finally:
            self._set_syncs(before)

    def _set_syncs(self, syncs: bool) -> None:
        self._syncs = syncs
        if self._replicas is not None:
            self._replicas.syncs = syncs
            if not syncs:
                self._replicas.is_idle = False  # whoever gets none here has none to reduce

    def join(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[Any]:
        """As of torch's DDP; once the model is placed.

        Raises:
            RuntimeError: without `ddp`.
        """
        self._require_ddp("join()")
        if self._replicas is None:
            return contextlib.nullcontext()
        return self._replicas.join(*args, **kwargs)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As of torch's DDP.

        Raises:
            RuntimeError: without `ddp`, or without overlapping; a second one.
        """
        self._require_ddp("register_comm_hook()")
        if not self._overlaps:
            raise RuntimeError(
                "register_comm_hook() needs overlapping_allreduce, which is False; expected True."
                " Make the model with overlapping_allreduce=True."
            )
        if self._comm_hook is not None:
            raise RuntimeError("register_comm_hook() was called twice; expected one hook.")
        self._comm_hook = (state, hook)
        if self._replicas is not None:
            self._replicas.register_comm_hook(state, hook)

    def _require_ddp(self, what: str) -> None:
        if not self._job.config.ddp:
            raise RuntimeError(
                f"{what} is about replicas, but there are none; expected data parallelism. Set"
                " ddp: True in the configuration."
            )
