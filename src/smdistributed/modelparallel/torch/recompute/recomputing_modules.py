# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.set_activation_checkpointing`: modules that recompute whenever they are called.

Such a module gets a `forward` of its own, in its `__dict__`. It is called where the module runs,
whoever calls, and goes along when the module is copied or pickled. Hooks of the module are around
it: they run once.

Source: modelparallel specification, section 6.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from smdistributed.modelparallel.torch.job.state import state
from smdistributed.modelparallel.torch.modules.wrapping import Wrapper
from smdistributed.modelparallel.torch.recompute.calls import (
    call_layers,
    check_undivided,
    place_of,
    warn_of_packing,
)
from smdistributed.modelparallel.torch.recompute.recomputation import recomputed
from smdistributed.modelparallel.torch.recompute.sequential_rows import (
    DIVIDED,
    most_layers,
)

__all__ = ["check_settings", "set_activation_checkpointing"]


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """From now on what a module computes is not kept for the backward pass, but computed again.

    Before or after wrapping; the same on all ranks. The last call for a module counts. Without
    gradients it has no effect.

    Args:
        module: of the model; all of it on one partition. If the partition puts its parts on
            several, it runs as if this had not been called, with a warning; if that was done by
            hand it is an error. Of an `nn.Sequential` this holds for each of its layers: these are
            checkpointed, not the whole.
        preserve_rng_state: False if nothing in it is random: saves a few KiB for each call.
        pack_args_as_tuple: of an `nn.Sequential`; without effect, deprecated.
        strategy: of an `nn.Sequential`, whose `forward` is torch's: which layers are checkpointed
            as one; as of `checkpoint_sequential`.

    Raises:
        TypeError: it is no module.
        ValueError: there is no such strategy, or one of the last two is not for this module.
        ConfigError: it is on several partitions, by hand. Where the partition is yet to come, the
            first step raises it.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"smp.set_activation_checkpointing() got a {type(module).__name__}; expected a"
            " torch.nn.Module."
        )
    while isinstance(module, Wrapper):
        module = module.module
    most = most_layers(strategy)
    layers = None
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        layers = module
    if layers is None and (pack_args_as_tuple or strategy != "each"):
        raise ValueError(
            f"smp.set_activation_checkpointing() got strategy={strategy!r} and"
            f" pack_args_as_tuple={pack_args_as_tuple!r} for a {type(module).__name__}; expected"
            " them for a torch.nn.Sequential only, without a forward of its own. Leave them out."
        )
    if pack_args_as_tuple:
        warn_of_packing()
    setting = _Forward(module, preserve_rng_state, layers, most)
    model = state.model
    if model is not None and model.partitioned:
        owners = model.placement("smp.set_activation_checkpointing()").owners
        setting.check(owners)
    module.__dict__["forward"] = setting


def check_settings(model: nn.Module, owners: Mapping[nn.Module, int]) -> None:
    """Whether the modules that are to be checkpointed can be, where they are now.

    Raises:
        ConfigError: one of them is on several partitions, by hand.
    """
    for module in model.modules():
        setting = module.__dict__.get("forward")
        if isinstance(setting, _Forward):
            setting.check(owners)


class _Forward:
    """The `forward` of one module.

    Args:
        module: whose forward pass this is.
        preserve_rng_state: as the user wants it.
        layers: the module, if its layers are checkpointed instead.
        most: of these in a row; None: as many as there are.
    """

    def __init__(
        self,
        module: nn.Module,
        preserve_rng_state: bool,
        layers: nn.Sequential | None,
        most: int | None,
    ) -> None:
        self._module = module
        self._preserve_rng_state = preserve_rng_state
        self._layers = layers
        self._most = most
        before = module.__dict__.get("forward")
        self._before: Callable[..., Any] | None
        self._before = before._before if isinstance(before, _Forward) else before

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The forward that it stands for; under this name for `inspect.signature`."""
        forward: Callable[..., Any] = self._before or type(self._module).forward.__get__(
            self._module
        )
        return forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward, preserve = self.__wrapped__, self._preserve_rng_state
        if self._layers is not None:
            return call_layers(self._layers, self._most, preserve, *args, **kwargs)
        if place_of(self._module) == DIVIDED:
            return forward(*args, **kwargs)
        return recomputed(forward, [self._module], args, kwargs, preserve)

    def check(self, owners: Mapping[nn.Module, int]) -> None:
        """Whether it can be checkpointed.

        Raises:
            ConfigError: it is on several partitions, by hand.
        """
        for each in [self._module] if self._layers is None else self._layers:
            check_undivided(each, owners)
