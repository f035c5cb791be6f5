# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The loss scale from step to step, against the published rules read word for word."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import pytest

from smdistributed.modelparallel.torch.optimizer.sixteen_bit.loss_scaler import (
    DYNAMIC_OPTIONS,
    LossScaler,
)


def scales(overflows: str, **options: Any) -> list[float]:
    """The scale after each step; `x` overflows, `.` does not."""
    scaler = LossScaler.dynamic({"init_scale": 64.0, **options})
    found = []
    for each in overflows:
        scaler.update_scale(each == "x")
        found.append(scaler.loss_scale)
    return found


@pytest.mark.parametrize(
    ("overflows", "options", "expected"),
    [
        # Every third good step in a row doubles.
        ("......", {"scale_window": 3}, [64, 64, 128, 128, 128, 256]),
        # An overflow halves, and the window begins anew.
        ("..x...", {"scale_window": 3}, [64, 64, 32, 32, 32, 64]),
        ("xx..", {"scale_window": 2}, [32, 16, 16, 32]),
        (".x.x.", {"scale_window": 1}, [128, 64, 128, 64, 128]),
        ("xxx", {"scale_factor": 4.0}, [16, 4, 1]),
        ("...", {"scale_window": 2, "scale_factor": 3.0}, [64, 192, 192]),
        # Not below the least.
        ("xxxx", {"min_scale": 10.0}, [32, 16, 10, 10]),
        ("xxxxxxxx", {}, [32, 16, 8, 4, 2, 1, 1, 1]),
        # What was set below it stays.
        ("xx", {"min_scale": 100.0}, [64, 64]),
        # Patience: the first overflow is forgiven; only growth fills it again.
        ("x.x.x", {"delayed_shift": 2}, [64, 64, 32, 32, 16]),
        ("xxx", {"delayed_shift": 3}, [64, 64, 32]),
        ("x..xx", {"delayed_shift": 2, "scale_window": 2}, [64, 64, 128, 128, 64]),
        # With consecutive_hysteresis each good step fills it.
        ("x.x.xx", {"delayed_shift": 2, "consecutive_hysteresis": True}, [64] * 5 + [32]),
        ("xx.xx", {"delayed_shift": 2, "consecutive_hysteresis": True}, [64, 32, 32, 32, 16]),
    ],
)
def test_dynamic_scales(overflows: str, options: dict[str, Any], expected: list[float]) -> None:
    assert scales(overflows, **options) == expected


def test_it_begins_as_published() -> None:
    scaler = LossScaler.dynamic({})
    assert scaler.loss_scale == 2.0**32
    for number in range(1, 2001):
        scaler.update_scale(False)
        assert scaler.loss_scale == 2.0 ** (32 + number // 1000)


def published(overflows: str, options: dict[str, Any]) -> list[float]:
    """The rules as a loop over all that has been, without any state but the scale."""
    window, shift = options["scale_window"], options["delayed_shift"]
    scale, found = 64.0, []
    patience = shift
    for number, each in enumerate(overflows):
        if each == "x":
            if patience == 1:
                scale = max(scale / 2.0, min(scale, options["min_scale"]))
            patience = max(1, patience - 1)
        else:
            run = len(list(itertools.takewhile(lambda c: c == ".", overflows[number::-1])))
            if run % window == 0:
                scale, patience = scale * 2.0, shift
            if options["consecutive_hysteresis"]:
                patience = shift
        found.append(scale)
    return found


@pytest.mark.parametrize("consecutive", [False, True])
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 5])
def test_any_order_of_overflows(window: int, shift: int, consecutive: bool) -> None:
    generator = random.Random(3)
    options = {
        "scale_window": window,
        "delayed_shift": shift,
        "consecutive_hysteresis": consecutive,
        "min_scale": 0.5,
    }
    for _ in range(20):
        overflows = "".join(generator.choice("x..") for _ in range(60))
        assert scales(overflows, **options) == published(overflows, options)


def test_a_static_scale_stays() -> None:
    scaler = LossScaler(cur_scale=128)
    for overflow in (True, False, True):
        scaler.update_scale(overflow)
    assert scaler.loss_scale == 128.0
    assert (scaler.cur_iter, scaler.last_overflow_iter) == (3, 2)


@pytest.mark.parametrize("position", range(8))
def test_it_goes_on_from_any_state(position: int) -> None:
    options = {"scale_window": 2, "delayed_shift": 2, "consecutive_hysteresis": False}
    overflows = "x..xx..x"
    whole = scales(overflows, **options)
    first = LossScaler.dynamic({"init_scale": 64.0, **options})
    for each in overflows[:position]:
        first.update_scale(each == "x")
    loaded = LossScaler.dynamic({})
    loaded.load_state_dict(first.state_dict())
    assert loaded == first == copy.deepcopy(first)
    for each, expected in zip(overflows[position:], whole[position:], strict=True):
        loaded.update_scale(each == "x")
        assert loaded.loss_scale == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"init_scale": 0}, r"loss scale is 0\.0; expected more than 0"),
        ({"scale_factor": 1.0}, r"scale_factor is 1\.0"),
        ({"scale_window": 0}, "scale_window is 0; expected a positive integer"),
        ({"scale_window": 1.5}, r"scale_window is 1\.5"),
        ({"min_scale": -1}, "min_scale is -1"),
        ({"delayed_shift": True}, "delayed_shift is True"),
    ],
)
def test_values_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LossScaler.dynamic(options)


def test_options_that_nobody_knows() -> None:
    with pytest.raises(TypeError, match="'growth_interval'; expected some of init_scale"):
        LossScaler.dynamic({"growth_interval": 3})
    assert set(DYNAMIC_OPTIONS) == {
        "init_scale",
        "scale_factor",
        "scale_window",
        "min_scale",
        "delayed_shift",
        "consecutive_hysteresis",
    }
