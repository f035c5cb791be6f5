# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `smp.DistributedOptimizer` returns in 16-bit training: an optimizer around the user's.

The inner optimizer is a distributed one already: it refuses to run inside of steps, and gathers and
merges states over ranks. Around it are masters, in place of its 16-bit parameters, and the loss
scale. Masters are made when they are first needed, so that what a script loads into the model or
keeps in fp32 before its first update is in them.

Source: modelparallel specification, sections 4.5 and 6.7.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError
from smdistributed.modelparallel.torch.job.gathering import gather
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.optimizer.gradient_norms import total_norm
from smdistributed.modelparallel.torch.optimizer.sharding import is_sharded, parameters_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.casting import dtype_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.loss_scaler import LossScaler
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import (
    Masters,
    model_parameter_of,
)
from smdistributed.modelparallel.torch.optimizer.states import (
    absent,
    current_placement,
    united_shards,
)
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline
from smdistributed.modelparallel.torch.saving.checkpoints.agreement import WaitingLoad
from smdistributed.modelparallel.torch.saving.state_dicts import FP16_STATES, IS_PARTIAL, snapshot

__all__ = ["Bit16Optimizer", "current_optimizer", "make_scaler"]

_NO_STATES: Mapping[str, Any] = {IS_PARTIAL: True}
"""Of a rank that has no part, and takes what others have."""

_PLAIN = 2.0
"""What ranks tell each other of gradients without the loss scale; 1 is an overflow."""


class Inner(Protocol):
    """What the distributed inner optimizer offers beside its methods.

    Attributes:
        waiting: a state that was loaded before the model was partitioned.
        name: of the optimizer, see `_Parts`.
    """

    waiting: Mapping[str, Any] | None
    name: str

    def check_job(self, what: str) -> Job:
        """Raises SMPError if the optimizer is of a job before this one."""

    def settle(self) -> None:
        """Lets go of what is elsewhere, if the model is partitioned."""

    def waiting_loads(self) -> list[WaitingLoad]:
        """What `load_waiting` would load."""

    def load_waiting(self) -> None:
        """Loads a state that waits."""

    def forget_waiting(self) -> None:
        """The state that waits is not loaded."""

    def wait_with(self, state_dict: Mapping[str, Any]) -> None:
        """Keeps a state until then; learning rates and such are set at once."""


def current_optimizer() -> Bit16Optimizer | None:
    """The one whose loss scale is in force."""
    optimizer = state.optimizer
    return optimizer if isinstance(optimizer, Bit16Optimizer) else None


def make_scaler(
    config: Config,
    static_loss_scale: float | None,
    dynamic_loss_scale: bool,
    dynamic_loss_args: Mapping[str, Any],
) -> LossScaler | None:
    """What the arguments of `smp.DistributedOptimizer` ask for; of bf16, 1; of fp32, nothing.

    Raises:
        TypeError, ValueError: of `dynamic_loss_args`; neither kind of scale was chosen.
    """
    if dtype_of(config) is None:
        return None
    dynamic = LossScaler.dynamic(dynamic_loss_args)  # checks them in any case
    if config.bf16:
        return LossScaler()
    if dynamic_loss_scale:
        return dynamic
    if static_loss_scale is None:
        raise ValueError(
            "static_loss_scale is None and dynamic_loss_scale is False; expected one of the two."
            " Pass dynamic_loss_scale=True, or a number."
        )
    return LossScaler(cur_scale=static_loss_scale)


class Bit16Optimizer(torch.optim.Optimizer):
    """Updates a 16-bit model in fp32.

    Attributes that it has not got are the inner optimizer's: `param_groups`, `state`, hooks.

    Args:
        optimizer: the user's, made a distributed one.
        inner: what that offers beside its methods.
        loss_scaler: as `make_scaler` returns it.

    Attributes:
        optimizer: the inner optimizer; for LR schedulers, which take this one too.
        loss_scaler: see there.
        overflow: the last gradients that were looked at were infinite or NaN on some rank.
        first_closure_call_this_step: of Apex; always True.
        master_params_created: whether there are masters; scripts may set it, nothing here reads it.
    """

    def __init__(self, optimizer: Any, inner: Inner, loss_scaler: LossScaler) -> None:
        # Not torch's: groups, states and hooks are those of the inner one.
        self.optimizer = optimizer
        self._inner = inner
        self._masters = Masters(optimizer)
        self._elsewhere: frozenset[int] | None = None
        self._waiting: Mapping[str, Any] | None = None
        self._is_unscaled = self._is_mixed = self._has_scaled = False
        self.loss_scaler = loss_scaler
        self.overflow = False
        self.first_closure_call_this_step = True
        self.master_params_created = False
        self.redefined_params = False
        self._is_accelerate_prepared = True
        kind = "dynamic" if loss_scaler.is_dynamic else "static"
        if state.rank == 0:
            get_logger().info(
                "Bit16_Optimizer initialized: %s in %s, %s loss scale of %g",
                type(optimizer).__name__,
                str(dtype_of(state.cfg)).removeprefix("torch."),
                kind,
                loss_scaler.loss_scale,
            )

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # not made yet
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    # --- loss scale ------------------------------------------------------------------------------

    @property
    def loss_scale(self) -> float:
        """What `model.backward` multiplies the loss by. The same on all ranks; set it on all."""
        return self.loss_scaler.loss_scale

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler.cur_scale = float(value)

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether it changes."""
        return self.loss_scaler.is_dynamic

    @property
    def step_was_skipped(self) -> bool:
        """What Accelerate asks."""
        return self.overflow

    # --- masters ---------------------------------------------------------------------------------

    def init_master_params(self) -> None:
        """Makes the masters that are missing; the first update does it by itself. Not collective.

        Raises:
            ModelNotPartitionedError: it is not decided yet which parameters are here.
        """
        if self._elsewhere is None:
            placement = current_placement()
            if placement is None:
                raise ModelNotPartitionedError(
                    "fp32 copies of the 16-bit parameters were asked for before the model was"
                    " partitioned; expected it after the first call of a function decorated with"
                    " @smp.step. Ask there, or in a hook: model.register_post_partition_hook()."
                )
            self._elsewhere = absent(placement)
        self._masters.make(self._elsewhere)
        self.master_params_created = True

    @property
    def fp16_groups(self) -> list[list[Tensor]]:
        """By group, this rank's 16-bit parameters that have a master."""
        return [[model_parameter_of(each) for each in group] for group in self._masters.in_groups()]

    @property
    def fp32_from_fp16_groups(self) -> list[list[nn.Parameter]]:
        """By group, the masters; in the order of `fp16_groups`."""
        return self._masters.in_groups()

    def reload_model_params(self) -> None:
        """Masters become the model's parameters, after something else has changed these."""
        self._masters.from_parameters()

    def note_load(self) -> None:
        """The model has loaded parameters: masters follow, but keep the precision they have.

        So it does not matter which is loaded first, masters or the parameters rounded from them.
        """
        self._masters.refresh()

    # --- a step ----------------------------------------------------------------------------------

    def backward(self, loss: Tensor, update_master_grads: bool = True) -> None:
        """`model.backward(loss)`, which scales the loss; of Apex.

        Args:
            update_master_grads: call that too; not inside of a step function, after which
                `clip_master_grads` and `step` do it.
        """
        state.model.backward(loss)
        pipeline = current_pipeline("optimizer.backward()")
        if update_master_grads and pipeline.is_outside:
            self.update_master_grads()

    def note_backward(self) -> None:
        """The model has got gradients, times the loss scale."""
        self._is_mixed |= self._is_unscaled
        self._has_scaled = True

    def update_master_grads(self) -> None:
        """Gives masters the gradients, without the loss scale; sets `overflow`.

        A collective of all ranks, blocking: one number. Once the gradients are those of this step,
        further calls do nothing.

        Raises:
            RuntimeError: inside of a step; there are new gradients on top of those that are done;
                another optimizer's loss scale was in force; gradients of `loss.backward()`, which
                knows of no loss scale.
        """
        job = state.require("optimizer.update_master_grads()")
        pipeline = current_pipeline("optimizer.update_master_grads()")
        if not pipeline.is_outside:
            raise RuntimeError(
                "gradients were unscaled inside of a step; expected a call of optimizer.step() or"
                " clip_master_grads() after it, on all ranks, when the gradients of all"
                " microbatches are there. Move the call out of the function that is decorated with"
                " @smp.step."
            )
        if self._is_mixed:
            raise RuntimeError(
                "model.backward() was called after the gradients had been unscaled; expected all"
                " gradients of an update before clip_master_grads(), update_master_grads() and"
                " step(). Move these calls to the end, or call zero_grad() of the model or the"
                " optimizer in between."
            )
        if self._is_unscaled:
            return
        if state.optimizer is not self:
            raise RuntimeError(
                "the gradients have the loss scale of another optimizer; expected that this one was"
                " the last that was passed to smp.DistributedOptimizer. Update all parameters with"
                " one optimizer, in groups."
            )
        has_plain = self._has_plain_gradients()
        if state.model is not None:
            state.model.reduce_pending()
        self.init_master_params()
        found = _PLAIN if has_plain else float(self._masters.update_gradients(self.loss_scale))
        if job.size > 1:
            worst = torch.tensor(found, device="cpu")
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=job.cpu_group(GroupKind.WORLD))
            found = float(worst)
        if found == _PLAIN:
            raise RuntimeError(
                "there are gradients without the loss scale, which is"
                f" {self.loss_scale:g}: model.backward() was not called since zero_grad(), and the"
                " update would be too small by that factor; expected model.backward(loss) instead"
                " of loss.backward(), which knows of no loss scale. Call that, after zero_grad()."
            )
        self.overflow = bool(found)
        self._is_unscaled = True

    def _has_plain_gradients(self) -> bool:
        """Whether what is here came without the loss scale."""
        if self._has_scaled or self.loss_scale == 1.0:
            return False
        parameters = (model_parameter_of(each) for each in parameters_of(self.optimizer))
        return any(each.grad is not None for each in parameters)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales the gradients of masters and fp32 parameters so that their norm is at most this.

        The norm is that of all ranks of the model. A collective of all ranks, blocking; between the
        step function and `step()`.

        Returns: the norm before, without the loss scale; -1 on overflow. The same on all ranks.

        Raises: as `update_master_grads`.
        """
        self.update_master_grads()
        if self.overflow:
            return -1.0
        norm = total_norm(parameters_of(self.optimizer), norm_type)
        clip_grads_with_norm_(self._masters.updated(), max_norm, torch.tensor(norm))
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates masters with the inner optimizer, and parameters from them; not on overflow.

        A collective of all ranks, blocking.

        Returns: what the closure returns, which is called once.

        Raises: as `update_master_grads`.
        """
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self.update_master_grads()
        self._is_unscaled = False
        if not self.overflow:
            self._step_inner()
        self.loss_scaler.update_scale(self.overflow)
        if self.overflow and state.rank == 0:
            get_logger().log(
                logging.INFO if self.dynamic_loss_scale else logging.WARNING,
                "a gradient was infinite or NaN; the step was skipped. The loss scale is now %g.",
                self.loss_scale,
            )
        return result

    def _step_inner(self) -> None:
        """The only place where the inner optimizer's `step` is called."""
        self.optimizer.step()
        self._masters.to_parameters()

    def zero_grad(self, set_to_none: bool = True, set_grads_to_None: bool | None = None) -> None:  # noqa: N803
        """Lets go of the model's gradients, or fills them with zeros; masters' are let go of."""
        to_none = set_to_none if set_grads_to_None is None else set_grads_to_None
        self.note_zero_grad()
        for pair in self._masters.pairs:
            if to_none:
                pair.parameter.grad = None
            elif pair.parameter.grad is not None:
                pair.parameter.grad.detach_().zero_()
        self.optimizer.zero_grad(set_to_none=to_none)

    def note_zero_grad(self) -> None:
        """The model's gradients are gone: so are those of masters, and what was noted of them."""
        self._is_unscaled = self._is_mixed = self._has_scaled = False
        for pair in self._masters.pairs:
            pair.master.grad = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of torch; its masters are made with the next update."""
        self.optimizer.add_param_group(param_group)

    # --- states ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, of all ranks, and `fp16_states`: masters, and the loss scaler.

        A collective of the MP group, once the model is partitioned; then in CPU memory, unless
        there is one partition. torch's optimizers can load it, into parameters in fp32.

        Raises: as of an fp32 optimizer.
        """
        whole: dict[str, Any] = self.optimizer.state_dict()
        if current_placement() is None:
            has_none = self._waiting is None or self._waiting is _NO_STATES
            if has_none:
                return whole
            return {**whole, FP16_STATES: snapshot(self._waiting, copies_tensors=True)}
        return {**whole, FP16_STATES: self._gathered_states()}

    def local_state_dict(self, gather_if_shard: bool = True) -> dict[str, Any]:
        """What of `state_dict` is of this rank's parameters, and `_smp_is_partial: True`.

        Not collective. Tensors are the optimizer's own.

        Raises:
            ModelNotPartitionedError: it is not decided yet which those are.
        """
        if current_placement() is not None:
            self.init_master_params()  # it is they that have owners in a sharded state
        own: dict[str, Any] = self.optimizer.local_state_dict(gather_if_shard=gather_if_shard)
        return {**own, FP16_STATES: self.local_fp16_states()}

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Takes either, or several shards as a list; until the model is partitioned, it waits.

        Masters wait with the values that they have at the call. What is partial is merged over the
        MP group, or all ranks where states are spread over replicas; a collective, blocking: a rank
        without a part passes `{"_smp_is_partial": True}`.
        Without `fp16_states`, as of an optimizer in fp32, masters and loss scale stay as they are.

        Raises:
            ValueError: torch's; masters do not fit.
        """
        if not isinstance(state_dict, Mapping):
            state_dict = _united(state_dict)
        rest = {key: value for key, value in state_dict.items() if key != FP16_STATES}
        states = state_dict.get(FP16_STATES)
        if state_dict.get(IS_PARTIAL, False):  # each rank takes part in merging, also without any
            states = _NO_STATES if states is None else {**states, IS_PARTIAL: True}
        self._inner.check_job("optimizer.load_state_dict()")
        if current_placement() is None:
            kept = states if states is _NO_STATES else snapshot(states, copies_tensors=True)
            self._inner.wait_with(rest)  # first, as it may refuse
            if kept is not None and (kept is not _NO_STATES or self._waiting is None):
                self._waiting = kept
            return
        self.init_master_params()  # or torch would cast the state to the parameters' 16 bits
        # Merged before the rest is loaded, which may fail here alone.
        states = None if states is None else self._merged(states)
        self.optimizer.load_state_dict(rest)
        if states is not None:
            self._take(states)

    def local_fp16_states(self) -> dict[str, Any]:
        """Masters of this rank, by names of their parameters, and the loss scaler. Not collective.

        Raises:
            ModelNotPartitionedError: it is not decided yet which those are.
        """
        self.init_master_params()
        return {**self._states(self._masters.named(_names())), IS_PARTIAL: True}

    def load_fp16_states(self, states: Mapping[str, Any]) -> None:
        """Takes what `local_fp16_states` gave, or `fp16_states` of a state dictionary.

        Until the model is partitioned it waits, with the values that it has at the call. What is
        partial is merged over the MP group, or all ranks where states are spread over replicas, a
        collective, blocking: so it may have been saved with another number of partitions.

        Raises:
            ValueError: a 16-bit parameter of this rank is not in it, or has another shape.
        """
        self._inner.check_job("optimizer.load_fp16_states()")
        if current_placement() is None:
            self._waiting = snapshot(states, copies_tensors=True)
            return
        self.init_master_params()
        self._take(self._merged(states))

    def _take(self, states: Mapping[str, Any]) -> None:
        """Masters and loss scale become those of `_merged`; unless no rank had any."""
        scaler: Any = states.get("loss_scaler")
        if states is _NO_STATES:
            return
        self._masters.load(states.get("masters", {}), _names())
        if scaler is not None and scaler["is_dynamic"] and self.dynamic_loss_scale:
            self.loss_scaler.load_state_dict(scaler)  # a static one is what the script says

    def settle(self) -> None:
        """The model has been partitioned: lets go of what is elsewhere. Not collective."""
        if current_placement() is None:
            return
        is_asked_for = self._inner.waiting is not None
        if not is_asked_for and is_sharded(state.require("the optimizer")):
            is_asked_for = bool(getattr(self.optimizer, "state", None))
        if is_asked_for:
            self.init_master_params()  # before it is decided who owns what
        self._inner.settle()

    @property
    def name(self) -> str:
        """See `_Parts`."""
        return self._inner.name

    @name.setter
    def name(self, name: str) -> None:
        self._inner.name = name

    def waiting_loads(self) -> list[WaitingLoad]:
        """What `load_waiting` would load, one after the other."""
        loads = self._inner.waiting_loads()
        if self._waiting is not None:
            is_partial = bool(self._waiting.get(IS_PARTIAL, False))
            loads.append(WaitingLoad(self.name, "fp32 weights", is_partial))
        return loads

    def forget_waiting(self) -> None:
        """The states that wait are not loaded."""
        self._inner.forget_waiting()
        self._waiting = None

    def load_waiting(self) -> None:
        """Loads one of the states that wait. On every rank: what is partial is merged."""
        if self._inner.waiting is not None:
            self._inner.load_waiting()
        elif self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self.load_fp16_states(waiting)

    def _states(self, masters: Mapping[str, Tensor]) -> dict[str, Any]:
        return {"masters": dict(masters), "loss_scaler": self.loss_scaler.state_dict()}

    def _gathered_states(self) -> dict[str, Any]:
        job = state.require("optimizer.state_dict()")
        self.init_master_params()
        own = self._masters.named(_names())
        if job.holds_whole_model:
            return self._states(own)
        _, masters = gather(job, lambda: (None, own), lambda *_: True, copies=True)
        return self._states(masters)

    def _merged(self, states: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of partial states, what this rank needs of all ranks', and the first scaler among them.

        `_NO_STATES` if no rank has any.
        """
        if not states.get(IS_PARTIAL, False):
            return states
        job = state.require("optimizer.load_state_dict()")
        kind = GroupKind.WORLD if is_sharded(job) else GroupKind.MP
        masters: Mapping[str, Tensor] = states.get("masters", {})
        scaler: Any = states.get("loss_scaler")
        if job.size_of(kind) == 1:
            return states if masters or scaler is not None else _NO_STATES
        here = set(self._masters.named(_names()))

        def wants(member: int, name: Any, notes: Sequence[Any]) -> bool:
            return name in notes[member][0]

        notes, found = gather(
            job, lambda: ((here, scaler), masters), wants, copies=False, kind=kind
        )
        scalers = [
            theirs for theirs in (scaler, *(each for _, each in notes)) if theirs is not None
        ]
        if not found and not scalers:
            return _NO_STATES
        held = {name: value for name, value in found.items() if name in here}
        return {"masters": held, "loss_scaler": scalers[0] if scalers else None}


def _united(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several parts as one; masters are by name, the scaler is the same in all."""
    whole = united_shards(parts)
    found = [part[FP16_STATES] for part in parts if FP16_STATES in part]
    if found:
        masters = {name: value for each in found for name, value in each["masters"].items()}
        whole[FP16_STATES] = {**found[0], "masters": masters}
    return whole


def _names() -> dict[int, str]:
    """Of the model's parameters, by `id`."""
    return {id(parameter): name for name, parameter in state.model.named_parameters()}
