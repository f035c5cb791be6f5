# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedOptimizer`: any optimizer, with a state that is spread over ranks.

What has to be different in an optimizer is replaced in the object itself, as bound methods, so that
it stays what LR schedulers, gradient scalers and trainers expect. How its state is spread, and put
together, is in `states`.

The object may be made before the model is partitioned or even wrapped. Its parameters stay the same
objects; a state that is loaded so early waits until it is known which part of it belongs here.

Source: modelparallel specification, section 4.5.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from smdistributed._common.errors import UnsupportedError
from smdistributed._common.log import get_logger
from smdistributed.modelparallel.decide.config import Config
from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ModelNotPartitionedError, SMPError
from smdistributed.modelparallel.torch.job.state import Job, state
from smdistributed.modelparallel.torch.optimizer.sharding import (
    Shards,
    is_sharded,
    parameters_of,
    shard,
)
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.casting import dtype_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import model_parameter_of
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.optimizer import (
    Bit16Optimizer,
    make_scaler,
)
from smdistributed.modelparallel.torch.optimizer.states import (
    SHARDS,
    absent,
    current_placement,
    gathered_shards,
    gathered_state,
    has_nothing_here,
    indices_by_id,
    is_like_torchs,
    local_state,
    merged_state,
    move_state,
    parameters_here,
    united_shards,
)
from smdistributed.modelparallel.torch.pipeline.interception import NO_ZERO_GRAD
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline
from smdistributed.modelparallel.torch.saving.checkpoints.agreement import WaitingLoad
from smdistributed.modelparallel.torch.saving.state_dicts import FP16_STATES, IS_PARTIAL, snapshot

__all__ = ["DistributedOptimizer", "forget_waiting", "load_waiting", "settle_optimizers"]

_PARTS = "_smp_parts"
_SIXTEEN_BIT = "_smp_sixteen_bit"


def DistributedOptimizer(  # noqa: N802 -- published
    optimizer: Any,
    static_loss_scale: float | None = 1.0,
    dynamic_loss_scale: bool = False,
    dynamic_loss_args: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Makes an optimizer of the model's parameters one that knows they are on several ranks.

    Args:
        optimizer: of `model.parameters()`: torch's, or any object with `param_groups`, `step` and
            `state_dict`. Made before or after the model is wrapped.
        static_loss_scale: of 16-bit training, as all that follow; ignored in fp32, and with bf16,
            whose loss scale is 1. The factor of the loss; None with a dynamic one.
        dynamic_loss_scale: the factor changes, by `dynamic_loss_args`: `init_scale`,
            `scale_factor`, `scale_window`, `min_scale`, `delayed_shift`, `consecutive_hysteresis`;
            see `sixteen_bit.loss_scaler`.
        kwargs: those keys, one by one.

    Returns: with `fp16` or `bf16` in the configuration a `sixteen_bit.optimizer.Bit16Optimizer`
        around it. Else the same object. Replaced are

        - `step`: outside of steps only; gradients that are not reduced yet are, first.
        - `zero_grad`: also takes Apex's `set_grads_to_None`.
        - `state_dict`: of all ranks, in CPU memory, once the model is partitioned; a collective of
          the MP group, blocking. `local_state_dict`: of this rank, and `_smp_is_partial: True`.
        - `load_state_dict`: either of them. What is partial is merged over the MP group first, so
          all its ranks must call it. Until the model is partitioned the state waits; learning
          rates and such are set at once. As with torch, its tensors stay the caller's, and its
          dictionaries may be changed.

        Added are `orig_state_dict`, `param_name_to_index`, `_param_id_to_index`,
        `_param_index_to_param_local`, `redefined_params`, `_is_accelerate_prepared` and
        `step_was_skipped`.

    Raises:
        SMPNotInitialized: before `smp.init()`.
        TypeError: no optimizer; an unknown key of `dynamic_loss_args`.
        ValueError: a loss scale that cannot be.
        UnsupportedError: (a NotImplementedError) sharded parameters are configured; LBFGS with
            several partitions or a sharded state, or in 16 bits; the optimizer was used in a job
            before `smp.reset()` that has changed it.
        SMPError: a state was loaded into it in a job before, and waits for a model that this job
            has placed already; it is dropped.
    """
    job = state.require("smp.DistributedOptimizer()")
    _check(optimizer, job.config)
    options = {**(dynamic_loss_args or {}), **kwargs}
    scaler = make_scaler(job.config, static_loss_scale, dynamic_loss_scale, options)
    known = getattr(optimizer, _PARTS, None)
    parts = known if isinstance(known, _Parts) else _Parts(optimizer, job)
    if parts is not known:
        setattr(optimizer, _PARTS, parts)
        parts.replace()
    is_new = parts is not known or parts.enter(job)
    if is_new and scaler is not None:
        setattr(optimizer, _SIXTEEN_BIT, Bit16Optimizer(optimizer, parts, scaler))
    around = getattr(optimizer, _SIXTEEN_BIT, None)
    state.optimizer = optimizer if around is None else around
    noted = around or parts
    _note(noted)
    noted.settle()
    return state.optimizer


@dataclasses.dataclass
class _Known:
    """Of this job, on this rank."""

    optimizers: list[weakref.ref[_Parts | Bit16Optimizer]] = dataclasses.field(default_factory=list)
    is_used: bool = False

    def forget(self) -> None:
        self.optimizers.clear()
        self.is_used = False


_known = _Known()


def _note(parts: _Parts | Bit16Optimizer) -> None:
    """Until `smp.reset()`: one of an earlier job may still be there, on some ranks, as garbage."""
    if not _known.is_used:
        _known.is_used = True
        state.call_at_reset(_known.forget)
    if all(reference() is not parts for reference in _known.optimizers):
        _known.optimizers.append(weakref.ref(parts))


def settle_optimizers() -> list[WaitingLoad]:
    """The model has been partitioned: optimizers let go of what is elsewhere. Not collective.

    Returns: what `load_waiting` has to load, one by one.
    """
    _settle_each()
    if _waiting():
        gc.collect()  # that of a model that is gone holds itself, and may be there on some ranks
        _name_each()
    return [load for parts in _waiting() for load in parts.waiting_loads()]


def _settle_each() -> None:
    # By itself, as its variables would keep the last of them from being collected.
    for reference in list(_known.optimizers):
        parts = reference()
        if parts is None:
            _known.optimizers.remove(reference)
        else:
            parts.settle()


def _name_each() -> None:
    """Ranks compare names: those of the model's optimizers depend on no others that a rank has."""
    own = {id(parameter) for parameter in state.model.parameters()}
    numbers, other_numbers = itertools.count(1), itertools.count(1)
    for reference in _known.optimizers:
        parts = reference()
        if parts is None:
            continue
        optimizer = parts.optimizer if isinstance(parts, Bit16Optimizer) else parts.optimizer()
        if any(id(model_parameter_of(each)) in own for each in parameters_of(optimizer)):
            parts.name = f"optimizer {next(numbers)}"
        else:
            parts.name = f"optimizer {next(other_numbers)} of parameters that are not the model's"


def load_waiting() -> None:
    """Loads the first state that has waited. On every rank: partial ones are merged."""
    _waiting()[0].load_waiting()


def forget_waiting() -> None:
    """What has waited is not loaded."""
    for parts in _waiting():
        parts.forget_waiting()


def _waiting() -> list[_Parts | Bit16Optimizer]:
    known = (reference() for reference in _known.optimizers)
    return [parts for parts in known if parts is not None and parts.waiting_loads()]


def _check(optimizer: Any, config: Config) -> None:
    missing = [
        name for name in ("param_groups", "step", "state_dict") if not hasattr(optimizer, name)
    ]
    if missing:
        raise TypeError(
            f"smp.DistributedOptimizer got {type(optimizer).__name__}, which has no"
            f" {' and no '.join(missing)}; expected an optimizer. Pass one of torch.optim, or an"
            " object with param_groups, step and state_dict."
        )
    if config.sharded_data_parallel_degree > 1:
        raise UnsupportedError(
            "the configuration has sharded_data_parallel_degree, which smp.DistributedOptimizer"
            " does not know yet; expected parameters that are whole on each replica. Leave it out;"
            " shard_optimizer_state spreads optimizer states."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and config.shard_optimizer_state:
        raise UnsupportedError(
            "LBFGS with shard_optimizer_state: its state is of all parameters together; expected an"
            " optimizer that has one for each, as all others of torch.optim. Use one of those, or"
            " leave shard_optimizer_state out."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and dtype_of(config) is not None:
        raise UnsupportedError(
            "LBFGS in 16-bit training: it changes parameters several times in a step; expected an"
            " optimizer that does so once, as all others of torch.optim. Use one of those, or leave"
            " fp16 and bf16 out of the configuration."
        )
    if isinstance(optimizer, torch.optim.LBFGS) and config.partitions > 1:
        raise UnsupportedError(
            f"LBFGS with {config.partitions} partitions: it needs products over all parameters, and"
            " each rank has a part of them; expected an optimizer that treats each parameter by"
            " itself, as all others of torch.optim do. Use one of those, or one partition."
        )


class _Parts:
    """What an optimizer was before, and what it waits for.

    Attributes:
        waiting: a state that was loaded before the model was partitioned.
        optimizer: weakly; None once it is gone.
        name: of the optimizer among those of the model, in the order of their making; the same on
            all ranks that run the same script.
        shards: of a model that is placed, if states are spread over replicas.
    """

    def __init__(self, optimizer: Any, job: Job) -> None:
        self.optimizer = weakref.ref(optimizer)
        self._job = job
        self._lacks_states = False
        self.step: Callable[..., Any] = optimizer.step
        self.zero_grad: Callable[..., Any] | None = getattr(optimizer, "zero_grad", None)
        self.state_dict: Callable[[], Any] = optimizer.state_dict
        self.load: Callable[[Any], Any] | None = getattr(optimizer, "load_state_dict", None)
        self.waiting: Mapping[str, Any] | None = None
        self.shards: Shards | None = None
        self.name = "an optimizer"
        self._is_settled = False

    def enter(self, job: Job) -> bool:
        """Whether this is another job than the one before; the optimizer begins anew in it.

        Raises:
            UnsupportedError: a part of its states, or its parameters, went with the job before.
            SMPError: a state waits for a model that is placed already; it is dropped.
        """
        if job is self._job:
            return False
        is_16_bit = getattr(self.optimizer(), _SIXTEEN_BIT, None) is not None
        if self._lacks_states or self.shards is not None or is_16_bit:
            raise UnsupportedError(
                "the optimizer was passed to smp.DistributedOptimizer in a job before smp.reset(),"
                " where it got fp32 copies of parameters or kept only a part of the states;"
                " expected one that is new in this job. Make another of the model's parameters,"
                " and load the state that you have saved."
            )
        if self.waiting is not None and current_placement() is not None:
            self.waiting = None
            raise SMPError(
                "the optimizer was passed to smp.DistributedOptimizer with a state that was loaded"
                " before smp.reset() and waits for a model, but this job's is in its place already;"
                " expected it before the model is partitioned. The state was dropped: call"
                " smp.DistributedOptimizer again, and load the state then."
            )
        self._job, self._is_settled = job, False
        return True

    def check_job(self, what: str) -> Job:
        """The job.

        Raises:
            SMPError: the optimizer is of one before: it does not know what is here, and what waits
                in it would never be loaded.
        """
        job = state.require(what)
        if job is not self._job:
            raise SMPError(
                f"{what} was called of an optimizer of a job before smp.reset(); expected one that"
                " this job knows. Pass it to smp.DistributedOptimizer again, before it is used."
            )
        return job

    def replace(self) -> None:
        """Puts our methods into the object."""
        optimizer = self.optimizer()
        for name, method in (
            ("step", _step),
            ("zero_grad", _zero_grad),
            ("state_dict", _state_dict),
            ("local_state_dict", _local_state_dict),
            ("load_state_dict", _load_state_dict),
            ("orig_state_dict", _orig_state_dict),
            ("_param_id_to_index", _param_id_to_index),
            ("param_name_to_index", _param_name_to_index),
            ("_param_index_to_param_local", _param_index_to_param_local),
        ):
            setattr(
                optimizer, name, types.MethodType(_named_like(method, optimizer, name), optimizer)
            )
        for name, value in (
            ("redefined_params", False),
            # Accelerate takes the optimizer as it is, and asks after each step if it was skipped.
            ("_is_accelerate_prepared", True),
            ("step_was_skipped", False),
        ):
            setattr(optimizer, name, value)

    def wait_with(self, state_dict: Mapping[str, Any]) -> None:
        """Keeps a state until the model is partitioned; the options of groups are set at once.

        Tensors are kept without a copy, as by torch's optimizers, whose states they become.

        Raises:
            ValueError: torch's, of groups that do not fit; then it is as if it had not been called.
        """
        kept = snapshot(dict(state_dict), copies_tensors=False)
        is_torchs = isinstance(self.optimizer(), torch.optim.Optimizer)
        if is_torchs and "param_groups" in kept:
            _load_original(self, {"state": {}, "param_groups": kept["param_groups"]})
        self.waiting = kept

    def others(self) -> set[int]:
        """`id`s of parameters whose state is on other replicas."""
        return set() if self.shards is None else self.shards.others()

    def waiting_loads(self) -> list[WaitingLoad]:
        """What `load_waiting` would load, one after the other."""
        if self.waiting is None or self.optimizer() is None:
            return []
        is_partial = bool(self.waiting.get(IS_PARTIAL, False))
        return [WaitingLoad(self.name, "state", is_partial)]

    def forget_waiting(self) -> None:
        """The state that waits is not loaded."""
        self.waiting = None

    def settle(self) -> None:
        """Once, when it is known what is here: drops the rest."""
        optimizer, placement = self.optimizer(), current_placement()
        if self._is_settled or placement is None or optimizer is None:
            return
        self._is_settled = True
        self._lacks_states = bool(absent(placement))
        _tell_names(optimizer)
        self.shards = shard(optimizer, state.require("the optimizer"), placement)
        move_state(optimizer, placement, self.others)

    def load_waiting(self) -> None:
        """Loads a state that waits, now that it is known what is here; may be collective."""
        optimizer = self.optimizer()
        if self.waiting is not None and optimizer is not None and self._is_settled:
            waiting, self.waiting = self.waiting, None
            if isinstance(optimizer, torch.optim.Optimizer) and "param_groups" in waiting:
                # Who has changed learning rates since then is right.
                waiting = {**waiting, "param_groups": self.state_dict()["param_groups"]}
            _load_now(optimizer, waiting)


def _named_like(method: Callable[..., Any], optimizer: Any, name: str) -> Callable[..., Any]:
    """A function of our own for this optimizer, with the signature of what it replaces."""

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs)

    known = getattr(optimizer, name, None) if name == "step" else None
    # Not the bound method: `self` would be taken off twice.
    functools.update_wrapper(replaced, getattr(known, "__func__", known) or method)
    replaced.__name__ = name
    return replaced


def _parts_of(optimizer: Any) -> _Parts:
    parts = getattr(optimizer, _PARTS)
    assert isinstance(parts, _Parts)
    return parts


def _is_whole(job: Job) -> bool:
    """Whether all parameters are on each rank, and their states."""
    return job.holds_whole_model and not is_sharded(job)


# ---- what is replaced ----------------------------------------------------------------------------


def _step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Updates this rank's parameters; takes and returns what the optimizer's own `step` does.

    Raises:
        RuntimeError: inside of a step function.
        SMPError: of an optimizer that this job does not know.
    """
    pipeline = current_pipeline("optimizer.step()")
    if not pipeline.is_outside:
        raise RuntimeError(
            "optimizer.step() was called inside of a step; expected a call after it, on all ranks,"
            " when the gradients of all microbatches are there. Move it out of the function that is"
            " decorated with @smp.step."
        )
    parts = _parts_of(optimizer)
    parts.check_job("optimizer.step()")
    parts.settle()
    _reduce_pending()
    if state.model is not None:
        state.model.note_update()
    if args and callable(args[0]):
        args = (_reducing(args[0]), *args[1:])
    elif callable(kwargs.get("closure")):
        kwargs["closure"] = _reducing(kwargs["closure"])
    is_torchs = isinstance(optimizer, torch.optim.Optimizer)
    if not is_torchs and has_nothing_here(optimizer, current_placement()):
        return None  # torch's find that out themselves
    if parts.shards is not None:
        return parts.shards.step(parts.step, *args, **kwargs)
    return parts.step(*args, **kwargs)


def _reducing(closure: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(closure)
    def run() -> Any:
        result = closure()
        _reduce_pending()
        return result

    return run


def _reduce_pending() -> None:
    if state.model is not None:
        state.model.reduce_pending()


def _zero_grad(
    optimizer: Any,
    set_to_none: bool = True,
    set_grads_to_None: bool | None = None,  # noqa: N803
) -> None:
    """Lets go of gradients, or fills them with zeros; outside of steps only."""
    if state.is_adding_up:
        raise SMPError(NO_ZERO_GRAD.format("optimizer.zero_grad()"))
    to_none = set_to_none if set_grads_to_None is None else set_grads_to_None
    if state.model is not None:
        state.model.note_zero_grad()
    original = _parts_of(optimizer).zero_grad
    names = () if original is None else inspect.signature(original).parameters
    for name in ("set_to_none", "set_grads_to_None"):
        if original is not None and name in names:
            original(**{name: to_none})
            return
    if original is not None:
        original()
        return
    for parameter in parameters_of(optimizer):
        if to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.detach_().zero_()


def _state_dict(optimizer: Any) -> dict[str, Any]:
    """The state of all parameters, in CPU memory; a collective of the MP group, blocking.

    Until the model is partitioned, and of a model with one partition, it is the optimizer's own
    dictionary, without communication; of a state that waits, what was loaded.

    Raises:
        UnsupportedError: the optimizer's own dictionary is not like torch's, or it was made from
            the local parameters of each rank; the state is spread over replicas.
    """
    parts = _parts_of(optimizer)
    job = parts.check_job("optimizer.state_dict()")
    if _is_whole(job):
        return _original_state(parts)
    placement = current_placement()
    if placement is None:
        own = _original_state(parts)
        if parts.waiting is None:
            return own
        return {
            **snapshot(parts.waiting, copies_tensors=False),
            **({"param_groups": own["param_groups"]} if is_like_torchs(own) else {}),
        }
    if is_sharded(job):
        raise UnsupportedError(
            "optimizer.state_dict() with shard_optimizer_state: every rank has a part of the state,"
            " and scripts call it on the first replica only; expected local_state_dict(), on all"
            " ranks: on dp_rank 0 it returns the state of its partition, and with"
            " gather_if_shard=False that of each rank. Save these with smp.save(partial=True), the"
            " latter with v3=True."
        )
    parts.settle()
    return gathered_state(optimizer, placement, job, lambda: _original_state(parts))


def _local_state_dict(optimizer: Any, gather_if_shard: bool = True) -> dict[str, Any]:
    """The state of this rank's parameters, and `_smp_is_partial: True`. Not collective.

    Its indices are those of all parameters. Tensors are the optimizer's own.

    Args:
        gather_if_shard: of a state that is spread over replicas: the first one gets all of it, in
            CPU memory, a collective of the DP group, blocking. Others get their shard, as do all
            with False, and `_smp_shards` beside it.

    Raises:
        ModelNotPartitionedError: it is not decided yet which those are.
    """
    parts = _parts_of(optimizer)
    job = parts.check_job("optimizer.local_state_dict()")
    if not _is_whole(job):
        if current_placement() is None:
            raise ModelNotPartitionedError(
                "optimizer.local_state_dict() was called before the model was partitioned; expected"
                " it after the first call of a function decorated with @smp.step. Call it there,"
                " or use state_dict()."
            )
        parts.settle()
    placement = current_placement()
    own = local_state(optimizer, placement, _original_state(parts), parts.others())
    own = {**own, IS_PARTIAL: True}
    if parts.shards is None or placement is None:
        return own
    dp_rank, dp_size = job.rank_in(GroupKind.DP), job.size_of(GroupKind.DP)
    own[SHARDS] = [[placement.pp_rank, dp_rank, dp_size]]
    return gathered_shards(job, own) if gather_if_shard else own


def _load_state_dict(
    optimizer: Any, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> None:
    """Takes the state of all parameters, or of this rank's with `_smp_is_partial: True`.

    What is partial is merged over the MP group, a collective, blocking: each rank is sent what it
    holds and has not got, so parts that were saved with another number of partitions can be loaded.
    Until the model is partitioned, the state waits, and the options of groups are set at once.

    Where states are spread over replicas, what is partial is merged over all ranks. Shards of
    another number of replicas may be given to any of them, several as a list.

    Raises:
        ValueError: torch's, of groups that do not fit; of the shards, some were given to no rank.
    """
    parts = _parts_of(optimizer)
    job = parts.check_job("optimizer.load_state_dict()")
    if not isinstance(state_dict, Mapping):
        state_dict = united_shards(state_dict)
    if FP16_STATES in state_dict:  # in 16-bit training the optimizer around has taken it
        get_logger().warning(
            "the optimizer state has fp32 weights, as of 16-bit training, and this training is in"
            " fp32: they are left out, and it goes on from the model's weights, perhaps rounded to"
            " 16 bits. To keep the precision, load them into the model:"
            " model.load_state_dict(state_dict['%s']['masters'], strict=False).",
            FP16_STATES,
        )
    if _is_whole(job) or current_placement() is not None:
        parts.settle()
        _load_now(optimizer, state_dict)
    else:
        parts.wait_with(state_dict)


def _orig_state_dict(optimizer: Any) -> Any:
    """What the optimizer's own `state_dict` returns."""
    return _parts_of(optimizer).state_dict()


def _param_id_to_index(optimizer: Any) -> dict[int, int]:
    """The index in state dictionaries, by `id` of the parameter."""
    return indices_by_id(optimizer)


def _param_name_to_index(optimizer: Any) -> dict[str, int]:
    """The index in state dictionaries, by the parameter's name in the user's module."""
    indices = optimizer._param_id_to_index()
    model = state.model
    named = () if model is None else model.named_parameters()
    return {name: indices[id(parameter)] for name, parameter in named if id(parameter) in indices}


def _param_index_to_param_local(optimizer: Any) -> dict[int, Tensor]:
    """This rank's parameters, by their index in state dictionaries."""
    return parameters_here(optimizer, current_placement())


# ---- what it was --------------------------------------------------------------------------------


def _original_state(parts: _Parts) -> dict[str, Any]:
    own: dict[str, Any] = parts.state_dict()
    return own


def _load_now(optimizer: Any, given: Mapping[str, Any]) -> None:
    """Loads a state, whole or partial, now that it is known what is here."""
    job = state.require("optimizer.load_state_dict()")
    placement = current_placement()
    parts = _parts_of(optimizer)
    plain = {key: value for key, value in given.items() if key != IS_PARTIAL}
    if given.get(IS_PARTIAL, False) and not _is_whole(job):
        assert placement is not None
        others = None if parts.shards is None else parts.others
        plain = merged_state(optimizer, placement, job, plain, others)
    plain.pop(SHARDS, None)
    _load_original(parts, local_state(optimizer, placement, plain, parts.others()))


def _load_original(parts: _Parts, plain: dict[str, Any]) -> None:
    if parts.load is None:
        raise TypeError(
            "the optimizer has no load_state_dict; expected one, to load a state. Add it to the"
            " class."
        )
    parts.load(plain)


def _tell_names(optimizer: Any) -> None:
    """For scripts that read these tables of `smp.state`."""
    if state.size_of(GroupKind.TP) > 1:
        return
    names: dict[str, int] = optimizer.param_name_to_index()
    state.param_name_to_index_tp_group = [names]
    state.param_index_to_name_tp_group = [{index: name for name, index in names.items()}]
