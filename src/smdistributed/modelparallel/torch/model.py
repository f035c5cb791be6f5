# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel`: any module, its parts on several ranks.

Source: modelparallel specification, sections 3.1, 3.7 to 3.11 and 4.4.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.exceptions import (
    ModelNotPartitionedError,
    MultipleDistributedModelError,
)
from smdistributed.modelparallel.topology import GroupKind
from smdistributed.modelparallel.torch import gradient_norms, state_dicts, tracing
from smdistributed.modelparallel.torch.assignment import (
    Decision,
    assign_by_hand,
    module_paths,
)
from smdistributed.modelparallel.torch.optimizer import settle_optimizers
from smdistributed.modelparallel.torch.original_forwards import offer_original_forwards
from smdistributed.modelparallel.torch.pipeline import Pipeline, current_pipeline
from smdistributed.modelparallel.torch.placement import Placement
from smdistributed.modelparallel.torch.replicas import Replicas
from smdistributed.modelparallel.torch.state_mod import state

__all__ = ["DistributedModel", "Traced"]

Hook = Callable[[Any, Any], Any]

_TRACE_DEVICES = ("cpu", "gpu")


class Traced(BaseException):
    """Leaves the step's body once the model's first call has been watched."""


class _Wrapper(nn.Module):
    """Shows what it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(super().__getattr__("module"), name)


class DistributedModel(_Wrapper):
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
        _check_arguments(module, trace_device, trace_execution_times, backward_passes_per_step)
        if state.model is not None:
            gc.collect()  # a model and its hooks may hold each other
        if state.model is not None:
            raise MultipleDistributedModelError(
                "a second smp.DistributedModel was made while the first one lives; expected one"
                " model per process. Wrap both in one module, or delete the first (and what refers"
                " to it), or call smp.reset()."
            )
        super().__init__(_Wrapper(module) if job.config.ddp else module)
        offer_original_forwards(module)
        self._job = job
        self._inner = [module]  # in a list: it is registered below `module` already
        self._trace_device = trace_device
        self._is_measured = trace_execution_times
        overlaps = job.config.overlapping_allreduce
        self._overlaps = overlaps if overlapping_allreduce is None else overlapping_allreduce
        self._passes_per_step = backward_passes_per_step
        self._passes = 0
        self.averages_microbatches = average_grads_across_microbatches
        self._bucket_cap_mb = bucket_cap_mb
        self._broadcast_buffers = broadcast_buffers
        self._gradient_as_bucket_view = gradient_as_bucket_view
        self._trace: tracing.Trace | None = None
        self._placement: Placement | None = None
        self._is_home = False  # all of it is here, since `cpu()`
        self._replicas: Replicas | None = None
        self._comm_hook: tuple[object, Callable[..., Any]] | None = None
        self._syncs = True
        self._deferred_loads: list[tuple[Mapping[str, Any], bool, bool]] = []
        self._partition_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._step_hooks: OrderedDict[int, Hook] = OrderedDict()
        state.model = weakref.proxy(self, _forget_model)
        if job.config.partitions == 1:
            self._place(Decision(dict.fromkeys(module_paths(module).values(), 0)))

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

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns; inside a step, or anywhere if there is one partition."""
        pipeline = current_pipeline("the model's call")
        if pipeline.is_tracing:
            device = self._job.device if self._trace_device == "gpu" else torch.device("cpu")
            inner = self.get_module()
            self._trace = tracing.trace(inner, args, kwargs, device, self._is_measured)
            raise Traced
        if self._job.config.partitions > 1 and not pipeline.is_in_step and not self._is_home:
            raise RuntimeError(
                "the model was called outside of a step; expected a call inside a function"
                " decorated with @smp.step, as its parts are on several ranks. Move the call into"
                " such a function, or use one partition."
            )
        return self.get_module()(*args, **kwargs)

    def backward(
        self,
        tensors: Tensor | Sequence[Tensor],
        grad_tensors: Tensor | Sequence[Tensor | None] | None = None,
    ) -> None:
        """As `torch.autograd.backward`, for the microbatch under way; instead of `loss.backward()`.

        Gradients are scaled so that `.grad` gets the mean over the batch. The tensors
        themselves may be changed after the call.

        Raises:
            RuntimeError: outside of a step, if there are several partitions.
        """
        pipeline = current_pipeline("model.backward()")
        if pipeline.is_tracing:
            return
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        given: list[Tensor | None]
        if grad_tensors is None:
            given = [None] * len(roots)
        else:
            given = [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors)
        pipeline.backward(roots, given, self._gradient_scale())

    def _gradient_scale(self) -> float:
        if not self.averages_microbatches or self._comm_hook is not None:
            return 1.0
        return current_pipeline("model.backward()").weight

    # --- partition -------------------------------------------------------------------------------

    def partition(self, pipeline: Pipeline, run_body: Callable[[], Any] | None) -> None:
        """Decides where everything goes, and puts it there; a collective of all ranks.

        Args:
            run_body: on a leader, runs the step's body on the first microbatch.
        """
        config = self._job.config
        inner = self.get_module()
        if not config.auto_partition:
            assert config.default_partition is not None
            self._place(assign_by_hand(inner, config.default_partition))
            return
        message: list[Any] = [None, None]
        if self._job.rank == self._deciding_rank():
            try:
                message[0] = self._decide(pipeline, run_body)
            except Exception as error:
                message[1] = f"{type(error).__name__}: {error}"
                self._tell(message)
                raise
        self._tell(message)
        decision, failure = message
        if failure is not None:
            raise RuntimeError(
                f"rank {self._deciding_rank()} could not watch the step's first microbatch, so the"
                f" model was not partitioned: {failure}. Read the log of that rank."
            )
        self._place(decision)

    def _deciding_rank(self) -> int:
        return self._job.topology.members(GroupKind.PP, 0)[0]

    def _tell(self, message: list[Any]) -> None:
        dist.broadcast_object_list(
            message, self._deciding_rank(), group=self._job.cpu_group(GroupKind.WORLD)
        )

    def _decide(self, pipeline: Pipeline, run_body: Callable[[], Any] | None) -> Decision:
        config = self._job.config
        inner = self.get_module()
        found = None
        if not config.skip_tracing and run_body is not None:
            pipeline.is_tracing = True
            try:
                run_body()
            except Traced:
                found = self._trace
            finally:
                pipeline.is_tracing = False
                self._trace = None
        if found is None:
            found = tracing.untraced(inner, self._job.device)
        active = config.active_microbatches or config.microbatches
        assignment = tracing.decide(
            found, config.partitions, config.memory_weight, min(active, config.microbatches)
        )
        return Decision(dict(assignment.partition_of), dict(assignment.reasons))

    def _place(self, decision: Decision) -> None:
        job = self._job
        inner = self.get_module()
        placement = Placement(inner, decision, job.rank_in(GroupKind.PP))
        placement.apply(job.device)
        self._placement = placement
        if job.config.partitions > 1:
            _tell_of(placement, job.rank)
            current_pipeline("the model").place(placement)
            gradient_norms.install()
            state.call_at_reset(gradient_norms.uninstall)
        if job.config.ddp and job.size_of(GroupKind.DP) > 1:
            self._replicas = Replicas(
                placement,
                job.process_group(GroupKind.DP),
                job.device,
                broadcast_buffers=self._broadcast_buffers,
                bucket_cap_mb=self._bucket_cap_mb,
                gradient_as_bucket_view=self._gradient_as_bucket_view,
            )
            if self._comm_hook is not None:
                self._replicas.register_comm_hook(*self._comm_hook)
        if job.rank_in(GroupKind.DP) == 0 and job.config.partitions > 1:
            get_logger().info(
                "Broadcasted parameters and buffers for partition %d", placement.pp_rank
            )
        loads, self._deferred_loads = self._deferred_loads, []
        for loaded, strict, is_same in loads:
            self.load_state_dict(loaded, strict=strict, same_partition_load=is_same)
        settle_optimizers()
        for hook in list(self._partition_hooks.values()):
            hook(self, state.optimizer)
        self._partition_hooks.clear()

    @property
    def has_replicas(self) -> bool:
        """Whether gradients are reduced."""
        return self._replicas is not None

    # --- steps -----------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before the microbatches; on every rank."""
        self._leave_home()
        if self._replicas is not None and self.training and torch.is_grad_enabled():
            self._replicas.sync_buffers()

    def before_last_backward(self) -> None:
        """Of a step, on this rank."""
        if self._replicas is not None and self._overlaps and self._reduces_now():
            self._replicas.arm()

    def end_step(self, was_backward_called: bool) -> None:
        """After the microbatches; on every rank. Gradients are final when it returns."""
        if was_backward_called:
            reduces = self._reduces_now()
            if self._syncs:
                self._passes = (self._passes + 1) % self._passes_per_step
            if self._replicas is not None and reduces:
                self._replicas.finish()
        hooks, self._step_hooks = self._step_hooks, OrderedDict()
        for hook in hooks.values():
            hook(self, state.optimizer)

    def fail_step(self) -> None:
        """The step has raised."""
        if self._replicas is not None:
            self._replicas.forget_step()

    def reduce_pending(self) -> None:
        """Averages gradients of steps that did not; every replica must call it."""
        if self._passes and self._replicas is not None:
            self._passes = 0
            self._replicas.finish()

    def _reduces_now(self) -> bool:
        return self._syncs and self._passes == self._passes_per_step - 1

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Steps in this block leave gradients of this replica alone (ours)."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

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

    # --- data parallelism ------------------------------------------------------------------------

    def join(self, *args: Any, **kwargs: Any) -> contextlib.AbstractContextManager[Any]:
        """As of torch's DDP: replicas may run different numbers of steps in this block.

        Raises:
            RuntimeError: without `ddp`; before the model is partitioned.
        """
        self._require_ddp("join()")
        self.placement("join()")
        if self._replicas is None:
            return contextlib.nullcontext()
        return self._replicas.join(*args, **kwargs)

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """As of torch's DDP. The hook averages, over replicas and over microbatches.

        Raises:
            RuntimeError: without `ddp` or `overlapping_allreduce`; a second one.
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

    def _require_ddp(self, what: str) -> None:
        if not self._job.config.ddp:
            raise RuntimeError(
                f"{what} is about replicas, but there are none; expected data parallelism. Set"
                " ddp: True in the configuration."
            )

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Tensor:
        """Scales the gradients of all ranks so that their norm is at most `max_norm` (ours).

        As `torch.nn.utils.clip_grad_norm_` of the whole model; a collective of the MP group.

        Returns: the norm before; the same on all ranks.

        Raises:
            RuntimeError: inside of a step; the norm is not finite, and that was not wanted.
        """
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
        `gather_to_rank0` only rank 0 gets it.
        """
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

        Before the model is partitioned, a partial one waits until it is.
        """
        self._leave_home()
        if self._placement is None and state_dict.get(state_dicts.IS_PARTIAL, False):
            self._deferred_loads.append((state_dict, strict, same_partition_load))
            return nn.modules.module._IncompatibleKeys([], [])
        return state_dicts.load_state_dict(
            self.get_module(), self._placement, self._job, state_dict, strict, same_partition_load
        )

    # --- devices and dtypes ----------------------------------------------------------------------

    def to(self, *args: Any, **kwargs: Any) -> DistributedModel:
        """Dtypes change at once; devices are chosen by the partition, which ignores this one."""
        parsed: Any = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype, *_ = parsed
        if device is not None and self._placement is None:
            get_logger().warning(
                "Model has not been partitioned yet, ignoring move of params and buffers to devices"
            )
        if dtype is not None:
            self._cast(dtype)
        if device is not None and self._placement is not None:
            for tensor in (*self.local_parameters(), *self.local_buffers()):
                tensor.data = tensor.data.to(device)
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
        """
        state_dicts.bring_home(self.get_module(), self._placement, self._job)
        if self._placement is not None:
            self._is_home = True
            if self._job.config.partitions > 1:
                current_pipeline("model.cpu()").executor().close()
        return self

    def _leave_home(self) -> None:
        if not self._is_home or self._placement is None:
            return
        self._is_home = False
        self._placement.apply(self._job.device)
        if self._job.config.partitions > 1:
            current_pipeline("the model").place(self._placement)

    def _cast(self, dtype: torch.dtype) -> None:
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.is_floating_point():
                is_absent = tensor.numel() > 1 and not any(tensor.stride())
                data = tensor.data.flatten()[:1].to(dtype) if is_absent else tensor.data.to(dtype)
                tensor.data = data.expand(tensor.shape) if is_absent else data


def _forget_model(_: object) -> None:
    state.model = None


def _check_arguments(
    module: nn.Module, trace_device: str, is_measured: bool, passes_per_step: int
) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"smp.DistributedModel got {type(module).__name__}; expected a torch.nn.Module."
        )
    if trace_device not in _TRACE_DEVICES:
        raise ValueError(f"trace_device is {trace_device!r}; expected one of {_TRACE_DEVICES}.")
    if is_measured and trace_device == "cpu":
        raise ValueError(
            'trace_execution_times=True with trace_device="cpu": expected times of the device that'
            ' will run the model. Use trace_device="gpu", or do not measure.'
        )
    if type(passes_per_step) is not int or passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step is {passes_per_step!r}; expected 1 or more.")
    for name, part in module.named_modules():
        if isinstance(part, (DistributedDataParallel, nn.DataParallel)) or _is_fully_sharded(part):
            raise TypeError(
                f"{name or 'the module'} is a {type(part).__name__}; expected modules that no other"
                " library distributes. Wrap the plain module, and set ddp: True for replicas."
            )
        if isinstance(part, DistributedModel):
            raise TypeError("a DistributedModel was wrapped again; expected the plain module.")


def _is_fully_sharded(module: nn.Module) -> bool:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    return bool(kinds & {"FullyShardedDataParallel", "FSDPModule"})


def _tell_of(placement: Placement, rank: int) -> None:
    if rank == 0:
        get_logger().info("Partition assignments:")
        for line in placement.decision.lines():
            get_logger().info("  %s", line)
    parameters = [parameter for _, parameter in placement.local_parameters()]
    get_logger().info(
        "Number of parameters on partition %d are %d. %d require grads",
        placement.pp_rank,
        sum(parameter.numel() for parameter in parameters),
        sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
    )
    get_logger().info("Finished partitioning the model")
