# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The legacy `DistributedDataParallel`, one test for each statement about it.

That it trains as torch's class does, in all its modes, is tested in
`tests/multiprocess/test_legacy_ddp.py`.

Source: dataparallel specification, sections 5.2, 6.2, 6.3, 6.5 and 6.6; the number in a name is
the section. Gradients here are 1 on rank 0 and 3 on rank 1, hence 2 on average.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import pytest
import torch
from harness import run_ranks

from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
from tests.conformance.dataparallel.legacy_ddp_ranks import (
    accumulation,
    differing_models,
    joins,
    missing_gradient,
    stalls,
    wrapper,
)

TWOS = [2.0] * 4


@functools.cache
def found(what: str) -> list[dict[str, Any]]:
    functions = {
        "wrapper": wrapper,
        "accumulation": accumulation,
        "differing models": differing_models,
    }
    result: list[dict[str, Any]] = run_ranks(functions[what], 2, deadline_s=110)
    return result


def both(what: str, name: str) -> list[Any]:
    return [by_rank[name] for by_rank in found(what)]


# ---- the class -------------------------------------------------------------------------------


def test_5_2_signature() -> None:
    parameters = inspect.signature(DistributedDataParallel).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(positional.items()) == [
        ("module", inspect.Parameter.empty),
        ("device_ids", None),
        ("output_device", None),
        ("broadcast_buffers", True),
        ("process_group", None),
        ("bucket_cap_mb", None),
    ]
    assert {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} == {
        "find_unused_parameters": False,
        "gradient_as_bucket_view": False,
        "gradient_accumulation_steps": None,
        "dim": 0,
        "check_reduction": False,
        "static_graph": False,
    }


def test_5_2_it_is_torchs_class_to_isinstance_and_state_dict() -> None:
    assert issubclass(DistributedDataParallel, torch.nn.parallel.DistributedDataParallel)
    assert both("wrapper", "torch's class") == [True, True]
    assert both("wrapper", "module") == [True, True]
    keys = ["module.count", "module.first.weight", "module.second.weight", "module.third.weight"]
    assert both("wrapper", "keys") == [keys, keys]


def test_5_2_it_needs_the_group_and_names_the_call_that_makes_it() -> None:
    for name, text, bases in both("wrapper", "before init"):
        assert name == "SMDDPNotInitialized"
        assert "RuntimeError" in bases
        assert "init_process_group()" in text


def test_5_2_parameters_and_buffers_start_as_on_rank_0() -> None:
    assert both("wrapper", "rank 0 kept its weights") == [True, False]
    assert both("wrapper", "buffer after wrapping") == [[0.0], [0.0]]


def test_5_2_gradients_are_averages_over_the_world() -> None:
    assert both("wrapper", "gradient") == [TWOS, TWOS]


def test_5_2_process_groups_of_torch_are_accepted() -> None:
    assert both("wrapper", "in a sub-group") == [TWOS, TWOS]
    for _, text, bases in both("wrapper", "wrong group"):
        assert "ValueError" in bases
        assert "must be torch process groups" in text


def test_5_2_both_values_of_broadcast_buffers_are_honoured() -> None:
    assert both("wrapper", "buffer with broadcast_buffers=True") == [[0.0], [0.0]]
    assert both("wrapper", "buffer with broadcast_buffers=False") == [[0.0], [1.0]]


@pytest.mark.parametrize(
    "extra",
    ["gradient_as_bucket_view", "check_reduction", "static_graph", "find_unused_parameters"],
)
def test_5_2_extra_keywords_are_accepted(extra: str) -> None:
    assert both("wrapper", extra) == [TWOS, TWOS]


def test_5_2_empty_device_ids_are_none() -> None:
    assert both("wrapper", "device_ids=[]") == [TWOS, TWOS]


def test_5_2_moving_to_where_it_is_after_wrapping_keeps_the_hooks() -> None:
    assert both("wrapper", "moved") == [TWOS, TWOS]


# ---- bucket_cap_mb ---------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [1, 25, 0.5, None, 1 / 8192])
def test_6_2_allowed_bucket_caps(cap: float | None) -> None:
    assert both("wrapper", f"bucket_cap_mb={cap}") == [TWOS, TWOS]


@pytest.mark.parametrize(
    ("name", "value", "num_bytes"),
    [
        ("0", "0", "0"),
        ("-1", "-1", "-1048576"),
        ("1/3", "0.3333333333333333", "349525.3333333333"),
        ("0.00005", "5e-05", "52.4288"),
        ("nan", "nan", "nan"),
    ],
)
def test_6_2_refused_bucket_caps(name: str, value: str, num_bytes: str) -> None:
    for _, text, bases in both("wrapper", f"bucket_cap_mb {name}"):
        assert "ValueError" in bases
        assert text == (
            f"bucket_cap_mb={value} gives {num_bytes} bytes; the fusion buffer size must be a"
            " positive multiple of 128 bytes"
        )


def test_6_2_a_bucket_cap_that_is_no_number_is_refused_by_its_type() -> None:
    for _, text, bases in both("wrapper", "bucket_cap_mb True"):
        assert "ValueError" in bases
        assert text.startswith("bucket_cap_mb=True is of type bool; expected a number")


# ---- accumulation ----------------------------------------------------------------------------


def test_5_2_no_sync_accumulates_locally_and_the_next_backward_reduces_the_sum() -> None:
    assert both("accumulation", "no_sync") == [[1.0, 2.0], [3.0, 6.0]]
    assert both("accumulation", "after no_sync") == [[6.0], [6.0]]


def test_5_2_what_counts_for_no_sync_is_the_forward() -> None:
    assert both("accumulation", "forward in no_sync") == [[1.0], [3.0]]
    assert both("accumulation", "backward in no_sync") == [[2.0], [2.0]]


def test_5_2_gradient_accumulation_steps_reduces_every_kth_backward() -> None:
    assert both("accumulation", "every third") == [[1.0, 2.0, 6.0], [3.0, 6.0, 6.0]]
    assert both("accumulation", "every third, again") == [[1.0, 2.0, 6.0], [3.0, 6.0, 6.0]]
    assert both("accumulation", "every one") == [[2.0], [2.0]]


def test_5_2_gradient_accumulation_steps_brings_the_advice_to_use_no_sync() -> None:
    for texts in both("accumulation", "advice"):
        assert len(texts) == 1
        assert "no_sync()" in texts[0]


@pytest.mark.parametrize("steps", [0, -2, True, 1.5, "3"])
def test_5_2_gradient_accumulation_steps_are_checked(steps: Any) -> None:
    for _, text, bases in both("accumulation", f"steps {steps!r}"):
        assert "ValueError" in bases
        assert f"gradient_accumulation_steps={steps!r}" in text


# ---- construction ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("count", ("rank 0: nothing more; rank 1: parameter fourth.weight",)),
        ("shape", ("parameter second.weight: float32 [2, 2]", "second.weight: float32 [3, 2]")),
        ("dtype", ("parameter second.weight: float32 [2, 2]", "second.weight: float64 [2, 2]")),
        ("order", ("rank 0: parameter second.weight", "rank 1: parameter third.weight")),
        ("frozen", ("second.weight: float32 [2, 2] on cpu, trained", "frozen")),
        ("buffer", ("buffer extra",)),
        (
            "bucket_cap_mb",
            ("rank 0: bucket_cap_bytes=26214400", "rank 1: bucket_cap_bytes=27262976"),
        ),
        (
            "broadcast_buffers",
            ("rank 0: broadcast_buffers=True", "rank 1: broadcast_buffers=False"),
        ),
        ("find_unused_parameters", ("rank 0: find_unused_parameters=True",)),
        ("gradient_accumulation_steps", ("rank 1: gradient_accumulation_steps=2",)),
        ("static_graph", ("rank 1: static_graph=False",)),
    ],
)
def test_5_2_models_that_differ_are_found_on_all_ranks_with_the_first_difference(
    change: str, parts: tuple[str, ...]
) -> None:
    told = both("differing models", change)
    assert told[0] == told[1]
    name, text, bases = told[0]
    assert name == "SMDDPMismatch"
    assert "RuntimeError" in bases
    assert all(part in text for part in parts), text


def test_5_2_the_group_can_be_used_after_a_mismatch() -> None:
    assert [gradient for _, gradient, _ in both("differing models", "none")] == [TWOS, TWOS]


# ---- reduction -------------------------------------------------------------------------------


def test_6_3_sixteen_bit_averages() -> None:
    """60000 stays 60000, float16 on the wire, and an overflow of one rank is seen by all."""
    expected = [[[60000.0, 60000.0]], "torch.float16", True]
    assert both("wrapper", "16-bit") == [expected, expected]


def test_6_5_a_gradient_missing_on_one_rank_counts_as_zeros_with_find_unused_parameters() -> None:
    assert run_ranks(missing_gradient, 2, True) == [[0.5] * 4, [0.5] * 4]


def test_6_3_bfloat16_is_averaged_as_bfloat16() -> None:
    expected = [[[2.0, 2.0]], "torch.bfloat16", "torch.bfloat16"]
    assert both("wrapper", "bfloat16") == [expected, expected]


def test_6_3_a_nan_of_one_rank_reaches_all() -> None:
    assert both("wrapper", "nan reached") == [True, True]


def test_6_5_a_gradient_missing_on_all_ranks_stays_none_with_find_unused_parameters() -> None:
    assert both("wrapper", "unused everywhere") == [[None, 2.0], [None, 2.0]]


def test_6_5_without_it_all_ranks_fail_and_read_the_name() -> None:
    for _, text, bases in run_ranks(missing_gradient, 2, False):
        assert "SMDDPError" in bases
        assert "second.weight" in text
        assert "find_unused_parameters=True" in text


def test_6_6_uneven_batches_time_out_and_the_text_names_cause_and_remedy() -> None:
    name, text, bases = run_ranks(stalls, 2)[0]
    assert name == "SMDDPTimeoutError"
    assert "TimeoutError" in bases
    assert re.search(r"all_reduce #\d+", text)  # the collective and its sequence number
    assert "rank 0" in text  # this rank
    assert "for rank 1" in text  # who has not arrived
    assert "through with its batches, if the ranks have uneven numbers of them" in text
    assert "torch's Join context" in text


def test_6_6_join_is_the_remedy() -> None:
    assert run_ranks(joins, 2) == [[2.0], [2.0, 1.5]]  # then rank 0 counts as zero
