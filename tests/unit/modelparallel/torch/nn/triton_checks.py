# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels on CPU tensors, under Triton's interpreter; and compiled, but not run.

    TRITON_INTERPRET=1 python -m tests.unit.modelparallel.torch.nn.triton_checks
    python -m tests.unit.modelparallel.torch.nn.triton_checks

Triton reads the variable when it is imported, so each is a process of its own.
"""

from __future__ import annotations

import itertools
import os

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.nn import layer_norm_kernels

# Rows: fewer than stripes, one more than they divide. Lengths: powers of 2, one more, primes.
SHAPES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (1, (1,)),
    (1, (64,)),
    (2, (3,)),
    (4, (65,)),
    (7, (131,)),
    (10, (5, 7)),
)
BOUNDS = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def compare(
    rows: int, shape: tuple[int, ...], dtype: torch.dtype, parameters: torch.dtype | None
) -> None:
    """With torch's layer norm in float64; without weights if `parameters` is None."""
    generator = torch.Generator().manual_seed(rows)
    x = (torch.randn(rows, *shape, generator=generator) * 3 + 1).to(dtype)
    dy = torch.randn(rows, *shape, generator=generator).to(dtype)
    given: list[Tensor | None] = [x.requires_grad_(), None, None]
    if parameters is not None:
        for place in (1, 2):
            made = torch.randn(shape, generator=generator).to(parameters)
            given[place] = made.requires_grad_()
    wide = [None if each is None else each.detach().double().requires_grad_() for each in given]
    expected = torch.nn.functional.layer_norm(wide[0], shape, wide[1], wide[2], 1e-5)
    expected.backward(dy.double())
    assert layer_norm_kernels.takes(x, shape)
    found = layer_norm_kernels.layer_norm(x, given[1], given[2], shape, 1e-5)
    found.backward(dy)
    assert found.dtype is dtype
    pairs = [(found, expected)]
    for mine, theirs in zip(given, wide, strict=True):
        if mine is not None and theirs is not None:
            assert mine.grad is not None
            assert theirs.grad is not None
            assert mine.grad.dtype is mine.dtype
            assert mine.grad.shape == mine.shape
            pairs.append((mine.grad, theirs.grad))
    for ours, reference in pairs:
        bound = max(BOUNDS[dtype], BOUNDS[ours.dtype])
        largest = max(1.0, float(reference.detach().abs().max()))
        assert float((ours.detach().double() - reference).abs().max()) <= 2 * bound * largest


def check_inputs() -> None:
    """What lies otherwise in memory, and what the kernels leave to torch."""
    x = torch.randn(6, 9).t().requires_grad_()
    weight = torch.randn(12)[::2].requires_grad_()
    bias = torch.randn(6, requires_grad=True)
    found = layer_norm_kernels.layer_norm(x, weight, bias, (6,), 1e-5)
    expected = torch.nn.functional.layer_norm(x, (6,), weight, bias)
    torch.testing.assert_close(found, expected)
    dy = torch.randn(6, 9).t()
    for mine, theirs in zip(
        torch.autograd.grad(found, (x, weight, bias), dy),
        torch.autograd.grad(expected, (x, weight, bias), dy),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert not layer_norm_kernels.takes(torch.zeros(2, 5), (4,))
    assert not layer_norm_kernels.takes(torch.zeros(4), (2, 4))
    assert not layer_norm_kernels.takes(torch.zeros(0, 4), (4,))
    assert not layer_norm_kernels.takes(torch.zeros(2, 4, dtype=torch.float64), (4,))
    assert not layer_norm_kernels.takes(torch.zeros(1, 1 << 15), (1 << 15,))
    assert layer_norm_kernels.takes(torch.zeros(1, 1 << 14), (1 << 14,))


def check_arithmetic() -> None:
    """All shapes and dtypes."""
    kinds: tuple[torch.dtype | None, ...] = (torch.float32, None, torch.bfloat16)
    for (rows, shape), dtype, parameters in itertools.product(SHAPES, BOUNDS, kinds):
        compare(rows, shape, dtype, parameters)
    compare(3, (17,), torch.float16, torch.float16)
    check_inputs()


def check_code() -> None:
    """The compiler makes machine code of the kernels for NVIDIA's A100 and H100, without either."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    numbers = {"num_rows": "i32", "length": "i32", "rows_per_stripe": "i32", "eps": "fp32"}
    for kernel, capability, dtype, has_affine in itertools.product(
        (layer_norm_kernels._forward, layer_norm_kernels._backward),
        (80, 90),
        ("fp16", "fp32"),
        (True, False),
    ):
        constants = {"has_affine": has_affine, "block": 1024}
        signature = {
            name: "constexpr" if name in constants else numbers.get(name, "*fp32")
            for name in kernel.arg_names
        }
        signature |= dict.fromkeys({"x", "y", "dy", "dx"} & set(signature), f"*{dtype}")
        compiled = triton_compile(
            ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32)
        )
        assert compiled.asm["cubin"]


def main() -> None:
    """What this process can check."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        check_arithmetic()
    else:
        check_code()
    print("checked")


if __name__ == "__main__":
    main()
