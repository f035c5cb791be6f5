# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The norm of all gradients of a model, of which each rank holds some.

`model.clip_grad_norm_()`, and `torch.nn.utils.clip_grad_norm_` and `get_total_norm` where they are
given parameters (or gradients) of the model: scripts and trainers call those, and would get a norm
of their own on every rank. They are replaced while a model of several partitions or with replicas
lives; then such a call is a collective of the ranks that hold the model, and clipping first reduces
gradients that were accumulated over steps and are still each replica's own.
`SMP_GLOBAL_GRADIENT_NORM=0` leaves torch's functions alone.

A script that has imported torch's functions by name before still calls ours: what torch's
`clip_grad_norm_` calls for the norm is replaced in its module.

Each tensor's norm is computed where it is; the norms go to all ranks, which compute the norm of
these in the order of the model's parameters, as torch does: the same bits everywhere, and where all
gradients have one dtype those of the whole model in one process.

Source: modelparallel specification, sections 4.4 and 8.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils
from torch.nn.utils import clip_grad

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import ConfigError
from smdistributed.modelparallel.torch.job.communication import allgather_in
from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.optimizer.sixteen_bit.masters import model_parameter_of
from smdistributed.modelparallel.torch.pipeline.pipeline import current_pipeline

__all__ = ["SWITCH", "clip_grad_norm_", "install", "total_norm", "uninstall"]

SWITCH = "SMP_GLOBAL_GRADIENT_NORM"
"""Variable: with "0", torch's functions see what is on this rank, as ever."""

_NOT_THE_MODELS = sys.maxsize
_NO_NORMS = torch.empty(0, device="cpu")

_plain_clip: Callable[..., Tensor] = utils.clip_grad_norm_
_plain_norm: Callable[..., Tensor] = utils.get_total_norm

# Where torch has them; by the last one its `clip_grad_norm_` finds the norm.
_PLACES: tuple[tuple[Any, str], ...] = (
    (utils, "clip_grad_norm_"),
    (clip_grad, "clip_grad_norm_"),
    (utils, "get_total_norm"),
    (clip_grad, "_get_total_norm"),
)


def clip_grad_norm_(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales gradients so that the norm of those of all ranks is at most `max_norm`.

    A collective of the MP group, blocking; arguments as of `torch.nn.utils.clip_grad_norm_`. With
    one partition it is that function.

    Args:
        parameters: the model's; of those on other ranks, and without a gradient, no notice is
            taken. Others count once: those of the model's first rank.

    Returns: the norm before, without dimensions, on this rank's device; the same on all ranks.

    Raises:
        RuntimeError: inside of a step; the norm is not finite, and that was not wanted.
    """
    listed = list(parameters)
    if _may_reduce():
        state.model.reduce_pending()
    gradients = [each.grad for each in listed if each.grad is not None]
    total = _total_norm(gradients, norm_type, error_if_nonfinite)
    utils.clip_grads_with_norm_(listed, max_norm, total, foreach)
    return total


def total_norm(parameters: Sequence[Tensor], norm_type: float = 2.0) -> float:
    """The norm of the gradients of all ranks, in float32 at least; each counts once.

    Where any of them is a parameter of a model on several ranks, or the fp32 copy of one, a
    collective of the MP group, blocking: all ranks pass all parameters, also those without a
    gradient. Else it is what is here.

    Returns: the same number on all ranks.

    Raises:
        RuntimeError: inside of a step.
    """
    gradients = [each.grad for each in parameters if each.grad is not None]
    sources = [model_parameter_of(each) for each in parameters]
    if _is_apart() and _is_the_models(sources, state.model.parameters()):
        numbers = _gradient_numbers(zip(sources, parameters, strict=True))
        return float(_total_norm(gradients, norm_type, False, torch.float32, numbers))
    norms = _norms(gradients, norm_type, least=torch.float32)
    if not norms:
        return 0.0
    values = torch.stack([norm.to(norms[0].device) for norm in norms])
    return float(torch.linalg.vector_norm(values, norm_type))


def _total_norm(
    gradients: Sequence[Tensor],
    norm_type: float,
    error_if_nonfinite: bool,
    least: torch.dtype | None = None,
    numbers: Mapping[int, int] | None = None,
) -> Tensor:
    """Of the gradients of all ranks; a collective of the MP group."""
    job = state.require("the norm of gradients")
    if job.holds_whole_model:
        return _plain_norm(gradients, norm_type, error_if_nonfinite)
    pipeline = current_pipeline("the norm of gradients")
    if not pipeline.is_outside:
        raise RuntimeError(
            "the norm of gradients was asked for inside of a step; expected a call after it, on all"
            " ranks, when the gradients of all microbatches are there. Move it out of the function"
            f" that is decorated with @smp.step, or set {SWITCH}=0 for the norm on this rank."
        )
    norm_type = float(norm_type)
    device = gradients[0].device if gradients else job.device
    numbers = _gradient_numbers() if numbers is None else numbers
    counted = [(numbers.get(id(each), _NOT_THE_MODELS), each) for each in gradients]
    if job.rank_in(GroupKind.MP) != 0:
        counted = [pair for pair in counted if pair[0] != _NOT_THE_MODELS]
    norms = _norms([each for _, each in counted], norm_type, least)
    values = torch.stack([norm.to(device) for norm in norms]).cpu() if norms else _NO_NORMS
    told = ([number for number, _ in counted], values.double(), values.dtype if norms else None)
    dtype: torch.dtype | None = None
    found: list[tuple[int, float]] = []
    for their_numbers, their_values, their_dtype in allgather_in(GroupKind.MP, told):
        found += zip(their_numbers, their_values.tolist(), strict=True)
        if their_dtype is not None:
            dtype = their_dtype if dtype is None else torch.promote_types(dtype, their_dtype)
    if dtype is None:
        return torch.tensor(0.0, device=device)
    found.sort(key=lambda pair: pair[0])
    everything = torch.tensor([value for _, value in found], dtype=torch.float64, device="cpu")
    total: Tensor = torch.linalg.vector_norm(everything.to(dtype), norm_type)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(
            f"the total norm of order {norm_type} of the gradients on all ranks is"
            f" {float(total)}, so it cannot be clipped; expected a finite one. Look for the step"
            " that made it, or allow it with error_if_nonfinite=False."
        )
    return total.to(device)


def _norms(
    tensors: Sequence[Tensor], norm_type: float, least: torch.dtype | None = None
) -> list[Tensor]:
    """Of each, as torch computes them; of narrower tensors than `least` in that dtype."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        alike[tensor.device, tensor.dtype, tensor.layout].append(position)
    norms: dict[int, Tensor] = {}
    with torch.no_grad():
        for (_, dtype, layout), positions in alike.items():
            group = [tensors[position] for position in positions]
            wide = None if least is None else torch.promote_types(dtype, least)
            if layout is torch.strided:
                made = list(torch._foreach_norm(group, norm_type, dtype=wide))
            else:
                made = [
                    torch.linalg.vector_norm(_values(each), norm_type, dtype=wide) for each in group
                ]
            norms.update(zip(positions, made, strict=True))
    return [norms[position] for position in range(len(tensors))]


def _values(tensor: Tensor) -> Tensor:
    """Of a sparse tensor those that are not zero."""
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()


def _gradient_numbers(pairs: Iterable[tuple[Tensor, Tensor]] | None = None) -> dict[int, int]:
    """Of gradients that are here, where their parameters come in the model's order, by `id`.

    Args:
        pairs: parameters of the model, and what has their gradients; None: each has its own.
    """
    order = {id(parameter): number for number, parameter in enumerate(state.model.parameters())}
    own = ((parameter, parameter) for parameter in state.model.parameters())
    return {
        id(holder.grad): order[id(parameter)]
        for parameter, holder in (own if pairs is None else pairs)
        if holder.grad is not None and id(parameter) in order
    }


# ---- torch's own functions -----------------------------------------------------------------------


def install() -> None:
    """A model has partitions, replicas or a loss scale: torch's functions know that from now on.

    Raises:
        ConfigError: the variable is neither 0 nor 1.
    """
    chosen = os.environ.get(SWITCH, "1")
    if chosen not in ("0", "1"):
        raise ConfigError(f"{SWITCH} is {chosen!r}; expected 0 or 1. Correct it, or unset it.")
    if chosen == "0":
        return
    for module, name in _PLACES:
        setattr(module, name, _OURS[name])


def uninstall() -> None:
    """Gives torch its functions back, as far as nobody has replaced them since."""
    for module, name in _PLACES:
        if getattr(module, name) is _OURS[name]:
            setattr(module, name, _PLAIN[name])


def _is_the_models(given: Sequence[Tensor], theirs: Iterable[Tensor | None]) -> bool:
    """Whether any is; nothing at all is what a rank without parameters passes."""
    identities = {id(each) for each in theirs if each is not None}
    return not given or any(id(each) in identities for each in given)


def _is_apart() -> bool:
    """Whether there is a model whose parameters are on several ranks."""
    if not state.initialized or state.model is None or not state.model.partitioned:
        return False
    return not state.job.holds_whole_model


def _may_reduce() -> bool:
    """Whether there is a model, and no step is under way, which ends with its own reduction."""
    if not state.initialized or state.model is None:
        return False
    pipeline = current_pipeline("the norm of gradients")
    return pipeline.is_outside


def _refuse_loss_scale(parameters: Sequence[Tensor]) -> None:
    """Gradients of the model that are multiplied by a loss scale have no norm to clip by."""
    if not state.initialized or state.model is None or not state.cfg.fp16:
        return
    scale = getattr(state.optimizer, "loss_scale", 1.0)
    if scale != 1.0 and _is_the_models(parameters, state.model.parameters()):
        raise RuntimeError(
            "torch.nn.utils.clip_grad_norm_ was given 16-bit parameters, whose gradients are"
            f" multiplied by the loss scale, {scale:g}; expected gradients as they are. Call"
            " optimizer.clip_master_grads(max_norm) instead."
        )


@functools.wraps(_plain_clip)
def _clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    _refuse_loss_scale(listed)
    if _is_apart() and _is_the_models(listed, state.model.parameters()):
        return clip_grad_norm_(listed, max_norm, norm_type, error_if_nonfinite, foreach)
    if _may_reduce() and _is_the_models(listed, state.model.parameters()):
        state.model.reduce_pending()
    # Not torch's, which asks for the norm by a name that is ours: there it is seen of gradients
    # alone, and none at all, as on a rank that has not used these parameters, may be the model's.
    gradients = [each.grad for each in listed if each.grad is not None]
    total = _plain_norm(gradients, norm_type, error_if_nonfinite, foreach)
    utils.clip_grads_with_norm_(listed, max_norm, total, foreach)
    return total


@functools.wraps(_plain_norm)
def _get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if _is_apart() and _is_the_models(listed, (each.grad for each in state.model.parameters())):
        return _total_norm(listed, norm_type, error_if_nonfinite)
    return _plain_norm(listed, norm_type, error_if_nonfinite, foreach)


def _norm_to_clip_by(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """What torch's `clip_grad_norm_` asks for, which has not been called by the name above."""
    listed = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if _may_reduce() and _is_the_models(listed, (each.grad for each in state.model.parameters())):
        named = [each for each in state.model.parameters() if each.grad is not None]
        holders = {id(each.grad): each for each in named}
        state.model.reduce_pending()  # which may replace them by views of buckets
        listed = [holders[id(each)].grad if id(each) in holders else each for each in listed]
    return _get_total_norm(listed, norm_type, error_if_nonfinite, foreach)


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "clip_grad_norm_": _plain_clip,
    "get_total_norm": _plain_norm,
    "_get_total_norm": _plain_norm,
}
_OURS: dict[str, Callable[..., Tensor]] = {
    "clip_grad_norm_": _clip_grad_norm_,
    "get_total_norm": _get_total_norm,
    "_get_total_norm": _norm_to_clip_by,
}
