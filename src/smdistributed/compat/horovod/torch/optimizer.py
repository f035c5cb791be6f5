# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`DistributedOptimizer`: an optimizer whose `step()` works with the gradients of all ranks.

How and when gradients are reduced: `gradients.py`.

Source: Horovod's public API; see docs/horovod.md.
"""

# An optimizer's methods are those of the class that it is made of.
# mypy: disable-error-code="misc, no-untyped-call"

from __future__ import annotations

import collections
import contextlib
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from smdistributed.compat.horovod import common
from smdistributed.compat.horovod.common import Average, Sum
from smdistributed.compat.horovod.torch.gradients import (
    GradientReduction,
    GradientsInUse,
    Options,
)
from smdistributed.compat.horovod.torch.job import global_process_set, require_group
from smdistributed.dataparallel.compression import Compression, resolve_compression
from smdistributed.dataparallel.exceptions import SMDDPConfigInvalid, SMDDPUnsupported

__all__ = ["DistributedOptimizer"]

_GROUPS_WHY = "gradients are grouped into buckets by size, all of them as they become ready"
_GROUPS_ADVICE = "Leave it out, and set SMDDP_BUCKET_CAP_MB for larger or smaller buckets."


def DistributedOptimizer(  # noqa: N802 -- published name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = global_process_set,
) -> Any:
    """An optimizer of the same class, state and parameter groups that reduces gradients first.

    Reductions begin during `backward()`. `step()` waits for them; so does `synchronize()`, after
    which gradients may be clipped or unscaled, and then `step()` within `skip_synchronize()`.

    A parameter without a gradient counts as zeros, and all ranks get the result.

    Args:
        optimizer: of any class but `LBFGS`. Use the one that is returned from now on.
        named_parameters: all of its parameters with unique names, compared between the ranks.
        compression: of `Compression`, or a class with `compress` and `decompress`.
        backward_passes_per_step: of which a gradient is the sum before it is reduced.
        op: `Average` or `Sum`.
        gradient_predivide_factor: an average is divided by it before the sum, and multiplied
            after. Only for `Average`.
        num_groups, groups: 0 or None.
        sparse_as_dense: sparse gradients travel as dense ones.
        process_set: all ranks.

    Raises:
        SMDDPConfigInvalid: (a ValueError) names, numbers or factors that cannot work.
        SMDDPUnsupported: `op=Adasum`, groups, a process set of some ranks, `LBFGS`.
        SMDDPNotInitialized: before `init()`.
    """
    caller = "DistributedOptimizer"
    common.require_all_ranks(process_set, caller)
    resolved = common.resolve(None, op, caller, (Average, Sum))
    require = functools.partial(common.require_neutral, caller)
    require("num_groups", num_groups, (0, None), _GROUPS_WHY, _GROUPS_ADVICE)
    require("groups", groups, (None, 0), _GROUPS_WHY, _GROUPS_ADVICE)
    _require_optimizer(optimizer)
    _require_passes(backward_passes_per_step)
    if not gradient_predivide_factor > 0 or (gradient_predivide_factor != 1.0 and resolved is Sum):
        raise SMDDPConfigInvalid(
            f"hvd.{caller}() got gradient_predivide_factor={gradient_predivide_factor} with"
            f" op=hvd.{resolved.name}; expected 1.0, or a positive number with op=hvd.Average."
            " Leave it out."
        )
    names = _names_of(optimizer, named_parameters)
    factor = float(gradient_predivide_factor)
    options = Options(resolve_compression(compression), resolved, factor, bool(sparse_as_dense))
    distributed = _derived(optimizer)
    distributed._begin(options, backward_passes_per_step, names, require_group(caller).size())
    return distributed


class _DistributedOptimizer:
    """What is put in front of an optimizer's own class."""

    _reduction: GradientReduction | None  # None: there is one rank
    _should_synchronize: bool
    _synchronized: bool

    def _begin(self, options: Options, passes: int, names: dict[Tensor, str], size: int) -> None:
        self.op = options.op
        self.backward_passes_per_step = passes
        self._should_synchronize = True
        self._synchronized = False
        self._reduction = None
        if size > 1:
            self._reduction = GradientReduction(options, passes, names)
            self._reduction.follow(self._parameters())
            _watch_grad_scalers()

    def _parameters(self: Any) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change over how many backward passes gradients are accumulated."""
        _require_passes(passes)
        self.backward_passes_per_step = passes
        if self._reduction is not None:
            self._reduction.set_passes(passes)

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks. A collective."""
        if self._reduction is not None:
            self._reduction.follow(self._parameters())
            self._reduction.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within it `step()` takes gradients as they are, after a `synchronize()`."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self: Any, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        """Reduce gradients, then do the optimizer's own step. A collective.

        A `closure` is called by the optimizer, and the gradients that it leaves are reduced.
        """
        if self._should_synchronize and closure is not None:
            closure = functools.partial(self._evaluate, closure)
        elif self._should_synchronize:
            self._warn_of_second_synchronize()
            self.synchronize()
        self._synchronized = False
        if closure is not None:
            args = (closure, *args)
        return super().step(*args, **kwargs)

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            loss = closure()
        self.synchronize()
        self._synchronized = False
        return loss

    def _warn_of_second_synchronize(self) -> None:
        if not self._synchronized or self._reduction is None:
            return
        if self.op is Sum:
            raise SMDDPUnsupported(
                "optimizer.step() was called after optimizer.synchronize(), and would sum up the"
                " ranks' sums again; expected step() within optimizer.skip_synchronize(). Write"
                " `with optimizer.skip_synchronize(): optimizer.step()`."
            )
        warnings.warn(
            "optimizer.step() was called after optimizer.synchronize() and reduces the gradients a"
            " second time, which costs time and changes nothing. Write"
            " `with optimizer.skip_synchronize(): optimizer.step()`.",
            stacklevel=3,
        )

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own; raises between `backward()` and `step()` or `synchronize()`."""
        self._require_none_reduced("optimizer.zero_grad()", "Move zero_grad() before backward().")
        self._synchronized = False  # a scaler may have left out the step
        super().zero_grad(*args, **kwargs)

    def _require_none_reduced(self, what: str, advice: str) -> None:
        if self._reduction is not None and self._reduction.has_gradients:
            raise GradientsInUse(
                f"{what} was called after backward() and before optimizer.step(), while gradients"
                f" are reduced; expected step() or synchronize() first. {advice}"
            )

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        """As the optimizer's own; all ranks must add the same."""
        super().add_param_group(param_group)
        if self._reduction is not None:
            self._reduction.follow(self._parameters())

    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
        """As the optimizer's own; gradients that have arrived are no longer waited for."""
        if self._reduction is not None:
            self._reduction.abandon()
        self._synchronized, self._should_synchronize = False, True
        super().load_state_dict(*args, **kwargs)

    # torch would put the step's hooks around this method as well; they belong around the inner one,
    # where gradients are reduced.
    step.hooked = True  # type: ignore[attr-defined]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SMDDPUnsupported(
            "a hvd.DistributedOptimizer cannot be copied or pickled: it belongs to this process's"
            " parameters; expected its state to be saved. Write torch.save(optimizer.state_dict(),"
            " path)."
        )


@functools.cache
def _watch_grad_scalers() -> None:
    """Let torch's GradScaler refuse gradients that are being reduced; once per process.

    It changes them in place behind the back of their version counters, and looks for infinities in
    what only this rank has.
    """
    scaler: Any = torch.amp.GradScaler
    for name in ("unscale_", "step"):
        original = getattr(scaler, name)
        setattr(scaler, name, _after_synchronize(original, name))


def _after_synchronize(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, _DistributedOptimizer):
            advice = (
                "Call optimizer.synchronize() first, then scaler.step(optimizer) within"
                " optimizer.skip_synchronize()."
            )
            optimizer._require_none_reduced(f"GradScaler.{name}(optimizer)", advice)
        return original(scaler, optimizer, *args, **kwargs)

    return call


def _derived(optimizer: torch.optim.Optimizer) -> Any:
    """An optimizer over the same state and groups, of a class derived from its own.

    What stands on the object itself in the place of a method is bound to the old one, such as the
    `step` of a learning rate scheduler, and is left out.
    """
    kind = type(optimizer)
    derived: Any = type(kind.__name__, (_DistributedOptimizer, kind), {"__doc__": kind.__doc__})
    distributed: Any = derived.__new__(derived)
    for name, value in vars(optimizer).items():
        if not callable(getattr(kind, name, None)):
            distributed.__dict__[name] = value
    return distributed


def _require_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SMDDPConfigInvalid(
            f"hvd.DistributedOptimizer() got a {type(optimizer).__name__}; expected a"
            " torch.optim.Optimizer. Pass the optimizer itself."
        )
    if isinstance(optimizer, _DistributedOptimizer):
        raise SMDDPConfigInvalid(
            "hvd.DistributedOptimizer() got an optimizer that it has made already, whose gradients"
            " would be reduced twice; expected one of torch's classes. Wrap it once."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SMDDPUnsupported(
            "hvd.DistributedOptimizer() got an LBFGS, which decides by the loss how often it"
            " computes gradients, and the ranks' losses differ; expected another optimizer. Use"
            " torch.optim.SGD or Adam."
        )


def _require_passes(passes: Any) -> None:
    if isinstance(passes, int) and not isinstance(passes, bool) and passes > 0:
        return
    raise SMDDPConfigInvalid(
        f"backward_passes_per_step={passes!r} must be > 0; expected a whole number of backward"
        " passes for each step. Pass 1, or leave it out."
    )


def _names_of(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    if named_parameters is None:
        return {
            parameter: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        }
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise SMDDPConfigInvalid(
            "named_parameters should be a sequence of tuples (name, parameter), but holds something"
            " else. Pass model.named_parameters()."
        )
    counted = collections.Counter(name for name, _ in named)
    twice = [name for name, count in counted.items() if count > 1]
    if twice:
        raise SMDDPConfigInvalid(
            f"parameter names in named_parameters must be unique; found {', '.join(twice)} more"
            " than once. Put the model's name before each name."
        )
    names = {parameter: name for name, parameter in named}
    everyone = [p for group in optimizer.param_groups for p in group["params"]]
    unnamed = [tuple(p.shape) for p in everyone if p not in names]
    if unnamed:
        raise SMDDPConfigInvalid(
            f"named_parameters was given, but {len(unnamed)} parameters of the optimizer are not in"
            f" it, of the shapes {unnamed[:5]}; expected all of them. Pass the named parameters of"
            " every model that the optimizer has, or leave it out."
        )
    return names
