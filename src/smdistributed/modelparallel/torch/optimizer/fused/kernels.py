# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the optimizers, on lists of tensors of one batch, in place.

Torch's kernels for lists do the work. Lists are the columns of `batches.in_batches`; gradients are
only read. In formulas:

    g, p, m, v   gradient, parameter, first and second moment
    b1, b2       betas; b3 = 1 - b1 with grad_averaging, else 1
    c1, c2       bias corrections: 1 - b1^t and 1 - b2^t in step t, or 1

Source: Apex's documentation of the optimizers, and the papers that it names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from smdistributed.modelparallel.torch.optimizer.fused.batches import Scratch, in_pieces

__all__ = ["adam", "lamb", "novograd", "step_tensor"]

Tensors: TypeAlias = list[Tensor] | tuple[Tensor, ...]


def step_tensor(step: int, bias_correction: bool, device: torch.device) -> Tensor:
    """The step as torch's kernel of Adam wants it, in float32.

    The kernel corrects always; after infinitely many steps that is a division by 1.
    """
    count = step if bias_correction else math.inf
    return torch.full((), count, dtype=torch.float32, device=device)


def adam(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    *,
    step: Tensor,
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Updates `p -= lr * (m / c1) / (sqrt(v / c2) + eps)`.

    Args:
        step: of `step_tensor`; it is not changed.
        decoupled: the decay is of p; else of g.
    """
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        *(p, g, m, v, [], [step] * len(p)),
        lr=lr,
        beta1=b1,
        beta2=b2,
        weight_decay=weight_decay,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )


def lamb(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    v: Tensors,
    *,
    step: Tensor,
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    grad_averaging: bool,
    clip: float,
    is_adaptive: bool,
    scratch: Scratch,
) -> None:
    """Updates `p -= lr * r * u`.

    The update is `u = (m / c1) / (sqrt(v / c2) + eps) + decay * p`, the trust ratio `r = |p| / |u|`
    of the whole tensor.

    First u of the whole batch, by torch's kernel of Adam: it subtracts from zero at a rate of -1.
    Then p.

    Args:
        clip: what gradients are divided by.
        decoupled: the decay is of p; else of the scaled g, and u has none.
        is_adaptive: else r is 1, as it is where |p| or |u| is 0.
        scratch: where u goes.
    """
    # Without averaging m is a sum, which the kernel does not know: the mean times 1 / (1 - b1).
    share = 1.0 if grad_averaging else 1.0 - b1
    pieces = list(in_pieces((p, g, m, v, scratch.like(p))))
    owners: list[int] = []
    norms: list[Tensor] = []
    update_norms: list[Tensor] = []
    for places, (p_, g_, m_, v_, u_) in pieces:
        gradients: Tensors = torch._foreach_div(g_, clip) if clip != 1.0 else g_
        if weight_decay != 0.0 and not decoupled:
            gradients = torch._foreach_add(gradients, p_, alpha=weight_decay)
        if share != 1.0:
            torch._foreach_mul_(m_, share)
        torch._foreach_zero_(u_)
        adam(
            *(u_, gradients, m_, v_),
            step=step,
            lr=-1.0 / share,
            b1=b1,
            b2=b2,
            eps=eps,
            weight_decay=0.0,
            decoupled=True,
        )
        if share != 1.0:
            torch._foreach_div_(m_, share)
        if weight_decay != 0.0 and decoupled:
            torch._foreach_add_(u_, p_, alpha=weight_decay)
        if is_adaptive:
            owners += places
            norms += torch._foreach_norm(p_)
            update_norms += torch._foreach_norm(u_)
    rates = [-lr] * len(p)
    if is_adaptive:
        length, update_length = (_of_tensors(each, owners) for each in (norms, update_norms))
        # NaN is not 0, and spreads.
        is_known = (length != 0.0) & (update_length != 0.0)
        rates = (torch.where(is_known, length / update_length, 1.0) * -lr).tolist()
    for places, (p_, _, _, _, u_) in pieces:
        torch._foreach_mul_(u_, [rates[place] for place in places])
        torch._foreach_add_(p_, u_)


def _of_tensors(norms: Tensors, owners: Sequence[int]) -> Tensor:
    """Norms of tensors, from those of pieces and whose pieces they are, in ascending order."""
    squares = torch.stack(norms).double().square()
    total = torch.zeros(owners[-1] + 1, dtype=squares.dtype, device=squares.device)
    return total.index_add_(0, torch.tensor(owners, device=squares.device), squares).sqrt()


def novograd(
    p: Tensors,
    g: Tensors,
    m: Tensors,
    norms: Tensors,
    *,
    step: int,
    bias_correction: bool,
    lr: float,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    reg_inside_moment: bool,
    grad_averaging: bool,
    order: float,
) -> None:
    """Updates `p -= lr * (m / c1 / d + decay * p)`.

    The denominator is `d = n / sqrt(c2) + eps`, with n a running mean of norms of the whole tensor.

    Args:
        norms: n, each without dimensions: sqrt(b2 * n^2 + (1 - b2) * |g|^2), or of order infinity
            b2 * n + (1 - b2) * |g|. Where it is negative |g| becomes n.
        reg_inside_moment: m is a mean of g / d + decay * p instead, and p -= lr * m / c1.
        order: of the norms, 2 or infinity.
    """
    c1, c2 = (1.0 - b1**step, 1.0 - b2**step) if bias_correction else (1.0, 1.0)
    b3 = 1.0 - b1 if grad_averaging else 1.0
    before = torch.stack(norms)
    now = torch.stack(torch._foreach_norm(g, order))
    if order == math.inf:
        mean = b2 * before + (1.0 - b2) * now
    else:
        mean = (b2 * before.square() + (1.0 - b2) * now.square()).sqrt()
    mean = torch.where(before < 0.0, now, mean)
    torch._foreach_copy_(norms, mean.unbind())
    inverses = (mean.double() / math.sqrt(c2) + eps).reciprocal().tolist()
    for places, (p_, g_, m_) in in_pieces((p, g, m)):
        scales = [inverses[place] for place in places]
        torch._foreach_mul_(m_, b1)
        if reg_inside_moment:
            torch._foreach_add_(m_, torch._foreach_mul(g_, [b3 * each for each in scales]))
            if weight_decay != 0.0:
                torch._foreach_add_(m_, p_, alpha=b3 * weight_decay)
            torch._foreach_add_(p_, m_, alpha=-lr / c1)
        else:
            torch._foreach_add_(m_, g_, alpha=b3)
            if weight_decay != 0.0:
                torch._foreach_mul_(p_, 1.0 - lr * weight_decay)
            torch._foreach_add_(p_, torch._foreach_mul(m_, [-lr / c1 * each for each in scales]))
