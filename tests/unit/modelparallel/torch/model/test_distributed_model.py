# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.DistributedModel` and `smp.step` in one process, with one partition."""

from __future__ import annotations

import copy
import gc
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.exceptions import (
    ModelNotPartitionedError,
    MultipleDistributedModelError,
    SMPNotInitialized,
)
from smdistributed.modelparallel.torch.pipeline.messages.wire import pack

pytestmark = pytest.mark.usefixtures("alone")


def _mse(result: Tensor, wanted: Tensor) -> Tensor:
    return nn.functional.mse_loss(result, wanted)


def test_before_init_nothing_is_wrapped() -> None:
    with pytest.raises(SMPNotInitialized, match=r"smp\.init"):
        smp.DistributedModel(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trace_device": "tpu"}, "trace_device is 'tpu'"),
        ({"trace_device": "cpu", "trace_execution_times": True}, "trace_execution_times"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0"),
        ({"backward_passes_per_step": True}, "backward_passes_per_step is True"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], words: str) -> None:
    smp.init({})
    with pytest.raises(ValueError, match=words):
        smp.DistributedModel(nn.Linear(2, 2), **options)


def test_what_is_no_module() -> None:
    smp.init({})
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        smp.DistributedModel(lambda x: x)  # type: ignore[arg-type]


def test_modules_that_others_distribute_are_refused() -> None:
    smp.init({})
    inner = DistributedDataParallel(nn.Linear(2, 2), process_group=smp.get_world_process_group())
    with pytest.raises(TypeError, match="is a DistributedDataParallel"):
        smp.DistributedModel(nn.Sequential(inner))


def test_parameters_that_are_distributed_are_refused_by_name() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    smp.init({})
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    whole = distribute_tensor(model[1].weight, init_device_mesh("cpu", (1,)), [Replicate()])
    model[1].weight = nn.Parameter(whole)
    with pytest.raises(TypeError, match=r"1\.weight is a DTensor; expected tensors"):
        smp.DistributedModel(model)
    with pytest.raises(TypeError, match="DTensor"):
        pack(0, 0, [], [whole])


def test_one_model_lives_at_a_time() -> None:
    smp.init({})
    first = smp.DistributedModel(nn.Linear(2, 2))
    with pytest.raises(MultipleDistributedModelError, match="while the first one lives"):
        smp.DistributedModel(nn.Linear(2, 2))
    del first
    gc.collect()
    smp.DistributedModel(nn.Linear(2, 2))


def test_the_end_of_an_earlier_model_does_not_forget_a_later_one() -> None:
    smp.init({})
    earlier = smp.DistributedModel(nn.Linear(2, 2))
    kept = smp.state.model
    smp.reset()
    smp.init({})
    later = smp.DistributedModel(nn.Linear(2, 2))
    del earlier
    gc.collect()
    with pytest.raises(ReferenceError):
        kept.partitioned  # noqa: B018
    assert smp.state.model.get_module() is later.get_module()


@pytest.mark.parametrize("ddp", [False, True])
def test_wrappers_show_what_they_wrap(ddp: bool) -> None:
    smp.init({"ddp": ddp})
    net = nn.Sequential(nn.Linear(2, 3))
    net.note = "mine"
    model = smp.DistributedModel(net)
    assert model.get_module() is net
    assert model.note == model.module.note == "mine"
    assert (model.module.module if ddp else model.module) is net
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "0.bias"]
    assert model.partitioned
    assert list(model.local_parameters()) == list(net.parameters())
    with pytest.raises(AttributeError):
        _ = model.nothing


def test_with_one_partition_calls_need_no_step() -> None:
    smp.init({"microbatches": 4})
    net = nn.Linear(3, 1)
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)
    x = torch.randn(5, 3)
    model(x).sum().backward()
    plain(x).sum().backward()
    assert torch.equal(net.weight.grad, plain.weight.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_plain", [True, False])
def test_sums_over_microbatches_are_warned_of_once(
    is_plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    smp.init({"microbatches": 4})
    model = smp.DistributedModel(nn.Linear(3, 1))

    @smp.step
    def run(x: Tensor, is_training: bool) -> None:
        loss = model(x).mean()
        if is_training and is_plain:
            loss.backward()
        elif is_training:
            model.backward(loss)

    for is_training in (False, True, True):
        run(torch.randn(8, 3), is_training)
        assert ("gradients are their sum" in caplog.text) is (is_plain and is_training)
    assert caplog.text.count("gradients are their sum") == is_plain


@pytest.mark.parametrize("averages", [True, False])
def test_gradients_are_means_over_microbatches(averages: bool) -> None:
    smp.init({"microbatches": 4})
    net = nn.Linear(3, 1)
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net, average_grads_across_microbatches=averages)
    x, y = torch.randn(8, 3), torch.randn(8, 1)

    @smp.step
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = _mse(model(x), y)
        model.backward(loss)
        loss /= 100  # scripts do
        return loss

    for _ in range(2):  # gradients add up
        outputs = train(x, y)
        (_mse(plain(x), y) * (1 if averages else 4)).backward()
    assert len(outputs) == 4
    torch.testing.assert_close(outputs.reduce_mean() * 100, _mse(plain(x), y).detach())
    torch.testing.assert_close(net.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("size", [8, 7, 5, 3, 1])
def test_a_ragged_batch_counts_row_by_row(size: int) -> None:
    smp.init({"microbatches": 4})
    net = nn.Linear(3, 1)
    plain = copy.deepcopy(net)
    model = smp.DistributedModel(net)
    x, y = torch.randn(size, 3), torch.randn(size, 1)

    @smp.step(ragged=True)
    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
        loss = _mse(model(x), y)
        model.backward(loss)
        return loss, model(x).argmax(1) + 1, len(x)

    loss, ones, sizes = train(x, y)
    expected = _mse(plain(x), y)
    expected.backward()
    assert sum(sizes) == size
    torch.testing.assert_close(loss.reduce_mean(), expected.detach())
    torch.testing.assert_close(loss.cpu().detach().reduce_mean(), expected.detach())
    torch.testing.assert_close(net.weight.grad, plain.weight.grad)
    assert ones.concat().tolist() == [1] * size


def test_backward_of_several_tensors_with_gradients() -> None:
    smp.init({"microbatches": 2})
    model = smp.DistributedModel(nn.Linear(2, 2, bias=False))
    weight = model.get_module().weight

    @smp.step
    def train(x: Tensor) -> None:
        out = model(x)
        model.backward([out, out.sum()], [torch.ones_like(out), None])

    train(torch.ones(4, 2))
    assert torch.equal(weight.grad, torch.full((2, 2), 4.0))  # type: ignore[arg-type]


def test_hooks_run_once_and_in_order() -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Linear(2, 2))
    seen: list[str] = []

    def hook(name: str) -> Any:
        def run(given: Any, optimizer: Any) -> None:
            assert given is model
            assert optimizer is None
            seen.append(name)

        return run

    model.register_post_partition_hook(hook("partition"))
    model.register_post_step_hook(hook("first"))
    model.register_post_step_hook(hook("second"))
    model.register_post_step_hook(hook("never")).remove()

    @smp.step
    def run(x: Tensor) -> Tensor:
        return model(x)

    assert seen == ["partition"]  # it is partitioned already
    for _ in range(2):
        run(torch.ones(1, 2))
    assert seen == ["partition", "first", "second"]


def test_a_failed_step_leaves_the_next_one_alone() -> None:
    smp.init({"microbatches": 2})
    model = smp.DistributedModel(nn.Linear(2, 2))

    @smp.step
    def run(x: Tensor, fails: bool) -> Tensor:
        if fails:
            raise ValueError("mine")
        return model(x)

    with pytest.raises(ValueError, match="mine"):
        run(torch.ones(2, 2), True)
    assert run(torch.ones(2, 2), False).concat().shape == (2, 2)


def test_steps_do_not_nest() -> None:
    smp.init({})

    @smp.step
    def inner() -> int:
        return 1

    @smp.step
    def outer() -> Any:
        return inner()

    with pytest.raises(RuntimeError, match="inside of a step"):
        outer()
    assert inner() == [1]


def test_a_step_without_a_model_maps_microbatches() -> None:
    smp.init({"microbatches": 2})

    @smp.step(["scale"])
    def double(x: Tensor, scale: int) -> dict[str, Any]:
        return {"x": x * scale, "n": len(x), "none": None}

    result = double(torch.arange(4.0), 2)
    assert torch.equal(result["x"].concat(), torch.arange(4.0) * 2)
    assert result["n"] == [2, 2]
    assert result["none"] is None


class _Holder:
    @smp.step
    def without_self(x: Tensor) -> Tensor:  # type: ignore[misc] # noqa: N805
        """As published scripts do it."""
        return x + 1


def test_a_step_in_a_class_does_not_bind() -> None:
    smp.init({})
    assert _Holder().without_self(torch.zeros(1)).concat() == 1
    assert _Holder.without_self.__name__ == "without_self"
    assert "published" in (_Holder.without_self.__doc__ or "")


def test_devices_are_chosen_by_the_partition_and_dtypes_by_the_user(
    caplog: pytest.LogCaptureFixture,
) -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Linear(2, 2))
    with caplog.at_level(logging.WARNING, "smdistributed"):
        assert model.to("cpu") is model
        assert model.half() is model
    assert not caplog.records
    assert model.get_module().weight.dtype is torch.float16
    assert model.float().get_module().weight.dtype is torch.float32


def test_what_needs_replicas_says_so() -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Linear(2, 2))
    for call in (model.join, lambda: model.register_comm_hook(None, print)):
        with pytest.raises(RuntimeError, match="ddp: True"):
            call()
    with pytest.raises(RuntimeError, match="ddp: True"):
        model.hvd_average_grads()


def test_parts_are_known_after_the_partition_only() -> None:
    smp.init({"partitions": 1})
    model = smp.DistributedModel(nn.Linear(2, 2))
    model._placement = None  # as with several partitions, before the first step
    for call in (
        model.local_parameters,
        model.local_buffers,
        model.local_state_dict,
        model.partition_report,
    ):
        with pytest.raises(ModelNotPartitionedError, match="before the model was partitioned"):
            list(call())


def test_the_report_of_one_partition() -> None:
    smp.init({})
    model = smp.DistributedModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    assert model.partition_report().splitlines() == [
        "partition 0 on rank 0: 12 parameters",
        "",
        "partition  parameters  module  why",
        "        0          12  main    there is one partition",
    ]


def test_the_original_name_of_forward() -> None:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    class Middle(Base):
        pass

    class Derived(Middle):
        def forward(self, x: Tensor) -> Tensor:
            return super()._orig_forward(x) * 10  # type: ignore[misc, no-any-return]

    smp.init({})
    model = smp.DistributedModel(nn.Sequential(Derived(), nn.Identity()))
    assert torch.equal(model(torch.ones(1)), torch.full((1,), 20.0))
