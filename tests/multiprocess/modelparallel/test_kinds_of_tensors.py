# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors that cannot go to another rank: one error on all ranks, that says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import run_ranks
from torch import Tensor, nn

DEADLINE_S = 60.0
WIDTH = 8

Way = Callable[["Net", Tensor], Tensor]


class Takes(nn.Module):
    """Returns what `made` makes of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.made: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        y: Tensor = self.dense(x)
        return y if self.made is None else self.made(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.flat = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.remote = Takes()
        self.way: Way = padded

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def nested(x: Tensor) -> Tensor:
    made: Tensor = torch.nested.nested_tensor([x[0], x[1][:1]])
    return made


def mask_of(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1]).expand(x.shape[:2]) > 1


def padded(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.flat(x, src_key_padding_mask=mask_of(x))
    return y[:, :2]


def encoder(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.encoder(x, src_key_padding_mask=mask_of(x))
    return y


def nested_argument(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.remote(x, nested(x))
    return y.clone()


def sparse_argument(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.remote(x, x.to_sparse())
    return y.clone()


def nested_result(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.remote(x)
    return y.clone()


def sparse_result(net: Net, x: Tensor) -> Tensor:
    y: Tensor = net.remote(x)
    return y.clone()


def nested_from_the_step(net: Net, x: Tensor) -> Tensor:
    return nested(x)


RESULTS: dict[Way, Callable[[Tensor], Tensor]] = {
    nested_result: nested,
    sparse_result: Tensor.to_sparse,
}
TOLD: dict[Way, tuple[str, ...]] = {
    encoder: ("a nested Tensor", "enable_nested_tensor=False", "main/encoder/layers/1 on rank 1"),
    nested_argument: ("a nested Tensor", "to_padded_tensor()", "main/remote on rank 1"),
    nested_result: (
        "a nested Tensor",
        "to_padded_tensor()",
        "rank 1 of the pipeline, in main/remo",
    ),
    nested_from_the_step: ("a nested Tensor", "to_padded_tensor()"),
    sparse_argument: ("sparse_coo", "to_dense()", "main/remote on rank 1"),
    sparse_result: ("sparse_coo", "to_dense()", "rank 1 of the pipeline, in main/remote"),
}


def kinds(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    smp.init(
        {
            "partitions": 2,
            "microbatches": 2,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    torch.manual_seed(0)
    net, whole = Net().eval(), Net().eval()
    whole.load_state_dict(net.state_dict())
    for module in (net.encoder.layers[1], net.flat.layers[1], net.remote):
        smp.set_partition(module, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def evaluate(x: Tensor) -> Tensor:
        with torch.no_grad():
            result: Tensor = model(x)
            return result

    batch = torch.randn(4, 3, WIDTH, generator=torch.Generator().manual_seed(1))
    for way, texts in TOLD.items():
        net.way, net.remote.made = way, RESULTS.get(way)
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- on rank 1 it is StepAborted
            evaluate(batch)
        told = "".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        for text in texts:
            assert text in told, (way.__name__, text, told)
        net.way, net.remote.made = padded, None
        with torch.no_grad():
            assert torch.allclose(evaluate(batch).concat(), padded(whole, batch), atol=1e-5)


def test_kinds_that_cannot_travel() -> None:
    """Of nested tensors torch said that it has no sizes, and asked for an issue."""
    run_ranks(kinds, 2, deadline_s=DEADLINE_S)
