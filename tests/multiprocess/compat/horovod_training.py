# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What ranks do with `DistributedOptimizer` and its relatives; compared with one process."""

from __future__ import annotations

import copy
import functools
import io
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_ranks import raised

from tests.multiprocess.compat.horovod_ranks import horovod, same

TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


def _model(seed: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 2))


def _batch(step: int, world_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(world_size * 4, 6, generator=generator)


def _mine(step: int, rank: int, world_size: int) -> Tensor:
    return _batch(step, world_size)[4 * rank : 4 * rank + 4]


def _weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def _require_equal_bits(hvd: Any, model: nn.Module) -> None:
    theirs = hvd.allgather_object([w.numpy().tobytes() for w in _weights(model)])
    assert all(each == theirs[0] for each in theirs)


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def _plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _alone(
    world_size: int, make: Callable[[nn.Module], Any], steps: int = 4, factor: float = 1.0
) -> list[Tensor]:
    """One process on the whole batch."""
    model = _model()
    optimizer = make(model)
    for step in range(steps):
        optimizer.zero_grad()
        (model(_batch(step, world_size)).square().mean() * factor).backward()
        optimizer.step()
    return _weights(model)


def training(rank: int, world_size: int, cases: list[str]) -> None:
    """Several steps, in the ways that a script may write them, give what one process gives."""
    with horovod() as hvd:
        for case in cases:
            try:
                _train(hvd, rank, world_size, case)
            except Exception as error:
                raise AssertionError(f"{case}: {error}") from error


def _train(hvd: Any, rank: int, world_size: int, case: str) -> None:
    tolerance = TOLERANCE
    model = _model(seed=rank)  # which the broadcast makes equal
    hvd.broadcast_parameters(_model().state_dict() if rank == 0 else model.state_dict(), 0)
    if rank == 0:
        model = _model()
    make, factor = (_adam if case == "adam" else _sgd), 1.0
    inner = make(model)
    options: dict[str, Any] = {"named_parameters": model.named_parameters()}
    if case == "unnamed":
        options = {}
    if case == "sum":
        options["op"], factor = hvd.Sum, float(world_size)
    if case == "fp16":
        options["compression"], tolerance = hvd.Compression.fp16, {"rtol": 1e-2, "atol": 1e-3}
    if case == "own compressor":
        options["compression"] = _Doubled
    if case == "predivide":
        options["gradient_predivide_factor"] = 2.0
    if case == "passes":
        options["backward_passes_per_step"] = 2
    optimizer = hvd.DistributedOptimizer(inner, **options)
    assert isinstance(optimizer, type(inner))
    assert type(optimizer).__name__ == type(inner).__name__
    hvd.broadcast_optimizer_state(optimizer, 0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(4):
        x = _mine(step, rank, world_size)
        _one_step(case, optimizer, model, x)
        scheduler.step()
    same(_weights(model), _alone(world_size, make, 4, factor), **tolerance)
    _require_equal_bits(hvd, model)


class _Doubled:
    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        return tensor.flatten() * 2, tensor.shape

    @staticmethod
    def decompress(tensor: Tensor, context: Any) -> Tensor:
        return (tensor / 2).view(context)


def _one_step(case: str, optimizer: Any, model: nn.Module, x: Tensor) -> None:
    def loss_of(part: Tensor) -> Tensor:
        return model(part).square().mean()

    if case == "closure":

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(x)
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
        return
    optimizer.zero_grad(set_to_none=case != "zeroed in place")
    if case == "passes":
        for part in x.split(2):
            (loss_of(part) / 2).backward()
    else:
        loss_of(x).backward()
    if case == "clipped":
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        with optimizer.skip_synchronize():
            optimizer.step()
    elif case == "synchronized twice":
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        assert any("skip_synchronize" in str(warning.message) for warning in caught)
    else:
        optimizer.step()


def scaled_loss(rank: int, world_size: int) -> None:
    """The order of calls of the example with mixed precision; without it an error."""
    with horovod() as hvd:
        model = _model()
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(_mine(step, rank, world_size)).square().mean()
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        same(_weights(model), _alone(world_size, _sgd), **TOLERANCE)
        optimizer.zero_grad()
        scaler.scale(model(_mine(0, rank, world_size)).square().mean()).backward()
        error, text, _ = raised(scaler.step, optimizer)
        assert error == "SMDDPUnsupported"
        assert "optimizer.synchronize() first" in text


class _Branches(nn.Module):
    """`a` is used on rank 0 only, `b` on all, `c` on none, `d` from the third step on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        for name in "abcd":
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        y = self.b(x)
        if rank == 0:
            y = y + self.a(x)
        return y + self.d(x) if step >= 2 else y


def without_gradients(rank: int, world_size: int) -> None:
    """A missing gradient counts as zeros, and the result is set on all ranks."""
    with horovod() as hvd:
        model, expected = _Branches(), _Branches()
        make = _sgd
        optimizer, alone = hvd.DistributedOptimizer(make(model)), make(expected)
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 3) * (rank + 1), rank, step).square().sum().backward()
            optimizer.step()
            assert all(p.grad is not None for p in model.parameters())
            alone.zero_grad(set_to_none=False)
            for each in range(world_size):
                loss = expected(torch.ones(2, 3) * (each + 1), each, step).square().sum()
                (loss / world_size).backward()
            for p in expected.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            alone.step()
        same(_weights(model), _weights(expected), **TOLERANCE)
        _require_equal_bits(hvd, model)
        if rank == 0:  # no backward at all on the others
            optimizer.zero_grad()
            model(torch.ones(2, 3), 0, 0).sum().backward()
        optimizer.step()
        _require_equal_bits(hvd, model)


def sparse_embedding(rank: int, world_size: int, as_dense: bool) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.rows = nn.Embedding(7, 4, sparse=True)
            self.head = nn.Linear(4, 1)

        def forward(self, index: Tensor) -> Tensor:
            return self.head(self.rows(index))

    with horovod() as hvd:
        model, expected = Bag(), Bag()
        make = _plain_sgd
        optimizer = hvd.DistributedOptimizer(make(model), sparse_as_dense=as_dense)
        alone = make(expected)
        for step in range(3):
            index = [torch.tensor([step, r, r]) for r in range(world_size)]
            optimizer.zero_grad()
            if rank or step:  # no gradient on rank 0 at first
                model(index[rank]).square().mean().backward()
            optimizer.step()
            assert model.rows.weight.grad.is_sparse or (rank == 0 and step == 0)
            alone.zero_grad()
            for r in range(0 if step else 1, world_size):
                (expected(index[r]).square().mean() / world_size).backward()
            alone.step()
        same(_weights(model), _weights(expected), **TOLERANCE)
        _require_equal_bits(hvd, model)


def more_parameters(rank: int, world_size: int) -> None:
    """Groups that are added later, and parameters that are frozen at first, are reduced too."""
    with horovod() as hvd:
        model, expected = _model(), _model()
        for m in (model, expected):
            m[2].requires_grad_(False)

        def make(m: nn.Module) -> Any:
            return torch.optim.SGD([*m[0].parameters(), *m[2].parameters()], lr=0.1)

        optimizer = hvd.DistributedOptimizer(make(model))
        alone = make(expected)
        for step in range(4):
            if step == 1:
                for m, o in ((model, optimizer), (expected, alone)):
                    o.add_param_group({"params": m[4].parameters(), "lr": 0.05})
            if step == 2:
                for m in (model, expected):
                    m[2].requires_grad_(True)
            optimizer.zero_grad()
            model(_mine(step, rank, world_size)).square().mean().backward()
            optimizer.step()
            alone.zero_grad()
            expected(_batch(step, world_size)).square().mean().backward()
            alone.step()
            same(_weights(model), _weights(expected), **TOLERANCE)
        _require_equal_bits(hvd, model)


def hooks_and_skipped_steps(rank: int, world_size: int) -> None:
    """Hooks run once, on reduced gradients; a step that a scaler leaves out is no second one."""
    with horovod() as hvd:
        model = _model()
        optimizer = hvd.DistributedOptimizer(_sgd(model), op=hvd.Sum)
        seen = []
        optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].bias.grad.clone()))
        optimizer.load_state_dict(optimizer.state_dict())
        for step in range(2):
            optimizer.zero_grad()
            model(_mine(step, rank, world_size)).sum().backward()
            if step == 0:
                optimizer.synchronize()  # and no step
            else:
                optimizer.step()
        theirs = hvd.allgather_object(seen)
        assert len(seen) == 1
        assert all(torch.equal(each[0], seen[0]) for each in theirs)


def misuse(rank: int, world_size: int) -> None:
    with horovod() as hvd:
        model = _model()
        x = _mine(0, rank, world_size)

        def backward() -> None:
            model(x).square().mean().backward()

        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        for _ in range(2):  # before there is a plan, and with one
            backward()
            error, text, bases = raised(optimizer.zero_grad)
            assert error == "SMDDPUnsupported"
            assert "AssertionError" in bases
            assert "Move zero_grad() before backward()" in text
            error, text, bases = raised(backward)
            assert "AssertionError" in bases
            assert "backward_passes_per_step=1" in text
            error, text, _ = raised(optimizer.step)
            assert "were changed between backward() and" in text
            optimizer.zero_grad()
            backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(2)
        backward()
        backward()
        assert "AssertionError" in raised(backward)[2]
        optimizer.load_state_dict(optimizer.state_dict())  # forgets them
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(1)
        for change in (
            lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
            lambda: model.zero_grad(set_to_none=False),
            lambda: model.zero_grad(set_to_none=True),
        ):
            backward()
            change()
            error, text, _ = raised(optimizer.step)
            assert error == "SMDDPUnsupported"
            assert "0.weight" in text
        summing = hvd.DistributedOptimizer(_sgd(_model()), op=hvd.Sum)
        summing.synchronize()
        assert "sum up the ranks' sums again" in raised(summing.step)[1]
        assert raised(copy.deepcopy, optimizer)[0] == "SMDDPUnsupported"
        torch.save(optimizer.state_dict(), io.BytesIO())
        _refused_arguments(hvd, model, optimizer)


def _refused_arguments(hvd: Any, model: nn.Module, optimizer: Any) -> None:
    named = list(model.named_parameters())

    def refused(*args: Any, **options: Any) -> tuple[str, str]:
        inner = args[0] if args else _sgd(model)
        return raised(hvd.DistributedOptimizer, inner, **options)[:2]

    for options, words in (
        ({"op": hvd.Adasum}, "no adaptive summation"),
        ({"num_groups": 2}, "SMDDP_BUCKET_CAP_MB"),
        ({"groups": [[named[0][1]]]}, "SMDDP_BUCKET_CAP_MB"),
        ({"process_set": [0]}, "global_process_set"),
        ({"op": hvd.Max}, "hvd.Average, hvd.Sum"),
        ({"backward_passes_per_step": 0}, "must be > 0"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "Leave it out"),
        ({"compression": 17}, "Compression.none"),
        ({"named_parameters": [p for _, p in named]}, "tuples (name, parameter)"),
        ({"named_parameters": named[1:]}, "1 parameters of the optimizer are not in"),
        ({"named_parameters": [("x", p) for _, p in named]}, "must be unique"),
    ):
        error, text = refused(**options)
        assert error in ("SMDDPUnsupported", "SMDDPConfigInvalid")
        assert words in text, text
    assert "Wrap it once" in refused(optimizer)[1]
    assert "SGD or Adam" in refused(torch.optim.LBFGS(model.parameters()))[1]
    assert "torch.optim.Optimizer" in refused(model)[1]
    hvd.DistributedOptimizer(_sgd(model), num_groups=0, groups=None, process_set=None)


def under_ddp(rank: int, world_size: int, kind: str) -> tuple[str, str, list[str]]:
    """Two who reduce the same gradients: an error, whatever the wrapper does with them."""
    from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel

    with horovod() as hvd:
        model = _model()
        wrapped: Any
        if kind == "legacy":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrapped = DistributedDataParallel(model)
        else:
            view = kind == "view"
            wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
        optimizer = hvd.DistributedOptimizer(_sgd(model), op=hvd.Sum)
        wrapped(_mine(0, rank, world_size)).square().mean().backward()
        return raised(optimizer.step)


def two_optimizers_of_one_model(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    """The second one is refused while the first one lives, and works afterwards."""
    with horovod() as hvd:
        model = _model()
        first = hvd.DistributedOptimizer(_sgd(model))
        second = hvd.DistributedOptimizer(_sgd(model))
        model(_mine(0, rank, world_size)).sum().backward()
        outcome = raised(second.step)
        del first
        second.zero_grad()
        model(_mine(0, rank, world_size)).sum().backward()
        second.step()
        _require_equal_bits(hvd, model)
        return outcome


def other_models(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    with horovod() as hvd:
        model = nn.Linear(3, 2 + rank)
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        model(torch.ones(1, 3)).sum().backward()
        return raised(optimizer.step)


def swapped_optimizers(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    """Two optimizers of equal models, stepped in another order on one rank."""
    with horovod() as hvd:
        models = [nn.Linear(3, 2), nn.Linear(3, 2)]
        optimizers = [hvd.DistributedOptimizer(_sgd(m)) for m in models]
        for step in range(2):
            for m, o in zip(models, optimizers, strict=True):
                o.zero_grad()
                m(torch.ones(1, 3)).sum().backward()
                o.step()
            if step == 1:
                break
        order = (0, 1) if rank == 0 else (1, 0)
        for index in order:
            optimizers[index].zero_grad()
            models[index](torch.ones(1, 3)).sum().backward()
        return raised(lambda: [optimizers[index].step() for index in order])


def uneven_batches(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    """One rank has a batch more, the other averages its loss meanwhile."""
    with horovod() as hvd:
        model = _model()
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())

        def train() -> None:
            for _ in range(2 + rank):
                optimizer.zero_grad()
                model(torch.ones(2, 6)).sum().backward()
                optimizer.step()
            hvd.allreduce(torch.tensor(1.0), name="loss")

        return raised(train)


def no_batches(rank: int, world_size: int) -> tuple[str, str, list[str]]:
    """As `uneven_batches`, and one rank has none at all."""
    with horovod() as hvd:
        model = _model()
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        average = functools.partial(hvd.allreduce, torch.tensor(1.0), name="loss")
        return raised(optimizer.step if rank else average)


def alone(rank: int, world_size: int) -> None:
    """One rank: nothing is reduced, and nothing is in the way."""
    with horovod() as hvd:
        model = _model()
        optimizer = hvd.DistributedOptimizer(_sgd(model), model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, 0)
        for step in range(4):
            model(_batch(step, 1)).square().mean().backward()
            optimizer.zero_grad()
            model(_batch(step, 1)).square().mean().backward()
            optimizer.step()
        same(_weights(model), _alone(1, _sgd), **TOLERANCE)


# ---- state -------------------------------------------------------------------------------------


def parameters_of_root(rank: int, world_size: int) -> None:
    with horovod() as hvd:
        root = world_size - 1

        def mine(r: int) -> dict[str, Any]:
            return {
                "weight": torch.full((3, 2), float(r)),
                "half": torch.full((5,), r, dtype=torch.bfloat16),
                "steps": torch.tensor(r),
                "flags": torch.tensor([r == root, True]),
                "empty": torch.empty(0),
                "_extra_state": {"rank": r},
            }

        values = mine(rank)
        values["turned"] = torch.full((2, 3), float(rank)).t()
        kept = dict(values)
        hvd.broadcast_parameters(values, root_rank=root)
        for name, value in mine(root).items():
            if torch.is_tensor(value):
                same(values[name], value)
                assert values[name] is kept[name]
        assert values["_extra_state"] == {"rank": root}
        same(values["turned"], torch.full((3, 2), float(root)))
        norm = nn.BatchNorm1d(3)
        norm.num_batches_tracked += rank
        hvd.broadcast_parameters(norm.state_dict(), root)
        assert norm.num_batches_tracked.item() == root
        for form in (list, lambda named: [p for _, p in named]):
            linear = nn.Linear(2, 2)
            nn.init.constant_(linear.weight, rank)
            hvd.broadcast_parameters(form(linear.named_parameters()), root)
            same(linear.weight.detach(), torch.full((2, 2), float(root)))
        assert "model.state_dict()" in raised(hvd.broadcast_parameters, norm.parameters(), 0)[1]
        assert "broadcast_object" in raised(hvd.broadcast_parameters, [("x", 1)], 0)[1]


def optimizer_states_of_root(rank: int, world_size: int, cases: list[tuple[str, str]]) -> None:
    """Fresh on some ranks, with state on others: afterwards as the root's."""
    with horovod() as hvd:
        for kind, has_state in cases:
            try:
                _optimizer_state_of_root(hvd, rank, kind, has_state)
            except Exception as error:
                raise AssertionError(f"{kind}, {has_state}: {error}") from error
        lbfgs = torch.optim.LBFGS(_model().parameters())
        assert "load_state_dict" in raised(hvd.broadcast_optimizer_state, lbfgs, 0)[1]


def _optimizer_state_of_root(hvd: Any, rank: int, kind: str, has_state: str) -> None:
    root = 1

    def made(r: int) -> tuple[nn.Module, Any]:
        model = _model()
        options = {"lr": 0.01 * (r + 1), "weight_decay": 0.1 * r}
        optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
        if kind == "SGD":
            optimizer.param_groups[0]["momentum"] = 0.9
        if has_state == "all" or (has_state == "root") is (r == root):
            for _ in range(r + 1):
                optimizer.zero_grad()
                model(_batch(r, 1)).square().mean().backward()
                optimizer.step()
        return model, optimizer

    model, inner = made(rank)
    before = _weights(model)
    optimizer = hvd.DistributedOptimizer(inner) if rank != 2 else inner
    optimizer.zero_grad()
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    same(_weights(model), before)
    expected = made(root)[1].state_dict()
    same(optimizer.state_dict()["state"], expected["state"])
    assert optimizer.state_dict()["param_groups"] == expected["param_groups"]
