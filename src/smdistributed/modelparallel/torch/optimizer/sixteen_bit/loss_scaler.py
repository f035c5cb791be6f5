# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The factor that the loss is multiplied by, so that gradients do not vanish in fp16.

Source: modelparallel specification, section 6.7. Names are those that scripts know from Apex and
Megatron, and so are the rules. Scripts that use autocast have `smp.amp.GradScaler`
(`optimizer.grad_scaler`), with torch's rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["DYNAMIC_OPTIONS", "LossScaler"]


@dataclasses.dataclass(kw_only=True)
class LossScaler:
    """A loss scale, and how it changes from step to step. All ranks change it alike.

    | a step | does to a dynamic scale |
    | --- | --- |
    | overflows, with patience (`cur_hysteresis`) above 1 | nothing; costs 1 patience |
    | overflows, with patience 1 | divided by `scale_factor`, but not below `min_scale` |
    | is the `scale_window`-th in a row without overflow | times `scale_factor`; patience is full |
    | any other without overflow | nothing; patience is full with `consecutive_hysteresis` |

    After the growth the next `scale_window` steps are counted. A scale below `min_scale` that was
    set stays there.

    Args:
        cur_scale: the scale.
        is_dynamic: else it stays what it is.
        scale_factor: above 1.
        scale_window: steps without overflow until it grows.
        min_scale: above 0.
        delayed_shift: full patience: so many overflows until the scale shrinks; 1: at each.
        consecutive_hysteresis: a step without overflow fills it.

    Attributes:
        cur_iter: steps so far, skipped ones included.
        last_overflow_iter: the number of the last that overflowed; -1: none has.
        cur_hysteresis: patience left.

    Raises:
        ValueError: an argument that cannot be.
    """

    cur_scale: float = 1.0
    is_dynamic: bool = False
    scale_factor: float = 2.0
    scale_window: int = 1000
    min_scale: float = 1.0
    delayed_shift: int = 1
    consecutive_hysteresis: bool = False
    cur_iter: int = dataclasses.field(default=0, init=False)
    last_overflow_iter: int = dataclasses.field(default=-1, init=False)
    cur_hysteresis: int = dataclasses.field(default=1, init=False)

    def __post_init__(self) -> None:
        self.cur_scale = float(self.cur_scale)
        self.cur_hysteresis = self.delayed_shift
        for name, is_right, expected in (
            ("loss scale", self.cur_scale > 0, "more than 0"),
            ("scale_factor", self.scale_factor > 1, "more than 1"),
            ("scale_window", _is_count(self.scale_window), "a positive integer"),
            ("min_scale", self.min_scale > 0, "more than 0"),
            ("delayed_shift", _is_count(self.delayed_shift), "a positive integer"),
        ):
            if not is_right:
                value = getattr(self, name, self.cur_scale)
                raise ValueError(f"the {name} is {value!r}; expected {expected}.")

    @classmethod
    def dynamic(cls, options: Mapping[str, Any]) -> LossScaler:
        """One that changes.

        Args:
            options: `init_scale` (2**32), and the fields above, from `scale_factor` on.

        Raises:
            TypeError: an option that nobody knows.
            ValueError: a value that cannot be.
        """
        unknown = [name for name in options if name not in DYNAMIC_OPTIONS]
        if unknown:
            raise TypeError(
                f"dynamic_loss_args has {', '.join(map(repr, unknown))}; expected some of"
                f" {', '.join(DYNAMIC_OPTIONS)}. Correct the name, or leave it out."
            )
        rest = dict(options)
        return cls(cur_scale=rest.pop("init_scale", 2.0**32), is_dynamic=True, **rest)

    @property
    def loss_scale(self) -> float:
        """The scale."""
        return self.cur_scale

    def update_scale(self, overflow: bool) -> None:
        """A step has ended, or was skipped for an overflow."""
        if self.is_dynamic:
            self._change(overflow)
        if overflow:
            self.last_overflow_iter = self.cur_iter
        self.cur_iter += 1

    def _change(self, overflow: bool) -> None:
        if overflow:
            if self.cur_hysteresis > 1:
                self.cur_hysteresis -= 1
            elif self.cur_scale > self.min_scale:
                self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)
            return
        grows = (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0
        if grows:
            self.cur_scale *= self.scale_factor
        if grows or self.consecutive_hysteresis:
            self.cur_hysteresis = self.delayed_shift

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: all that the next steps depend on."""
        return dataclasses.asdict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave.

        The options are those of the checkpoint too: a run that is resumed goes on as it would have.
        """
        for field in dataclasses.fields(self):
            setattr(self, field.name, state_dict[field.name])


DYNAMIC_OPTIONS = (
    "init_scale",
    "scale_factor",
    "scale_window",
    "min_scale",
    "delayed_shift",
    "consecutive_hysteresis",
)
"""The keys of `dynamic_loss_args`."""


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1
