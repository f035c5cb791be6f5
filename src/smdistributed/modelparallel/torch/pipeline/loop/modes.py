# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What torch keeps per thread, or per process, and a call must find at its owner as at its caller.

Gradient mode, inference mode and autocast belong to a thread, the default dtype to the process. The
random state belongs to the process too, but here to a microbatch: otherwise a result would depend
on which microbatch ran first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Modes", "RandomState", "applied", "current_modes", "mixed"]

# That may have autocast on.
_DEVICES = ("cpu", "cuda")


class Modes(NamedTuple):
    """Of a call. Hashable and picklable."""

    is_grad: bool
    is_inference: bool
    default_dtype: torch.dtype
    # Per device type that has autocast on: the type, the dtype; and whether casts are cached.
    autocast: tuple[tuple[str, torch.dtype], ...]
    is_autocast_cached: bool


# Those without autocast, so that equal ones are mostly the same one.
_plain: dict[tuple[bool, bool, torch.dtype], Modes] = {}


def current_modes() -> Modes:
    """Of the running thread."""
    is_grad, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    dtype = torch.get_default_dtype()
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    for device in _DEVICES:
        if torch.is_autocast_enabled(device):
            autocast += ((device, torch.get_autocast_dtype(device)),)
    if autocast:
        is_cached = torch.is_autocast_cache_enabled()
        return Modes(is_grad, is_inference, dtype, autocast, is_cached)
    modes = _plain.get((is_grad, is_inference, dtype))
    if modes is None:
        modes = Modes(is_grad, is_inference, dtype, (), True)
        _plain[is_grad, is_inference, dtype] = modes
    return modes


class applied:  # noqa: N801
    """Runs a block in these modes, on whatever thread.

    A class, and no generator with a stack of contexts: every call of a program comes through here,
    and nearly always nothing but the gradient mode is to be set.
    """

    __slots__ = ("_dtype", "_entered", "_is_grad", "_modes")

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._entered: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        modes = self._modes
        self._is_grad = torch.is_grad_enabled()
        self._dtype = torch.get_default_dtype()
        if modes.is_inference or modes.autocast or any(map(torch.is_autocast_enabled, _DEVICES)):
            with contextlib.ExitStack() as entered:
                for context in _contexts(modes):
                    entered.enter_context(context)
                self._entered = entered.pop_all()
        if self._dtype is not modes.default_dtype:
            torch.set_default_dtype(modes.default_dtype)
        torch._C._set_grad_enabled(modes.is_grad)

    def __exit__(self, *raised: Any) -> None:
        try:
            if self._entered is not None:
                self._entered.__exit__(*raised)
        finally:
            torch._C._set_grad_enabled(self._is_grad)
            if self._dtype is not self._modes.default_dtype:
                torch.set_default_dtype(self._dtype)


def _contexts(modes: Modes) -> Iterator[contextlib.AbstractContextManager[Any]]:
    """Those that bring inference mode and autocast to what they are in `modes`."""
    if modes.is_inference:
        yield torch.inference_mode()
    wanted = dict(modes.autocast)
    for device in _DEVICES:
        dtype = wanted.get(device)
        if dtype is not None:
            yield torch.autocast(device, dtype=dtype, cache_enabled=modes.is_autocast_cached)
        elif torch.is_autocast_enabled(device):
            yield torch.autocast(device, enabled=False)


class RandomState:
    """The generators that modules draw from: the CPU's, and the GPU's if there is one."""

    def __init__(self, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call] # the generators come with it
            self._generators.append(torch.cuda.default_generators[device.index])
        self._drawn = torch.empty((), dtype=torch.int64, device="cpu")

    def save(self) -> list[Tensor]:
        """The state, to be restored."""
        return [generator.get_state() for generator in self._generators]

    def restore(self, states: list[Tensor]) -> None:
        """Goes on from a saved state."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def seed(self, seed: int) -> None:
        """Begins a row of numbers of its own; `seed` is any integer of 64 bits."""
        for generator in self._generators:
            generator.manual_seed(seed)

    def draw(self) -> int:
        """A seed, from the CPU's generator, which moves on."""
        return int(self._drawn.random_().item())


_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mixed(*numbers: int) -> int:
    """A seed that differs for different numbers (splitmix64, Steele et al. 2014)."""
    state = 0
    for number in numbers:
        state = (state + _GOLDEN + number) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state & (1 << 63) - 1
