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
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Modes", "RandomState", "applied", "current_modes", "mixed"]

_AUTOCAST_DEVICES = ("cpu", "cuda")


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
    for device in _AUTOCAST_DEVICES:
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


@contextlib.contextmanager
def applied(modes: Modes) -> Iterator[None]:
    """Runs a block in these modes, on whatever thread."""
    grad = torch.is_grad_enabled()
    dtype = torch.get_default_dtype()
    try:
        with contextlib.ExitStack() as stack:
            if modes.is_inference:
                stack.enter_context(torch.inference_mode())
            for device in _AUTOCAST_DEVICES:
                wanted = dict(modes.autocast).get(device)
                if wanted is not None:
                    stack.enter_context(
                        torch.autocast(device, dtype=wanted, cache_enabled=modes.is_autocast_cached)
                    )
                elif torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            if dtype is not modes.default_dtype:
                torch.set_default_dtype(modes.default_dtype)
            torch.set_grad_enabled(modes.is_grad)
            yield
    finally:
        torch.set_grad_enabled(grad)
        if dtype is not modes.default_dtype:
            torch.set_default_dtype(dtype)


class RandomState:
    """The generators that modules draw from: the CPU's, and the GPU's if there is one."""

    def __init__(self, device: torch.device) -> None:
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(torch.cuda.default_generators[device.index])
        self._drawn = torch.empty((), dtype=torch.int64)

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
