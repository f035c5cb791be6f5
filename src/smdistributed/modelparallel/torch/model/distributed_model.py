# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: any module, its parts on several ranks.

Source: modelparallel specification, sections 3.1, 3.7 to 3.11 and 4.4.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from smdistributed._common.errors import UnsupportedError
from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import (
    ModelNotPartitionedError,
    MultipleDistributedModelError,
    SMPError,
)
from smdistributed.modelparallel.torch.delayed_initialization import (
    has_delayed,
    materialise,
    noting_changes,
    stop_recording,
)
from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.model.absent_buffers import AbsentBuffers
from smdistributed.modelparallel.torch.model.device import ModelDevice
from smdistributed.modelparallel.torch.model.plain_backwards import PlainBackwards
from smdistributed.modelparallel.torch.modules.assignment import (
    Decision,
    check_shared,
    module_paths,
)
from smdistributed.modelparallel.torch.modules.original_forwards import offer_original_forwards
from smdistributed.modelparallel.torch.modules.placement import Placement
from smdistributed.modelparallel.torch.modules.wrapping import Wrapper, check_module
from smdistributed.modelparallel.torch.optimizer import gradient_norms
from smdistributed.modelparallel.torch.optimizer.distributed_optimizer import (
    forget_waiting,
    load_waiting,
    settle_optimizers,
)
from smdistributed.modelparallel.torch.optimizer.sharding import is_sharded, parameters_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.casting import (
    SixteenBitModule,
    cast_module,
    dtype_of,
)
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import model_parameter_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.optimizer import current_optimizer
from smdistributed.modelparallel.torch.partitioning import observation
from smdistributed.modelparallel.torch.partitioning.partition_report import partition_report
from smdistributed.modelparallel.torch.partitioning.partitioner import (
    agree_on_partition,
    in_one_partition,
    log_placement,
)
from smdistributed.modelparallel.torch.pipeline.interception import NO_ZERO_GRAD
from smdistributed.modelparallel.torch.pipeline.pipeline import Moment, Pipeline, current_pipeline
from smdistributed.modelparallel.torch.recompute.elsewhere import one_for_each_partition
from smdistributed.modelparallel.torch.recompute.recomputing_modules import check_settings
from smdistributed.modelparallel.torch.replicas.gradient_reduction import GradientReduction
from smdistributed.modelparallel.torch.saving import state_dicts
from smdistributed.modelparallel.torch.saving.checkpoints.agreement import (
    WaitingLoad,
    load_all,
    load_together,
    together,
    united,
)

__all__ = ["DistributedModel", "Observed"]

Hook = Callable[[Any, Any], Any]

_TRACE_DEVICES = ("cpu", "gpu")


class Observed(BaseException):
    """Leaves the step's body once the model's first call has been watched."""


class _DeferredLoad(NamedTuple):
    """Arguments of a `load_state_dict` that waits until the model is partitioned.

    Attributes:
        lent: of a state that is not copied, its tensors, which must not be changed.
    """

    state: Mapping[str, Any]
    strict: bool
    is_partial: bool
    is_same: bool
    lent: state_dicts.LentTensors | None


class DistributedModel(Wrapper):
    """Wraps a module whose parts run on the ranks of a pipeline.

    Every rank builds the whole module and wraps it. With one partition it is placed at once;
    otherwise the first step places it, by cost (`auto_partition`) or by hand (`smp.partition`).

    Args:
        module: any; with everything in CPU memory, or where it is to stay.
        trace_device: "gpu" (this rank's device) or "cpu": where the first step is watched.
        trace_execution_times: decide by measured instead of estimated times.
        overlapping_allreduce: reduce gradients over the replicas while backward passes run.
        backward_passes_per_step: reduce them every so many steps that call `backward`.
        average_grads_across_microbatches: else their sum is what `.grad` gets.
        bucket_cap_mb, gradient_as_bucket_view, find_unused_parameters: as of torch's DDP;
            unused parameters never need the last one here.
        trace_memory_usage: accepted; memory is estimated from what modules return.
        broadcast_buffers: from the first replica, at each step in training mode.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        MultipleDistributedModelError: another one lives.
        ValueError: an argument that cannot be.
        TypeError: a module that cannot be distributed.
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool | None = None,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: float = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        job = state.require("smp.DistributedModel()")
        check_module(module)
        _check_options(trace_device, trace_execution_times, backward_passes_per_step)
        if state.model is not None:
            gc.collect()  # a model and its hooks may hold each other
        if state.model is not None:
            raise MultipleDistributedModelError(
                "a second smp.DistributedModel was made while the first one lives; expected one"
                " model per process. Wrap both in one module, or delete the first (and what refers"
                " to it), or call smp.reset()."
            )
        stop_recording()
        dtype = dtype_of(job.config)
        inner = module
        if dtype is not None:
            with noting_changes(module):
                cast_module(module, dtype)
            inner = SixteenBitModule(module, dtype)
        super().__init__(Wrapper(inner) if job.config.ddp else inner)
        self._casts = [inner] if isinstance(inner, SixteenBitModule) else []  # as is `_inner`
        offer_original_forwards(module)
        self._job = job
        self._inner = [module]  # in a list: it is registered below `module` already
        self._trace_device = trace_device
        self._is_measured = trace_execution_times
        self._observation: observation.Observation | None = None
        self._placement: Placement | None = None
        self._fixed: Decision | None = None
        self._model_device = ModelDevice(module, job)
        self.averages_microbatches = average_grads_across_microbatches
        overlaps = job.config.overlapping_allreduce
        self._gradient_reduction = GradientReduction(
            job,
            overlaps=overlaps if overlapping_allreduce is None else overlapping_allreduce,
            passes_per_step=backward_passes_per_step,
            broadcast_buffers=broadcast_buffers,
            bucket_cap_mb=bucket_cap_mb,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )
        self._plain_backwards = PlainBackwards(module, job)
        self._absent_buffers: AbsentBuffers | None = None  # until the model is placed
        self._deferred_loads: list[_DeferredLoad] = []
        self._partition_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._step_hooks: OrderedDict[int, Hook] = OrderedDict()
        state.model = weakref.proxy(self, _forget_model)
        _forget_optimizer_of_another(module)
        if not job.has_pipeline:
            self._place(in_one_partition(module))

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError(
            "smp.DistributedModel cannot be copied: there is one in a process, and a rank holds a"
            " part of it. For averages of its weights (AveragedModel, EMA) copy the module inside,"
            " after the first step: model.get_module(). The guide has an example, under 'Averages"
            " of weights'."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "smp.DistributedModel cannot be copied or pickled: a rank holds a part of it. Save"
            " model.state_dict(), or a checkpoint: smp.save_checkpoint()."
        )

    # --- what it wraps ---------------------------------------------------------------------------

    def get_module(self) -> nn.Module:
        """The user's module."""
        return self._inner[0]

    @property
    def partitioned(self) -> bool:
        """Whether each part is where it will stay."""
        return self._placement is not None

    def placement(self, what: str) -> Placement:
        """Where the parts are.

        Raises:
            ModelNotPartitionedError: that is not decided yet; names `what` was asked for.
        """
        if self._placement is None:
            raise ModelNotPartitionedError(
                f"{what} was asked for before the model was partitioned; expected it after the"
                " first call of a function decorated with @smp.step. Ask there, or in a hook:"
                " model.register_post_partition_hook()."
            )
        return self._placement

    def partition_report(self) -> str:
        """Where the modules are, what they cost, and why they are there: a table to print (ours).

        Each line of it is a module with all below it that has no line of its own. The same on all
        ranks, and not collective.

        Raises:
            ModelNotPartitionedError: that is not decided yet.
        """
        placement = self.placement("partition_report()")
        topology = self._job.topology
        ranks: list[list[int]] = [[] for _ in range(topology.pipeline_degree)]
        for rank in range(topology.size):
            ranks[topology.coordinates(rank).pp].append(rank)
        return partition_report(placement, ranks)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; inside a step, or anywhere if there is one partition.

        Tensors among the arguments, also in containers, go to the device of the model first; a
        model in CPU memory is called with what is given. With `fp16` or `bf16` floating-point
        tensors are cast down, and those of the result up to fp32.

        Raises:
            RuntimeError: outside of a step, if there are several partitions.
        """
        pipeline = current_pipeline("the model's call")
        for casts in self._casts:
            args, kwargs = casts.cast_down((args, kwargs))
        if pipeline.moment is Moment.OBSERVING:
            device = self._job.device if self._trace_device == "gpu" else torch.device("cpu")
            inner = self.get_module()
            self._observation = observation.observe(inner, args, kwargs, device, self._is_measured)
            raise Observed
        if not (pipeline.is_in_step or self._model_device.is_home) and self._job.has_pipeline:
            raise RuntimeError(
                "the model was called outside of a step; expected a call inside a function"
                " decorated with @smp.step, as its parts are on several ranks. Move the call into"
                " such a function, or use one partition."
            )
        args, kwargs = self._model_device.arguments(args, kwargs)
        result = self.get_module()(*args, **kwargs)
        for casts in self._casts:
            result = casts.cast_up(result)
        return result

    def backward(
        self,
        tensors: Tensor | Sequence[Tensor],
        grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    ) -> None:
        """As `torch.autograd.backward`, for the microbatch under way; instead of `loss.backward()`.

        Gradients are scaled so that `.grad` gets the mean over the batch; with `fp16`, times the
        optimizer's loss scale. The tensors themselves may be changed after the call. Outside of a
        step, replicas average in `optimizer.step()`, or clipping, as they do for `loss.backward()`.

        Raises:
            RuntimeError: outside of a step, if there are several partitions.
        """
        pipeline = current_pipeline("model.backward()")
        if pipeline.moment is Moment.OBSERVING:
            return
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given: list[Tensor | None]
        if grad_tensors is None:
            given = [None] * len(roots)
        else:
            given = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
        optimizer = current_optimizer()
        loss_scale = 1.0 if optimizer is None else optimizer.loss_scale
        is_of_mean = self.averages_microbatches and not self._gradient_reduction.has_hook
        pipeline.backward(roots, given, loss_scale, is_of_mean)
        if not pipeline.is_in_step:
            self._note_backward()

    def _note_backward(self) -> None:
        optimizer = current_optimizer()
        if optimizer is not None:
            optimizer.note_backward()

    # --- partition -------------------------------------------------------------------------------

    def partition(self, pipeline: Pipeline, run_body: Callable[[], Any] | None) -> None:
        """Decides where everything goes, and puts it there; a collective of all ranks.

        Args:
            run_body: on a leader, runs the step's body on the first microbatch.
        """

        def watch() -> observation.Observation | None:
            assert run_body is not None
            try:
                with pipeline.observing():
                    run_body()
            except Observed:
                return self._observation
            finally:
                self._observation = None
            return None

        inner = self.get_module()
        self._place(agree_on_partition(self._job, inner, run_body and watch, self._fixed))

    def fix_partition(self, partition_of: Mapping[str, int], origin: str) -> None:
        """Lets the first step take this partition instead of deciding; before it, on all ranks.

        Args:
            partition_of: by path of module, `main/...`; all modules.
            origin: where it is from, for reports.

        Raises:
            ConfigError: modules that share a parameter are in different partitions.
        """
        check_shared(module_paths(self.get_module()), partition_of)
        reasons = dict.fromkeys(partition_of, f"as {origin} says")
        self._fixed = Decision(dict(partition_of), reasons)

    def _place(self, decision: Decision) -> None:
        job = self._job
        placement = Placement(self.get_module(), decision, job.rank_in(GroupKind.PP))
        check_settings(self.get_module(), placement.owners)
        self._model_device.place(placement)
        self._placement = placement
        self._absent_buffers = AbsentBuffers(placement)
        if job.has_pipeline:
            log_placement(job, placement)
            helpers = one_for_each_partition(placement, job)
            current_pipeline("the model").place(placement, helpers)
        if not job.holds_whole_model or job.config.fp16 or job.config.ddp:
            gradient_norms.install()
            state.call_at_reset(gradient_norms.uninstall)
        self._gradient_reduction.place(placement)
        if job.rank_in(GroupKind.DP) == 0 and job.has_pipeline:
            get_logger().info(
                "Broadcasted parameters and buffers for partition %d", placement.pp_rank
            )
        failures = self._load_what_has_waited()
        try:
            self._call_partition_hooks()  # the model is placed, whatever could not be loaded
        except Exception as error:
            failures.append(error)
        if failures:
            raise united(failures)

    def _load_what_has_waited(self) -> list[Exception]:
        """Model states, then optimizer states. Collective where ranks have different parts.

        Returns: what failed.
        """
        job = self._job
        if job.holds_whole_model and not is_sharded(job):
            return load_all(settle_optimizers(), load_waiting)
        return [
            *load_together(
                job,
                "model states that have waited",
                self._waiting_loads,
                self._load_deferred,
                self._deferred_loads.clear,
            ),
            *load_together(
                job,
                "optimizer states that have waited",
                settle_optimizers,
                load_waiting,
                forget_waiting,
            ),
        ]

    def _call_partition_hooks(self) -> None:
        """Those that all ranks have are told of a failure one by one: hooks may be collective."""
        hooks, self._partition_hooks = list(self._partition_hooks.values()), OrderedDict()
        if not self._job.has_pipeline:
            return  # it was placed before there could be any

        def call(*hooks: Hook) -> None:
            for hook in hooks:
                hook(self, state.optimizer)

        what = "a post-partition hook"
        counts = together(self._job, what, lambda: len(hooks))
        if len(set(counts)) == 1:
            for hook in hooks:
                together(self._job, what, functools.partial(call, hook))
        else:
            together(self._job, what, lambda: call(*hooks))

    def _waiting_loads(self) -> list[WaitingLoad]:
        return [
            WaitingLoad("the model", "state", load.is_partial, load.is_partial and load.is_same)
            for load in self._deferred_loads
        ]

    def _load_deferred(self) -> None:
        """Loads the first state that has waited."""
        load = self._deferred_loads.pop(0)
        if load.lent is not None:
            load.lent.check()
        self.load_state_dict(load.state, strict=load.strict, same_partition_load=load.is_same)

    # --- steps -----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before the microbatches; on every rank."""
        self._model_device.leave_home()
        self._plain_backwards.begin_step()
        if self._absent_buffers is not None:
            self._absent_buffers.begin_step()
        self._gradient_reduction.begin_step(self.training)

    def before_last_backward(self) -> None:
        """Of a step, on this rank."""
        self._gradient_reduction.before_last_backward()

    def end_step(self, was_backward_called: bool) -> None:
        """After the microbatches; on every rank. Gradients are final when it returns."""
        is_averaging = self.averages_microbatches and not self._gradient_reduction.has_hook
        self._plain_backwards.end_step(was_backward_called, is_averaging)
        if self._absent_buffers is not None:
            self._absent_buffers.end_step()
        if was_backward_called:
            self._gradient_reduction.end_step()
            self._note_backward()
        hooks, self._step_hooks = self._step_hooks, OrderedDict()
        for hook in hooks.values():
            hook(self, state.optimizer)

    def fail_step(self) -> None:
        """The step has raised."""
        self._gradient_reduction.fail_step()

    def end_replicas(self, reason: str) -> None:
        """With a step that has failed the groups of replicas have ended."""
        self._gradient_reduction.end_groups(reason)

    def register_post_partition_hook(self, hook: Hook) -> RemovableHandle:
        """Calls `hook(model, optimizer)` once the model is partitioned; at once if it is."""
        handle = RemovableHandle(self._partition_hooks)
        if self.partitioned:
            hook(self, state.optimizer)
        else:
            self._partition_hooks[handle.id] = hook
        return handle

    def register_post_step_hook(self, hook: Hook) -> RemovableHandle:
        """Calls `hook(model, optimizer)` once, at the end of the next step."""
        handle = RemovableHandle(self._step_hooks)
        self._step_hooks[handle.id] = hook
        return handle

    # --- gradients over replicas and ranks -------------------------------------------------------

    @property
    def has_replicas(self) -> bool:
        """Whether gradients are reduced."""
        return self._gradient_reduction.has_replicas

    def reduce_pending(self) -> None:
        """Averages gradients that are not averages yet; every replica must call it."""
        self._gradient_reduction.reduce_pending()

    def note_update(self) -> None:
        """`optimizer.step()` has been called."""
        self._gradient_reduction.note_update()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of torch; a 16-bit optimizer then lets go of the gradients of its fp32 copies.

        Raises:
            SMPError: in a step.
        """
        if state.is_adding_up:
            raise SMPError(NO_ZERO_GRAD.format("model.zero_grad()"))
        super().zero_grad(set_to_none)
        self.note_zero_grad()
        optimizer = current_optimizer()
        if optimizer is not None:
            optimizer.note_zero_grad()

    def note_zero_grad(self) -> None:
        """Gradients were let go of, here or by the optimizer."""
        self._gradient_reduction.note_zero_grad()

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Steps in this block leave gradients of this replica alone (ours)."""
        return self._gradient_reduction.no_sync()

    def join(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[Any]:
        """As of torch's DDP: replicas may run different numbers of steps in this block.

        Raises:
            RuntimeError: without `ddp`; before the model is partitioned.
            UnsupportedError: (a NotImplementedError) in 16-bit training; with
                `shard_optimizer_state`.
        """
        if is_sharded(self._job):
            raise UnsupportedError(
                "join() with shard_optimizer_state: replicas that have ended would not update the"
                " parameters they own; expected as many steps on all. Give each replica as many"
                " batches, or leave shard_optimizer_state out of the configuration."
            )
        if self._casts:
            raise UnsupportedError(
                "join() in 16-bit training: replicas that have ended would keep old fp32 copies of"
                " their parameters; expected as many steps on all. Give each replica as many"
                " batches, or leave fp16 and bf16 out of the configuration."
            )
        joined = self._gradient_reduction.join(*args, **kwargs)
        self.placement("join()")
        return joined

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As of torch's DDP. The hook averages, over replicas and over microbatches.

        Raises:
            RuntimeError: without `ddp` or `overlapping_allreduce`; a second one.
        """
        self._gradient_reduction.register_comm_hook(state, hook)

    _register_comm_hook = register_comm_hook

    def hvd_average_grads(self) -> None:
        """Of the oldest scripts, which average gradients with Horovod.

        Raises:
            RuntimeError: always; says what to do.
        """
        raise RuntimeError(
            "hvd_average_grads() averages with Horovod, which is not used here; expected replicas"
            " of the library. Set ddp: True in the configuration, and leave the call out: when a"
            " step returns, gradients are averages."
        )

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Scales the gradients of all ranks so that their norm is at most `max_norm` (ours).

        As `torch.nn.utils.clip_grad_norm_` of the whole model; a collective of the MP group. With a
        16-bit optimizer it is `clip_master_grads`.

        Returns: the norm before; the same on all ranks.

        Raises:
            RuntimeError: inside of a step; the norm is not finite, and that was not wanted.
        """
        optimizer = current_optimizer()
        if optimizer is not None:
            return torch.tensor(optimizer.clip_master_grads(max_norm, norm_type))
        return gradient_norms.clip_grad_norm_(
            self.parameters(), max_norm, norm_type, error_if_nonfinite, foreach
        )

    # --- parameters and buffers ------------------------------------------------------------------

    def local_parameters(self) -> Iterator[nn.Parameter]:
        """Those of this rank."""
        return (parameter for _, parameter in self.local_named_parameters())

    def local_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Those of this rank, with their names in the user's module."""
        return self.placement("local_named_parameters()").local_parameters()

    def local_buffers(self) -> Iterator[Tensor]:
        """Those of this rank."""
        return (buffer for _, buffer in self.local_named_buffers())

    def local_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Those of this rank, with their names in the user's module."""
        return self.placement("local_named_buffers()").local_buffers()

    def local_modules(self) -> Iterator[nn.Module]:
        """Those of this rank."""
        return (module for _, module in self.local_named_modules())

    def local_named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Those of this rank, with their names in the user's module."""
        return self.placement("local_named_modules()").local_modules()

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """All of the model, by their names in the user's module."""
        return self.get_module().named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """All of the model, by their names in the user's module."""
        return self.get_module().named_buffers(*args, **kwargs)

    def local_state_dict(self) -> dict[str, Any]:
        """This rank's part, and `_smp_is_partial: True`."""
        return state_dicts.local_state_dict(self.placement("local_state_dict()"))

    def state_dict(  # type: ignore[override]
        self, gather_to_rank0: bool = False
    ) -> dict[str, Any]:
        """The whole model's, in CPU memory, by its names in the user's module.

        A collective of the ranks that hold the model, once it is partitioned. With
        `gather_to_rank0` only rank 0 gets it. Before that, what was delayed gets its values.

        Raises:
            ModelNotPartitionedError: a loaded state waits until the model is partitioned.
        """
        self._refuse_while_loads_wait("model.state_dict()")
        if self._placement is None:
            materialise(self.get_module())
        return state_dicts.full_state_dict(
            self.get_module(), self._placement, self._job, gather_to_rank0
        )

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        same_partition_load: bool = False,
    ) -> Any:
        """Loads a whole model's, or this rank's part; what is partial is gathered first.

        Before the model is partitioned, a partial one waits until it is, and so does any for a
        model without data, or without `strict` after such a one. It waits with the values that it
        has now. Only of all of it for a model without data no copy is made, as that may not fit
        into memory: such tensors must not be changed until then, or the first step raises SMPError.
        In 16-bit training, fp32 copies that differ from what is loaded follow.
        """
        self._model_device.leave_home()
        is_partial = state_dict.get(state_dicts.IS_PARTIAL, False)
        # Later loads win, as always; a strict one of all of it needs nothing of those before.
        is_after = bool(self._deferred_loads) and not strict
        waits = is_partial or is_after or has_delayed(self.get_module())
        if self._placement is None and waits:
            has_copies = bool(is_partial) or not has_delayed(self.get_module())
            kept = state_dicts.snapshot(state_dict, has_copies)
            lent = None if has_copies else state_dicts.LentTensors(kept)
            self._deferred_loads.append(
                _DeferredLoad(kept, strict, bool(is_partial), same_partition_load, lent)
            )
            return nn.modules.module._IncompatibleKeys([], [])
        result = state_dicts.load_state_dict(
            self.get_module(), self._placement, self._job, state_dict, strict, same_partition_load
        )
        if self._placement is None:
            self._deferred_loads.clear()
        optimizer = current_optimizer()
        if optimizer is not None:
            optimizer.note_load()
        return result

    def _refuse_while_loads_wait(self, what: str) -> None:
        if self._placement is None and self._deferred_loads:
            raise ModelNotPartitionedError(
                f"{what} was called before the model was partitioned, while a loaded state waits"
                " for that, as of a partial checkpoint; expected it when the loaded values are in"
                " the model, which now holds those it was built with. Run one step before, under"
                " torch.no_grad() for example, or call it in a hook:"
                " model.register_post_partition_hook()."
            )

    # --- devices and dtypes ----------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> DistributedModel:
        """Dtypes change at once; devices are chosen by the partition, which ignores this one."""
        parsed: Any = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype, *_ = parsed
        self._model_device.move(device, dtype)
        return self

    def cuda(self, device: Any = None) -> DistributedModel:
        """As `to("cuda")`."""
        return self.to("cuda" if device is None else torch.device("cuda", device))

    def half(self) -> DistributedModel:
        """As `to(torch.float16)`."""
        return self.to(torch.float16)

    def bfloat16(self) -> DistributedModel:
        """As `to(torch.bfloat16)`."""
        return self.to(torch.bfloat16)

    def float(self) -> DistributedModel:
        """As `to(torch.float32)`."""
        return self.to(torch.float32)

    def double(self) -> DistributedModel:
        """As `to(torch.float64)`."""
        return self.to(torch.float64)

    def cpu(self) -> DistributedModel:
        """Gathers the whole model into CPU memory, where this process can use it outside of steps.

        A collective of the MP group, once the model is partitioned. The next step, or
        `load_state_dict`, first puts its parts back where they were.

        Raises:
            ModelNotPartitionedError: a loaded state waits until the model is partitioned.
        """
        self._refuse_while_loads_wait("model.cpu()")
        self._model_device.bring_home()
        return self


def _forget_model(proxy: object) -> None:
    if state.model is proxy:  # who has kept a proxy may outlive it, and smp.reset()
        state.model = None
        current_pipeline("a model that is gone").forget_model()


def _forget_optimizer_of_another(module: nn.Module) -> None:
    """That of an earlier model, which somebody may still hold: its loss scale is not for this."""
    if state.optimizer is not None:
        own = {id(parameter) for parameter in module.parameters()}
        updated = parameters_of(state.optimizer)
        if not any(id(model_parameter_of(each)) in own for each in updated):
            state.optimizer = None


def _check_options(trace_device: str, is_measured: bool, passes_per_step: int) -> None:
    if trace_device not in _TRACE_DEVICES:
        raise ValueError(f"trace_device is {trace_device!r}; expected one of {_TRACE_DEVICES}.")
    if is_measured and trace_device == "cpu":
        raise ValueError(
            'trace_execution_times=True with trace_device="cpu": expected times of the device that'
            ' will run the model. Use trace_device="gpu", or do not measure.'
        )
    if type(passes_per_step) is not int or passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {passes_per_step!r}; expected 1 or more.")
