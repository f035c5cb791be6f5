# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Texts fit their cause, where one cause looks like another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import run_ranks
from heard import listen
from torch import Tensor, nn

DEADLINE_S = 60.0
MICROBATCHES = 2
WIDTH = 4


class Remote(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.way = ""
        self.loss: Any = None

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        y: Tensor = self.dense(x)
        if self.way == "attribute":
            self.loss = y.pow(2).mean()
        elif self.way == "argument":
            assert cache is not None
            cache.append(y)
        elif self.way == "backward":
            y.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        return y


def texts(rank: int, world_size: int) -> None:
    import smdistributed.modelparallel.torch as smp

    heard = listen()
    smp.init(
        {
            "partitions": 2,
            "microbatches": MICROBATCHES,
            "auto_partition": False,
            "default_partition": 0,
        }
    )
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Remote())
    remote = net[1]
    assert isinstance(remote, Remote)
    smp.set_partition(remote, 1)
    model = smp.DistributedModel(net)

    @smp.step
    def train(x: Tensor) -> Tensor:
        y = remote(net[0](x), []) if remote.way == "argument" else model(x)
        loss: Tensor = y.pow(2).mean()
        model.backward(loss)
        return loss.detach()

    batch = torch.ones(MICROBATCHES, WIDTH)
    for way, name in (("attribute", "'loss'"), ("argument", "'cache'")):
        heard.texts.clear()
        remote.way = way
        train(batch)
        train(batch)
        told = [text for text in heard.texts if "The caller waits for each" in text]
        assert len(told) == rank, told
        if rank == 1:
            assert name in told[0]
            assert ("use_cache" in told[0]) == (way == "argument")

    remote.way = "backward"
    with pytest.raises(Exception, match="in the forward pass of a module"):
        train(batch)


def test_texts_fit_their_cause() -> None:
    run_ranks(texts, 2, deadline_s=DEADLINE_S)
