# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy `DistributedDataParallel`: torch's class with a reducer of our own.

    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
    model = DDP(model)

torch's class stays in charge of everything that is not about gradients: the wrapped module and its
`module.` prefix, devices of inputs, buffers, pickling, `Join`. Its C++ reducer is replaced where it
would be made (`_ddp_init_helper`) and where it is told of forwards (`_pre_forward`,
`_post_forward`). What the reducer does instead stands in `reducer.py`.

With one rank there is nothing to reduce, and nothing is hooked.

Source: dataparallel specification, section 5.2.
"""

# Much of torch's class has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, _disable_dynamo, nn  # type: ignore[attr-defined]
from torch.distributed.algorithms.join import Join, JoinHook
from torch.nn.parallel.distributed import DistributedDataParallel as TorchDistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors, _to_kwargs  # type: ignore[attr-defined]

from smdistributed._common.settings import process_settings
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported
from smdistributed.dataparallel.fusion import parse_bucket_cap
from smdistributed.dataparallel.torch.default_group import require_initialized, resolve_group
from smdistributed.dataparallel.torch.deprecation import (
    ACCUMULATION_ADVICE,
    DEPRECATION_TEXT,
    warn_legacy,
)
from smdistributed.dataparallel.torch.parallel.agreement import describe_model, require_agreement
from smdistributed.dataparallel.torch.parallel.join import ShadowSteps
from smdistributed.dataparallel.torch.parallel.reducer import GradientReducer
from smdistributed.dataparallel.torch.registration import register

__all__ = ["DistributedDataParallel"]

register()

_MIB = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class _Options:
    """Arguments that the reducer is made with, again after unpickling."""

    bucket_cap_bytes: int
    find_unused_parameters: bool
    static_graph: bool
    gradient_accumulation_steps: int


class DistributedDataParallel(TorchDistributedDataParallel):
    """Averages gradients over all ranks while backward goes on. Deprecated since 1.4.0.

    Making one is a collective of the group: ranks compare their models, then parameters and buffers
    are broadcast from rank 0. Afterwards `.grad` of a parameter is a view into a bucket: its memory
    is used again by the next backward.

    Args:
        module: with all parameters registered, in the same order on every rank.
        device_ids: None, or the one CUDA device of the module; None or empty for a module on the
            CPU or on several devices.
        output_device: None, or that device.
        broadcast_buffers: broadcast buffers from rank 0 before each forward too.
        process_group: None, `group.WORLD` or a torch process group.
        bucket_cap_mb: bytes of gradients, in MiB, that are reduced together; a number whose bytes
            are a positive multiple of 128. None is `SMDDP_BUCKET_CAP_MB`, or else 25.
        find_unused_parameters: some parameters may receive no gradient in a step, different ones on
            each rank. They count as zeros; a parameter that no rank used keeps its gradient.
        gradient_accumulation_steps: k reduces on every k-th forward and backward only.
        static_graph: all steps use the same parameters, equally often, as the first does.
        gradient_as_bucket_view, dim, check_reduction: accepted. Gradients always are views.

    Raises:
        SMDDPNotInitialized: there is no process group.
        SMDDPConfigInvalid: (a ValueError) an argument has a value that cannot work.
        SMDDPMismatch: on every rank, if the ranks' models or arguments differ.

    Errors during training: `backward()` and the forward raise what collectives do (`SMDDPPeerLost`,
    `SMDDPTimeoutError`, `SMDDPMismatch`); the forward also raises `SMDDPMismatch` if the last step
    left parameters without a gradient, also where no gradients are recorded.

    A second backward of one forward is reduced too if the forward returns tensors, or lists,
    tuples, dicts or dataclasses of them; of other objects only the first is.

    Source: specification, section 5.2; order and threshold of buckets, section 6.1.
    """

    reducer: GradientReducer | None  # type: ignore[assignment] # takes the place of torch's
    _divide_by_initial_world_size: bool  # set by `Join`

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        *,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        gradient_accumulation_steps: int | None = None,
        dim: int = 0,
        check_reduction: bool = False,
        static_graph: bool = False,
    ) -> None:
        warn_legacy(DEPRECATION_TEXT)
        require_initialized("DistributedDataParallel")
        group = resolve_group(process_group)
        cap_bytes = parse_bucket_cap(bucket_cap_mb, process_settings().bucket_cap_bytes)
        self._options = _Options(
            cap_bytes,
            bool(find_unused_parameters),
            bool(static_graph),
            _check_accumulation(gradient_accumulation_steps),
        )
        self._accumulated = 0
        arguments = dataclasses.asdict(self._options)
        arguments["broadcast_buffers"] = bool(broadcast_buffers)
        _agree(module, arguments, group)
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            dim=dim,
            forward_sync_buffers=bool(broadcast_buffers),
            process_group=group,
            bucket_cap_mb=cap_bytes / _MIB,
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
        )
        self.static_graph = static_graph

    # ---- in the place of torch's reducer ---------------------------------------------------

    def _ddp_init_helper(
        self,
        parameters: list[Tensor],
        expect_sparse_gradient: list[bool],
        param_to_name_mapping: Mapping[int, str],
        static_graph: bool,
    ) -> None:
        """Make the reducer; torch calls this when wrapping, copying and unpickling."""
        self.logger = None  # torch's collects statistics of its own reducer
        self.reducer = None
        if dist.get_world_size(self.process_group) > 1:
            self._make_reducer(parameters)
        self._passing_sync_batchnorm_handle(self.module)

    def _make_reducer(self, parameters: list[Tensor]) -> None:
        names = {p: name for name, p in self.module.named_parameters()}
        self.reducer = GradientReducer(
            [(names[p], p) for p in parameters],
            self.process_group,
            self._options.bucket_cap_bytes,
            find_unused=self._options.find_unused_parameters,
            static_graph=self._options.static_graph,
        )

    @_disable_dynamo  # torch.compile compiles the module between these two
    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
        if not self._lazy_init_ran:
            self._lazy_init()
        work = Join.notify_join_context(self)
        if self.reducer is not None:
            self.reducer.require_complete()
            if torch.is_grad_enabled():
                self._count_backwards(self.reducer)
                self.reducer.prepare_forward(
                    sync=self._reduces_next_backward(), active_ranks=self._divisor(work)
                )
            if self._check_sync_bufs_pre_fwd():
                self._sync_buffers()
            if self._join_config.enable:
                self._check_global_requires_backward_grad_sync(is_joined_rank=False)
        if not self.device_ids:
            return inputs, kwargs
        device = torch.device(self.device_type, self.device_ids[0])
        moved_inputs, moved_kwargs = _to_kwargs(
            inputs, kwargs, device, self.use_side_stream_for_tensor_copies
        )
        return moved_inputs[0], moved_kwargs[0]

    @_disable_dynamo
    def _post_forward(self, output: Any) -> Any:
        if self.reducer is None:
            return output
        if self._check_sync_bufs_post_fwd():
            self._sync_buffers()
        self.require_forward_param_sync = torch.is_grad_enabled() and self._reduces_next_backward()
        if self.require_forward_param_sync:
            for tensor in _find_tensors(output):
                if tensor.grad_fn is not None:
                    self.reducer.watch_output(tensor)
        return output

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Moves and casts; buckets follow where parameters have really changed."""
        result = super()._apply(fn, recurse)
        if self.reducer is not None:
            self.reducer.follow_parameters()
        self.device = next(iter(self._module_parameters)).device
        self.device_type = self.device.type
        return result

    def _set_static_graph(self) -> None:
        """As the argument `static_graph=True`; before the first step."""
        self.static_graph = True
        self._options = dataclasses.replace(self._options, static_graph=True)
        if self.reducer is not None:
            self.reducer.learn_graph()

    def _setup_in_backward_optimizers(self) -> None:
        if any(hasattr(p, "_in_backward_optimizers") for p in self._module_parameters):
            raise SMDDPUnsupported(
                "the model's optimizer steps during backward (apply_optimizer_in_backward), before"
                " gradients are averages; expected an optimizer that steps after backward. Use one,"
                " or torch.nn.parallel.DistributedDataParallel over the smddp backend."
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "static_graph": False})
        self.static_graph = state["static_graph"]

    # ---- which backwards are reduced -------------------------------------------------------

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context gradients accumulate locally, on each rank.

        The first forward and backward after leaving it reduces the sum of all. What counts is where
        the forward runs.
        """
        with super().no_sync():
            yield

    def _count_backwards(self, reducer: GradientReducer) -> None:
        if reducer.has_gradients:
            reducer.has_gradients = False
            self._accumulated += 1

    def _reduces_next_backward(self) -> bool:
        is_last = (self._accumulated + 1) % self._options.gradient_accumulation_steps == 0
        return bool(self.require_backward_grad_sync) and is_last

    def _check_global_requires_backward_grad_sync(self, is_joined_rank: bool) -> Any:
        """Tell ranks that have run out of batches whether to expect a reduction, or ask."""
        wanted = self.require_backward_grad_sync
        self.require_backward_grad_sync = not is_joined_rank and self._reduces_next_backward()
        try:
            return super()._check_global_requires_backward_grad_sync(is_joined_rank)
        finally:
            self.require_backward_grad_sync = wanted

    # ---- uneven batches --------------------------------------------------------------------

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What torch's `Join` calls on a rank that has run out of batches.

        Args:
            kwargs: `divide_by_initial_world_size`, default True.
        """
        return ShadowSteps(self, kwargs.get("divide_by_initial_world_size", True))

    def _divisor(self, work: Any) -> Callable[[], float] | None:
        """The number of ranks with batches, if that is to divide; `work` is what `Join` started."""
        if work is None or self._divide_by_initial_world_size:
            return None

        def active_ranks() -> float:
            return float(work.get_future().wait()[0].item())

        return active_ranks

    # ---- the rest of what torch's class offers ---------------------------------------------

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Let `hook(state, bucket)` reduce gradients, as with torch's class.

        Args:
            state: handed to the hook.
            hook: returns a future of the reduced buffer, which is taken as the average.

        Raises:
            SMDDPUnsupported: a hook has been registered already.
        """
        self._check_comm_hook(hook)
        if self.reducer is None:
            parameters, _ = self._build_params_for_reducer()
            self._make_reducer(parameters)
        assert self.reducer is not None
        self.reducer.set_comm_hook(hook, state)
        self._comm_hooks.append((hook, state))

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        """What is known about this wrapper; fewer entries than torch's."""
        sizes = self.reducer.bucket_sizes if self.reducer is not None else []
        return {
            "module_name": type(self.module).__name__,
            "world_size": dist.get_world_size(self.process_group),
            "rank": dist.get_rank(self.process_group),
            "backend_name": dist.get_backend(self.process_group),
            "bucket_cap_bytes": self._options.bucket_cap_bytes,
            "bucket_sizes": ", ".join(map(str, sizes)),
            "broadcast_buffers": int(self.forward_sync_buffers),
            "find_unused_parameters": int(self._options.find_unused_parameters),
            "static_graph": int(self._options.static_graph),
        }

    def _remove_autograd_hooks(self) -> None:
        if self.reducer is not None:
            self.reducer.remove_hooks()

    def _check_reducer_finalized(self) -> None:
        if self.reducer is not None:
            self.reducer.require_complete()

    def _belongs_to_torch(self, *_: Any, **__: Any) -> NoReturn:
        raise SMDDPUnsupported(
            "this method works on torch's own reducer, which the legacy DistributedDataParallel"
            " replaces; expected a documented method. Use"
            " torch.nn.parallel.DistributedDataParallel over the smddp backend, which has it."
        )

    _register_builtin_comm_hook = _belongs_to_torch
    _register_fused_optim = _belongs_to_torch
    _set_sparse_metadata = _belongs_to_torch
    _set_ddp_runtime_logging_sample_rate = _belongs_to_torch
    _update_process_group = _belongs_to_torch


def _check_accumulation(steps: Any) -> int:
    """The number of steps; 1 for None. Other values than that bring the advice of 1.4.0."""
    if steps is None:
        return 1
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise SMDDPConfigInvalid(
            f"gradient_accumulation_steps={steps!r} is not allowed; expected a whole number of at"
            " least 1, or None. Pass the number of backwards between two optimizer steps."
        )
    warn_legacy(ACCUMULATION_ADVICE)
    return steps


def _agree(module: nn.Module, arguments: Mapping[str, Any], group: Any) -> None:
    """Compare the model and the arguments with the other ranks'."""
    if dist.get_world_size(group) == 1:
        return
    parameter = next(iter(module.parameters()), None)
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    lines = describe_model(module, ignored, arguments)
    device = parameter.device if parameter is not None else torch.device("cpu")
    require_agreement(
        lines,
        group,
        device,
        what="DistributedDataParallel: the ranks wrap different models",
        advice="Expected all parameters to be registered before wrapping, in the same order, with"
        " the same shapes and dtypes on every rank, and the same arguments. Look for a branch that"
        " depends on the rank while the model is made.",
    )
