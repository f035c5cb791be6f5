# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models without data, and the values that they get (specification, 6.5). Eager torch decides."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import smdistributed.modelparallel.torch as smp
from smdistributed.modelparallel.torch.delayed_initialization import (
    has_delayed,
    materialise,
    sources,
)
from smdistributed.modelparallel.torch.delayed_initialization.recording import Recorder

pytestmark = pytest.mark.usefixtures("alone")


def of_torch() -> nn.Module:
    """Constructors as they are; encoder layers are copies of the first."""
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.LSTM(4, 5),  # keeps weak references
        nn.Embedding(7, 3, padding_idx=2),
        nn.TransformerEncoder(layer, 3),
        nn.MultiheadAttention(8, 2),
        nn.PReLU(),
        parametrizations.orthogonal(nn.Linear(4, 3)),
        parametrizations.weight_norm(nn.Linear(4, 3)),
        parametrizations.spectral_norm(nn.Linear(4, 3)),
    )
    model[0].weight.requires_grad_(False)
    return model


def init_functions() -> nn.Module:
    """All of torch.nn.init, on one parameter each; several of them look at values."""
    found = nn.ParameterDict()
    for name, arguments in (
        ("uniform_", (-1.0, 2.0)),
        ("normal_", (0.5, 2.0)),
        ("trunc_normal_", (0.0, 1.0, -0.5, 0.5)),
        ("constant_", (3.0,)),
        ("ones_", ()),
        ("zeros_", ()),
        ("eye_", ()),
        ("xavier_uniform_", ()),
        ("xavier_normal_", ()),
        ("kaiming_uniform_", ()),
        ("kaiming_normal_", ()),
        ("orthogonal_", ()),
        ("sparse_", (0.3,)),
    ):
        found[name] = nn.Parameter(torch.empty(6, 9))
        getattr(nn.init, name)(found[name], *arguments)
    found["dirac_"] = nn.Parameter(torch.empty(4, 4, 3))
    nn.init.dirac_(found["dirac_"])
    return found


class Odd(nn.Module):
    """What constructors do besides: values that depend on values, views, copies, ties."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = nn.Parameter(torch.randn(4, 5) * 0.02)
        self.steps = nn.Parameter(torch.arange(4) / 3)
        self.late = nn.Parameter(torch.empty(5, 5))
        nn.init.normal_(self.late)
        self.late.data[3] = self.scaled.data[0, 0]
        with torch.no_grad():
            self.late[:, 0] += torch.arange(5.0)
            self.late.mul_(self.scaled.norm())
        if self.late.sum() > 0:
            self.positive = nn.Parameter(torch.rand(3))
        else:
            self.negative = nn.Parameter(torch.rand(4))
        self.rates = torch.linspace(0, self.late.max().item(), 4).tolist()
        self.numbers = self.late.detach().numpy().sum()
        self.device_seen = self.late.device
        table = torch.zeros(8, 6)
        place = torch.arange(8).unsqueeze(1)
        table[:, 0::2] = torch.sin(place * torch.exp(torch.arange(0, 6, 2) * -0.3))
        self.register_buffer("table", table)
        self.learned_table = nn.Parameter(table.clone())
        self.register_buffer("average", self.late.data.clone())
        self.beside = self.late.detach() * 2
        self.tied = self.scaled
        self.same_memory = nn.Parameter(self.scaled.data)
        self.copied = copy.deepcopy(self.late)
        self.copied.untyped_storage()  # as who looks for shared memory does
        self.half = nn.Linear(3, 3, dtype=torch.bfloat16)
        self.own_generator = nn.Parameter(torch.rand(4, generator=torch.Generator().manual_seed(5)))
        self.padded = nn.Parameter(torch.ones(3))
        self.padded.data = nn.functional.pad(self.padded.data, (0, 2))
        self.cast = nn.Parameter(self.late.detach().to(torch.float16))
        self.apply(self._init)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            module.bias.data.zero_()


class Foreign(nn.Module):
    """Values that no operation of torch has made: they are right, and stay in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.numpy = nn.Parameter(torch.from_numpy(torch.rand(5).numpy() * 2))
        filled = torch.empty(4)
        filled.numpy()[:] = 7
        self.filled = nn.Parameter(filled)
        shared = torch.randn(9, 3)
        self.upper = nn.Parameter(shared[:3])
        self.lower = nn.Parameter(shared[3:])
        self.given = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.delayed = nn.Parameter(torch.rand(3))
        with torch.no_grad():
            self.delayed.copy_(torch.tensor([3.0, 4.0, 5.0]))


def pair(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    """Eager and delayed, from one seed; random numbers go on alike."""
    torch.manual_seed(3)
    eager = make()
    after = torch.rand(3)
    torch.manual_seed(3)
    with smp.delay_param_initialization():
        delayed = make()
    assert torch.equal(torch.rand(3), after)
    return eager, delayed


def assert_same(one: nn.Module, other: nn.Module) -> None:
    expected = one.state_dict()
    found = other.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].stride() == value.stride(), name
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("make", [of_torch, init_functions, Odd])
def test_values_are_those_of_eager_initialisation(make: Callable[[], nn.Module]) -> None:
    eager, model = pair(make)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    before = list(model.parameters())
    state = torch.get_rng_state()
    smp.init({})
    wrapped = smp.DistributedModel(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(a is b for a, b in zip(wrapped.parameters(), before, strict=True))
    assert [p.requires_grad for p in before] == [p.requires_grad for p in eager.parameters()]
    assert_same(eager, model)
    assert not sources._of_delayed, "nothing is kept of what is done"


def test_what_is_beside_parameters_is_right_too() -> None:
    eager, model = pair(Odd)
    assert isinstance(eager, Odd)
    assert isinstance(model, Odd)
    assert model.rates == eager.rates
    assert model.numbers == eager.numbers
    assert model.device_seen == torch.device("cpu")
    materialise(model)
    assert torch.equal(model.beside, eager.beside)
    assert model.tied is model.scaled
    assert model.same_memory.data_ptr() == model.scaled.data_ptr()


def test_values_from_elsewhere_stay() -> None:
    eager, model = pair(Foreign)
    real = {name for name, parameter in model.named_parameters() if not parameter.is_meta}
    assert real == {"numpy", "filled", "upper", "lower", "given"}
    materialise(model)
    assert_same(eager, model)


def test_large_values_from_elsewhere_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with smp.delay_param_initialization():
        module = nn.Module()
        module.weight = nn.Parameter(torch.from_numpy(torch.zeros(300_000).numpy()))
    assert "1 parameters (1.2 MB), as weight of a Module" in caplog.text
    assert "compute them with torch" in caplog.text


def test_nested_blocks_and_decorators() -> None:
    @smp.delay_param_initialization()
    def make() -> nn.Module:
        inner = nn.Linear(2, 2)
        with smp.delay_param_initialization(enabled=False):
            real = nn.Linear(2, 2)
            nn.init.ones_(inner.weight)
        with smp.delay_param_initialization():
            return nn.Sequential(inner, real, nn.Linear(2, 2))

    for _ in range(2):
        torch.manual_seed(0)
        model = make()
        assert [part.weight.is_meta for part in model] == [True, False, True]
        materialise(model)
        assert torch.equal(model[0].weight, torch.ones(2, 2))
    assert not nn.Linear(2, 2).weight.is_meta
    with pytest.raises(KeyError), smp.delay_param_initialization():
        raise KeyError
    assert not nn.Linear(2, 2).weight.is_meta


def test_changes_between() -> None:
    """In a block they count; elsewhere they cannot, which is told where it can be seen."""
    with smp.delay_param_initialization():
        model = nn.Linear(2, 2)
    with smp.delay_param_initialization():
        nn.init.constant_(model.weight, 5.0)
    nn.init.constant_(model.bias, 5.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        materialise(model)
    (message,) = [str(each.message) for each in told]
    assert message.startswith("bias was changed after the block")
    assert "register_post_partition_hook" in message
    assert torch.equal(model.weight, torch.full((2, 2), 5.0))
    assert not (model.bias == 5.0).any()


def test_what_nothing_is_known_of() -> None:
    smp.init({})
    with smp.delay_param_initialization():
        made = nn.Linear(2, 2)
    for model in (nn.Linear(2, 2, device="meta"), copy.deepcopy(made)):
        with pytest.raises(
            ValueError, match=r"weight is on the meta device.*Make the module there"
        ):
            smp.DistributedModel(model)


def test_hooks_and_attributes_of_parameters_survive() -> None:
    with smp.delay_param_initialization():
        model = nn.Linear(2, 1)
    model.weight.decays = False  # type: ignore[assignment]
    model.weight.register_hook(lambda gradient: gradient * 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    smp.init({})
    smp.DistributedModel(model)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight, before - 3)
    assert model.weight.decays is False


def test_dtypes_before_placement() -> None:
    eager, model = pair(lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    smp.init({"bf16": True})
    wrapped = smp.DistributedModel(model)
    assert model[0].weight.dtype is torch.bfloat16
    assert torch.equal(model[0].weight, eager[0].weight.bfloat16())
    assert wrapped.partitioned


def test_model_creation() -> None:
    torch.manual_seed(1)
    eager = nn.Linear(3, 2, dtype=torch.float64)
    torch.manual_seed(1)
    with smp.model_creation(
        tensor_parallelism=True, dtype=torch.float64, fused_softmax=False, zero_init=False
    ):
        model = nn.Linear(3, 2)
        assert torch.get_default_dtype() is torch.float64
    assert torch.get_default_dtype() is torch.float32
    materialise(model)
    assert torch.get_default_dtype() is torch.float32
    assert_same(eager, model)
    with pytest.raises(KeyError), smp.model_creation(dtype=torch.float16):
        raise KeyError
    assert torch.get_default_dtype() is torch.float32

    @smp.model_creation(dtype=torch.bfloat16)
    def make() -> nn.Module:
        return nn.Linear(2, 2)

    assert has_delayed(make())
    assert make().weight.dtype is torch.bfloat16
    with (
        pytest.raises(TypeError, match=r"got fused_hardmax; .*fused_softmax.*Correct the name"),
        smp.model_creation(fused_hardmax=True),
    ):
        pass


def test_a_whole_run() -> None:
    smp.init({"delayed_parameter_initialization": True})
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    assert has_delayed(model)
    smp.DistributedModel(model)
    assert not has_delayed(model)
    assert not has_delayed(nn.Linear(3, 2))
    torch.manual_seed(0)
    assert_same(nn.Linear(3, 2), model)
    smp.reset()
    smp.init({"delayed_parameter_initialization": True})
    smp.reset()
    assert not nn.Linear(3, 2).weight.is_meta


def test_states_before_placement() -> None:
    eager, model = pair(lambda: nn.Linear(3, 2))
    smp.init({"pipeline_parallel_degree": 1})
    with smp.delay_param_initialization():
        wrapped = smp.DistributedModel(model)  # placed at once, in the block too
        assert torch.equal(wrapped(torch.ones(1, 3)), eager(torch.ones(1, 3)))
    assert_same(eager, model)


def test_memory_is_that_of_one_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20 layers; the recorder holds the values of one at a time."""
    held: list[int] = []
    plain = Recorder._run_for_real

    def watched(self: Recorder, *args: object) -> object:
        result = plain(self, *args)  # type: ignore[arg-type]
        held.append(sum(storage.nbytes() for storage in self._hot.values()))
        return result

    monkeypatch.setattr(Recorder, "_run_for_real", watched)
    with smp.delay_param_initialization():
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
    assert max(held) == 64 * 64 * 4
    assert sum(_nbytes(parameter) for parameter in model.parameters()) == 0


def _nbytes(tensor: Tensor) -> int:
    return 0 if tensor.is_meta else tensor.untyped_storage().nbytes()
