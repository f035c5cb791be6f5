# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept from torch's compiler still works when it is called in compiled code."""

import torch

from smdistributed.dataparallel.torch.compilation import keep_from_compiler


@keep_from_compiler
class _Kept:
    @property
    def is_compiling(self) -> bool:
        return torch.compiler.is_compiling()

    def double(self, x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_dynamo_compiling()
        return x * 2


@keep_from_compiler
def _kept(x: torch.Tensor) -> torch.Tensor:
    assert not torch.compiler.is_dynamo_compiling()
    return x + 1


def test_methods_and_functions_run_as_they_are() -> None:
    kept = _Kept()

    def function(x: torch.Tensor) -> torch.Tensor:
        return _kept(kept.double(x * 3)) - 1

    compiled = torch.compile(function, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [6.0, 6.0]
    assert not kept.is_compiling
