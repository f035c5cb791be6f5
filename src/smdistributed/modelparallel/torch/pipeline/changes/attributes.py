# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What modules keep in their attributes during a step: `self.aux_loss = ...`.

Microbatches share the modules of a rank, and take turns. So a container, or a tensor with a
history, belongs to the microbatch that sets it: it is put aside while another one runs. So is a
`forward` that is replaced, as transformers does to collect what modules return, and the mode that
`train()` and `eval()` set. If a call
from another rank has set a tensor with a history, or any tensor in an evaluation, the caller gets
that tensor with the result, and sets it on its own copy of the module.

Other tensors stay, as a running mean is meant for all microbatches. A warning names an attribute
that another microbatch, or the rank that called, may miss. Numbers and texts are not watched, nor
is what is put into a list or a dict that stays the same.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.containers import flatten, is_container
from smdistributed.modelparallel.torch.pipeline.loop.activity import Activity

__all__ = ["Attributes", "Missing", "is_watched"]

_log = get_logger()

_Slot = tuple[nn.Module, str]

_NOTHING = object()


class Missing(enum.Enum):
    """Stands for a value that there is not."""

    ATTRIBUTE = enum.auto()


# Larger tensors are not compared: they count as changed.
_COMPARED_BYTES = 1 << 20


class Attributes:
    """Of the modules of one rank, during steps.

    Args:
        numbers: of the model's modules.

    Attributes:
        are_shared: code of the leader has set a tensor that all microbatches see, in this step.
    """

    def __init__(self, numbers: Mapping[nn.Module, int]) -> None:
        self._numbers = numbers
        self.are_shared = False
        # What stood in each attribute before its first microbatch set it.
        self._before: dict[_Slot, Any] = {}
        # What each microbatch has there, while another one runs.
        self._aside: dict[int, dict[_Slot, Any]] = {}
        self._microbatch = 0
        # Which microbatch under way has set what all share.
        self._set_by: dict[_Slot, int] = {}
        self._warned: set[tuple[type, str]] = set()

    def note(self, activity: Activity, module: nn.Module, name: str, value: Any) -> None:
        """A microbatch is about to set an attribute to a watched value."""
        if name in module._parameters or name in module._buffers or name in module._modules:
            return
        slot = module, name
        known = module.__dict__.get(name, _NOTHING)
        is_own = not isinstance(value, Tensor) or value.requires_grad
        if is_own:
            self._before.setdefault(slot, known)
        if module in self._numbers:
            key = self._numbers[module], name
            is_news = is_own or not _is_alike(known, value)
            first = module, False, False, is_watched(known)
            _, _, replaces, was_watched = activity.attributes.get(key, first)
            replaces = replaces or _holds_tensors(known)
            activity.attributes[key] = module, is_news, replaces, was_watched
        if is_own or activity.caller is not None:
            return
        self.are_shared = True
        setter = self._set_by.get(slot)
        self._set_by[slot] = activity.task.microbatch
        if setter not in (None, activity.task.microbatch) and not _is_alike(known, value):
            self._warn(
                module,
                name,
                "%s sets its attribute %r in a step, where microbatches take turns: before it is"
                " read another microbatch may set it. If a microbatch needs its own value, return"
                " it or pass it as an argument.",
            )

    def note_own(self, module: nn.Module, name: str) -> None:
        """Is about to be set, whatever it is: for this microbatch, and on this rank, alone."""
        self._before.setdefault((module, name), module.__dict__.get(name, _NOTHING))

    def set_in_call(self, activity: Activity, is_expected: bool) -> dict[tuple[int, str], Any]:
        """What a call from another rank has set that its caller must see, by number and name.

        Args:
            is_expected: the caller does not wait, as earlier calls have set nothing.
        """
        found = {}
        for (number, name), each in activity.attributes.items():
            module, is_news, replaces, was_watched = each
            value = module.__dict__.get(name, Missing.ATTRIBUTE)
            tensors = [leaf for leaf in flatten(value)[0] if isinstance(leaf, Tensor)]
            has_history = any(tensor.requires_grad for tensor in tensors)
            # In an evaluation nothing has a history, and a loss is read all the same.
            is_evaluated = tensors and not torch.is_grad_enabled() and not is_expected
            is_taken_away = was_watched and not is_watched(value) and not is_expected
            is_emptied = (replaces and not tensors) or is_taken_away
            if has_history or is_evaluated or is_emptied:
                # Also what is no news here: the caller may have missed what a failed call has set.
                found[number, name] = value
            elif is_news:
                self._warn_of_caller(module, name)
        return found

    def _warn_of_caller(self, module: nn.Module, name: str) -> None:
        self._warn(
            module,
            name,
            "%s sets its attribute %r in a step, and was called by another rank, where that"
            " attribute stays as it is. Return the value, if it is read there.",
        )

    def _warn(self, module: nn.Module, name: str, text: str) -> None:
        key = type(module), name
        if key not in self._warned:
            self._warned.add(key)
            _log.warning(text, type(module).__name__, name)

    def switch_to(self, microbatch: int) -> None:
        """From now on this microbatch runs."""
        if microbatch == self._microbatch:
            return
        left, self._microbatch = self._microbatch, microbatch
        if not self._before:
            return
        aside = self._aside.setdefault(left, {})
        own = self._aside.get(microbatch, {})
        for slot, before in self._before.items():
            module, name = slot
            aside[slot] = module.__dict__.get(name, _NOTHING)
            _put(module, name, own.get(slot, before))

    def end_microbatch(self, microbatch: int) -> None:
        """The leader has come to the end of one."""
        self._set_by = {slot: each for slot, each in self._set_by.items() if each != microbatch}

    def end_step(self) -> None:
        """As in one process, what the last microbatch has set stays."""
        if self._before:
            self.switch_to(-1)
            for number in sorted(self._aside):
                for slot, value in self._aside[number].items():
                    if value is not self._before[slot]:
                        _put(*slot, value)
        self.are_shared = False
        self._before.clear()
        self._aside.clear()
        self._set_by.clear()
        self._microbatch = 0


def _holds_tensors(value: Any) -> bool:
    return is_watched(value) and any(isinstance(leaf, Tensor) for leaf in flatten(value)[0])


def is_watched(value: Any) -> bool:
    """Whether a value is a tensor, or a container, which may hold some."""
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter)
    return isinstance(value, tuple) or is_container(type(value))


def _put(module: nn.Module, name: str, value: Any) -> None:
    if value is _NOTHING:
        module.__dict__.pop(name, None)
    else:
        module.__dict__[name] = value


def _is_alike(before: Any, after: Tensor) -> bool:
    """Whether it makes no difference which of two values is read."""
    if not isinstance(before, Tensor) or before.shape != after.shape:
        return False
    if before.dtype is not after.dtype or after.nbytes > _COMPARED_BYTES:
        return before is after
    return torch.equal(before, after)
