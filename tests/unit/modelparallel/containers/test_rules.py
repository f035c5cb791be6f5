# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The rules for arguments and results of step functions, with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from smdistributed.modelparallel.torch.pipeline.microbatches import ArgumentSplitter
from smdistributed.modelparallel.torch.pipeline.step_output import gather_outputs
from tests.unit.modelparallel.containers.rules import RULES, Framework


class PyTorch(Framework):
    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def split(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        count: int,
        **options: Any,
    ) -> list[Any]:
        return list(ArgumentSplitter(function, **options).split(args, kwargs, count))

    def gather(self, values: list[Any]) -> Any:
        return gather_outputs(values)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rules(rule: Callable[[Framework], None]) -> None:
    rule(PyTorch())
