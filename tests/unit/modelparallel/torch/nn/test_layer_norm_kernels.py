# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels of `FusedLayerNorm`: interpreted on CPU tensors, compiled, and run on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from machine_speed import scaled
from torch import nn

import smdistributed.modelparallel.torch as smp

ROOT = Path(__file__).parents[5]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@needs_triton
@pytest.mark.parametrize("interpret", ["1", "0"])
def test_without_a_gpu(interpret: str, tmp_path: Path) -> None:
    """Interpreted, what they compute; else whether they compile."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.modelparallel.torch.nn.triton_checks"],
        cwd=ROOT,
        env={
            **os.environ,
            "TRITON_INTERPRET": interpret,
            "TRITON_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=False,
    )
    assert done.stdout == "checked\n", done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = smp.nn.FusedLayerNorm(1023).cuda()
    reference = nn.LayerNorm(1023).cuda().double()
    x = torch.randn(300, 1023, device="cuda").to(dtype).requires_grad_()
    wide = x.detach().double().requires_grad_()
    found, expected = module(x), reference(wide)
    dy = torch.randn_like(expected)
    found.backward(dy.to(dtype))
    expected.backward(dy.to(dtype).double())
    bound = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    assert module.weight is not None
    for mine, theirs in ((found, expected), (x.grad, wide.grad)):
        assert mine is not None
        assert theirs is not None
        torch.testing.assert_close(mine.double(), theirs, rtol=bound, atol=bound)
    assert module.weight.grad is not None
    assert reference.weight.grad is not None
    torch.testing.assert_close(
        module.weight.grad.double(), reference.weight.grad, rtol=bound, atol=1e-2
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_autocast_on_a_gpu() -> None:
    module = smp.nn.FusedLayerNorm(64).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        assert module(torch.randn(3, 64, device="cuda")).dtype is torch.float16
