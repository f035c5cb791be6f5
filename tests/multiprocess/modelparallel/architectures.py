# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Small models of many shapes, each with inputs and a loss: what a partition must not change.

    architecture = ARCHITECTURES["gpt"]
    model = architecture.make()
    inputs = architecture.inputs(8, generator, step=0)   # tensors cut along their first axis
    output, loss = architecture.run(model, inputs)

`run` is what a user's step function does before `model.backward(loss)`. Losses are means over the
batch, of outputs that do not depend on what else is in the batch, unless `is_batchwise` says so.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["ARCHITECTURES", "Architecture"]

WIDTH = 16
WORDS = 29

Inputs = tuple[Any, ...]


def _mean_square(output: Any, inputs: Inputs) -> Tensor:
    """For outputs that are one tensor."""
    weights = torch.linspace(0.5, 1.5, output[0].numel()).reshape(output[0].shape)
    return (output.float() * weights).pow(2).mean()


def _call(model: Any, inputs: Inputs) -> Any:
    return model(*inputs)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A model, its inputs, its loss.

    Attributes:
        make: the model; the caller seeds.
        make_inputs: for a batch size, a generator and the number of the step: sizes may change from
            step to step.
        loss: of the model's output and the inputs.
        call: what of the model the step calls.
        together: names of modules that must be on one partition, as one uses what the other holds.
        is_batchwise: results depend on what else is in a microbatch.
        modes: what the step's body is wrapped in.
    """

    make: Callable[[], nn.Module]
    make_inputs: Callable[[int, Generator, int], Inputs]
    loss: Callable[[Any, Inputs], Tensor] = _mean_square
    call: Callable[[Any, Inputs], Any] = _call
    together: tuple[tuple[str, ...], ...] = ()
    is_batchwise: bool = False
    modes: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def run(self, model: Any, inputs: Inputs) -> tuple[Any, Tensor]:
        """What the model returns, and the loss."""
        with self.modes():
            output = self.call(model, inputs)
            return output, self.loss(output, inputs)


ARCHITECTURES: dict[str, Architecture] = {}


def _add(name: str, *args: Any, **kwargs: Any) -> None:
    ARCHITECTURES[name] = Architecture(*args, **kwargs)


# --- inputs ---------------------------------------------------------------------------------------


def _rows(batch: int, generator: Generator, step: int) -> Inputs:
    return (torch.randn(batch, WIDTH, generator=generator),)


def _images(batch: int, generator: Generator, step: int) -> Inputs:
    size = 8 + 4 * (step % 2)
    return (torch.randn(batch, 3, size, size, generator=generator),)


def _words(batch: int, generator: Generator, step: int) -> Inputs:
    return (torch.randint(0, WORDS, (batch, 5 + step), generator=generator),)


def _sequences(batch: int, generator: Generator, step: int) -> Inputs:
    return (torch.randn(batch, 4 + step, WIDTH, generator=generator),)


def _next_word_loss(logits: Tensor, inputs: Inputs) -> Tensor:
    words = inputs[0]
    return functional.cross_entropy(
        logits[:, :-1].reshape(-1, logits.shape[-1]).float(), words[:, 1:].reshape(-1)
    )


# --- chains ---------------------------------------------------------------------------------------


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


_add("mlp", _mlp, _rows)


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


_add("cnn_batchnorm", _cnn, _images, is_batchwise=True)


# --- skips ----------------------------------------------------------------------------------------


class ResidualBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample: nn.Module | None = None
        if inner != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += skip
        result: Tensor = self.relu(out)
        return result


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(True))
        self.layer1 = nn.Sequential(ResidualBlock(6, 6, 1), ResidualBlock(6, 6, 1))
        self.layer2 = nn.Sequential(ResidualBlock(6, 8, 2), ResidualBlock(8, 8, 1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        result: Tensor = self.head(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))
        return result


_add("resnet", ResNet, _images, is_batchwise=True)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(3, 4, 3, padding=1)
        self.down2 = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.merge2 = nn.Conv2d(12, 6, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.merge1 = nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = torch.relu(self.down1(x))
        skip2 = torch.relu(self.down2(skip1))
        x = torch.tanh(self.bottom(skip2))
        x = self.merge2(torch.cat([self.up2(x), skip2], 1))
        x = self.merge1(torch.cat([self.up1(torch.relu(x)), skip1], dim=1))
        result: Tensor = self.head(x)
        return result


_add("unet", UNet, _images)


# --- transformers ---------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        source = x if memory is None else memory

        def split(t: Tensor) -> Tensor:
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(source)), split(self.value(source))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], -1e4)
        if causal:
            upper = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(upper, -1e4)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        result: Tensor = self.out(mixed)
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), causal=True)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class GPT(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(16, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(self.norm(x))
        return result


_add("gpt", GPT, _words, _next_word_loss)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        hidden = self.norm1(hidden + self.attention(hidden, mask=attention_mask))
        return (self.norm2(hidden + functional.gelu(self.dense(hidden))),)


class Bert(nn.Module):
    """Dict outputs, a mask, and a pooled output that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.layers = nn.ModuleList(BertLayer() for _ in range(3))
        self.pooler = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(
        self, words: Tensor, attention_mask: Tensor, kinds: Tensor | None = None
    ) -> dict[str, Any]:
        hidden = self.words(words)
        if kinds is not None:
            hidden = hidden + self.kinds(kinds)
        states = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=attention_mask)[0]
            states.append(hidden)
        return {
            "logits": self.head(hidden),
            "pooled": self.pooler(hidden[:, 0]),
            "states": tuple(states),
            "attentions": None,
        }


def _masked_words(batch: int, generator: Generator, step: int) -> Inputs:
    (words,) = _words(batch, generator, step)
    mask = torch.arange(words.shape[1]) < 3 + torch.arange(batch)[:, None] % 3
    return words, mask, torch.randint(0, 2, words.shape, generator=generator)


_add("bert", Bert, _masked_words, lambda out, inputs: _next_word_loss(out["logits"], inputs))


class T5Layer(nn.Module):
    def __init__(self, is_decoder: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.cross = Attention() if is_decoder else None
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, bias: Tensor, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        is_decoder = self.cross is not None
        x = x + self.attention(self.norm(x), bias=bias, causal=is_decoder)
        if self.cross is not None:
            x = x + self.cross(x, memory=memory)
        return x + torch.relu(self.dense(x)), bias


class T5Stack(nn.Module):
    """Gets the embedding from its parent; its first layer's bias goes to all layers."""

    def __init__(self, words: nn.Embedding, is_decoder: bool) -> None:
        super().__init__()
        self.words = words
        self.relative = nn.Embedding(32, 2)
        self.layers = nn.ModuleList(T5Layer(is_decoder) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor, memory: Tensor | None = None) -> Tensor:
        x = self.words(words)
        places = torch.arange(words.shape[1])
        bias = self.relative((places[:, None] - places[None]) % 32).permute(2, 0, 1)[None]
        for layer in self.layers:
            x, bias = layer(x, bias, memory)
        result: Tensor = self.norm(x)
        return result


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder = T5Stack(self.shared, False)
        self.decoder = T5Stack(self.shared, True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.encoder(source)
        result: Tensor = self.head(self.decoder(target, memory=memory))
        return result


def _pairs(batch: int, generator: Generator, step: int) -> Inputs:
    return (*_words(batch, generator, step), *_words(batch, generator, step + 1))


_add("t5", T5, _pairs, lambda out, inputs: _next_word_loss(out, inputs[1:]))


class EncoderModel(nn.Module):
    """torch's own layers, which read their children's parameters themselves in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.encoder(x))
        return result


_add(
    "torch_transformer",
    EncoderModel,
    _sequences,
    together=tuple(
        tuple(
            f"encoder.layers.{n}{part}"
            for part in (
                *("", ".self_attn", ".self_attn.out_proj", ".linear1", ".linear2"),
                *(".norm1", ".norm2", ".dropout", ".dropout1", ".dropout2"),
            )
        )
        for n in range(3)
    ),
)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=16,
        n_embd=WIDTH,
        n_layer=3,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def _call_labelled(model: Any, inputs: Inputs) -> Any:
    return model(input_ids=inputs[0], attention_mask=torch.ones_like(inputs[0]), labels=inputs[0])


_add(
    "hf_gpt2",
    _gpt2,
    _words,
    lambda output, inputs: output.loss + 0.0 * output["logits"].mean(),
    _call_labelled,
)


# --- states, reuse, nesting -----------------------------------------------------------------------


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first = nn.LSTM(WIDTH, 12, batch_first=True)
        self.second = nn.LSTM(12, 12, num_layers=2, batch_first=True)
        self.cell = nn.LSTMCell(12, 12)
        self.head = nn.Linear(12, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x, (h, c) = self.first(self.words(words))
        x, _ = self.second(x, (h.repeat(2, 1, 1), c.repeat(2, 1, 1)))
        state = h[0], c[0]
        rows = []
        for row in x.unbind(1):
            state = self.cell(row, state)
            rows.append(state[0])
        result: Tensor = self.head(torch.stack(rows, 1))
        return result


_add("lstm", LSTM, _words, _next_word_loss)


class Twice(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.shared(torch.tanh(self.own(self.shared(x))))
        return result


class Reuse(nn.Module):
    """One block called twice by each of two parents, and by the root."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
        self.left = Twice(shared)
        self.right = Twice(shared)
        self.again = shared

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.again(self.right(self.left(x)) + x)
        return result


_add("reuse", Reuse, _rows)


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def stage() -> nn.Module:
            return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.GELU(), nn.Identity()))

        self.stages = nn.ModuleList(
            nn.ModuleDict({"main": nn.Sequential(stage(), stage()), "side": stage()})
            for _ in range(3)
        )
        self.scale = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for stage, scale in zip(self.stages, self.scale, strict=True):
            assert isinstance(stage, nn.ModuleDict)
            x = stage["main"](x) * scale + stage["side"](x)
        return x


# The root runs on the first partition, and reads what the list holds.
_add("nested", Nested, _rows, together=(("", "scale"),))


class Chosen(nn.Module):
    """Which experts run, and how often, depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner = Repeated()
        self.never = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if float(self.gate(x).sum()) > 0:
            x = torch.tanh(self.experts[0](x))
        else:
            x = torch.tanh(self.experts[2](self.experts[1](x)))
        result: Tensor = self.inner(x)
        return result


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int(x.abs().sum() * 10) % 3):
            x = torch.tanh(self.step(x))
        result: Tensor = self.last(x)
        return result


_add("control_flow", Chosen, _rows, is_batchwise=True)


class Branches(nn.Module):
    """Parallel branches, some deep and some shallow, as in Inception."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(n)))
            for n in (1, 2, 3, 1)
        )
        self.head = nn.Linear(4 * WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        result: Tensor = self.head(torch.cat([branch(x) for branch in self.branches], dim=-1))
        return result


_add("branches", Branches, _rows)


class Experts(nn.Module):
    """Each row goes to the expert that a router on some rank chooses; an expert may get none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chosen, weight = self.router(x)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            result[rows] = expert(x[rows]) * weight[rows]
        return result[chosen.argsort(stable=True)]


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        top = self.gate(x).softmax(-1).max(-1)
        return top.indices, top.values[:, None]


_add("experts", Experts, _rows, is_batchwise=True)


# --- what goes in and comes out -------------------------------------------------------------------


class BorrowedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(self.norm(x), weight)


class Borrowing(nn.Module):
    """A parameter is an argument of another module's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = BorrowedHead()

    def forward(self, words: Tensor) -> Tensor:
        x = torch.tanh(self.middle(self.words(words)))
        result: Tensor = self.head(x, self.words.weight)
        return result


_add("parameter_argument", Borrowing, _words, _next_word_loss, together=(("", "words"),))


@dataclasses.dataclass
class State:
    hidden: Tensor
    history: tuple[Tensor, ...] = ()
    note: str = "none"
    mask: Tensor | None = None


class Pair(NamedTuple):
    state: State
    extra: dict[str, Any]


class Packing(nn.Module):
    """Dataclasses, named tuples, dicts and None, in and out."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(self, pair: Pair, *, scale: float = 1.0, ignored: Any = None) -> Pair:
        state, extra = pair
        hidden = torch.tanh(self.dense(state.hidden)) * scale
        if state.mask is not None:
            hidden = hidden * state.mask
        new = State(hidden, (*state.history, state.hidden), f"after {self.number}", state.mask)
        return Pair(new, {**extra, f"mean {self.number}": hidden.mean(-1), "none": None})


class Packer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Packing(number) for number in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pair:
        pair = Pair(State(x, mask=mask), {"ids": torch.arange(len(x))})
        for number, layer in enumerate(self.layers):
            pair = layer(pair, scale=1.0 + number, ignored=[None, {"a": 1}])
        return pair


def _rows_and_mask(batch: int, generator: Generator, step: int) -> Inputs:
    return (*_rows(batch, generator, step), torch.rand(batch, 1, generator=generator) > 0.2)


def _packed_loss(pair: Pair, inputs: Inputs) -> Tensor:
    assert pair.state.note == "after 3"
    return (
        _mean_square(pair.state.hidden, inputs)
        + pair.state.history[2].mean()
        + pair.extra["mean 1"].pow(2).mean()
    )


_add("packed_arguments", Packer, _rows_and_mask, _packed_loss)


class Wasteful(nn.Module):
    """Arguments, results, calls and modules that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = TwoWays()
        self.second = TwoWays()
        self.ignored = nn.Linear(WIDTH, WIDTH)
        self.uncalled = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        left, right = self.first(x, y)
        self.ignored(right)
        one, two = self.second(left, right)
        return one, two.detach()


class TwoWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)
        self.uncalled = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, unused: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.left(x)), self.right(x)


def _two_rows(batch: int, generator: Generator, step: int) -> Inputs:
    return (*_rows(batch, generator, step), *_rows(batch, generator, step))


_add("unused", Wasteful, _two_rows, lambda out, inputs: _mean_square(out[0], inputs))


class Aliases(nn.Module):
    """Results that are views, twice the same tensor, or the argument itself."""

    def __init__(self) -> None:
        super().__init__()
        self.split = Splits()
        self.same = Same()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right, whole = self.split(x)
        first, second, again = self.same(whole, left)
        result: Tensor = self.head(torch.cat([left, right], -1) + first * second) + again.mean()
        return result


class Splits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = self.dense(x)
        left, right = whole.chunk(2, -1)
        return left, right, whole.t().contiguous().t()


class Same(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.7))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x2 = x * self.scale
        return x2, x2, y


_add("aliases", Aliases, _rows)


class InPlace(nn.Module):
    """Results of modules are changed in place, whole and in part."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = Changing()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h += 1
        h.tanh_()
        g = self.second(h)
        g[:, 0] = 0.5
        g[:, 1:3].mul_(2)
        result: Tensor = self.third(g * 1)
        return result


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2)
        x[:, 3] += 1
        result: Tensor = self.dense(x)
        return result


_add("in_place", InPlace, _rows)


class Cache:
    """No container: what it holds is in attributes."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.is_filled = False


class Layer:
    """Of a cache; with slots."""

    __slots__ = ("keys", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.keys: list[Tensor] = []


class Cached(nn.Module):
    """A cache goes through the layers, as in generation; each adds to it and looks at all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CachedLayer(number) for number in range(3))

    def forward(self, x: Tensor) -> Tensor:
        cache = Cache()
        for _ in range(2):
            for layer in self.layers:
                x, returned = layer(x, cache=cache)
                assert returned is cache
        assert cache.is_filled
        assert [layer.number for layer in cache.layers] == [0, 1, 2]
        total: Tensor = sum((k for layer in cache.layers for k in layer.keys), start=x)
        return total


class CachedLayer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        if len(cache.layers) <= self.number:
            cache.layers.append(Layer(self.number))
        keys = cache.layers[self.number].keys
        keys.append(torch.tanh(self.dense(x)))
        cache.is_filled = self.number == 2
        seen = torch.stack([each for layer in cache.layers for each in layer.keys])
        return torch.sigmoid(seen.sum(0)), cache


_add("cache", Cached, _rows)


class Boxes(nn.Module):
    """Arguments are changed: containers of all kinds, and tensors in place and used afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.fill = Filling()
        self.halve = Halving()
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        inner: list[Tensor] = [h]
        box: dict[str, Any] = {"inner": inner, "gone": 1, "last": collections.deque([1, 2], 2)}
        seen = {"a"}
        before = h * 1
        self.halve(before)
        result, same = self.fill(before, box, seen)
        assert same is box
        assert "gone" not in box
        assert seen == {"a", "b"}
        assert box["inner"] is inner
        assert list(box["last"]) == [2, 3]
        whole: Tensor = self.last(result) * len(inner) + before + box["new"][0] * inner[1]
        return whole


class Filling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, box: dict[str, Any], seen: set[str]
    ) -> tuple[Tensor, dict[str, Any]]:
        y = torch.tanh(self.dense(x))
        box["inner"].append(y * x)
        box["new"] = (y * 2, None)
        del box["gone"]
        box["last"].append(3)
        seen.add("b")
        return y, box


class Halving(nn.Module):
    """Changes its argument, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.scale)


_add("changed_arguments", Boxes, _rows)


class Ordered(collections.OrderedDict[str, Tensor]):
    """With attributes that are set in another order than that of their names."""

    def __init__(self, x: Tensor) -> None:
        super().__init__(a=x, b=x * 2)
        self.second: list[Tensor] = []
        self.first: list[Tensor] = []


class Orders(nn.Module):
    """What is changed is told by number: both ranks must come to it in the same order."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Linear(WIDTH, WIDTH)
        self.far = Ordering()
        self.local = Noting()

    def forward(self, x: Tensor) -> Tensor:
        h = self.near(x)
        ordered = Ordered(h)
        y, twice = self.far(h, ordered)
        assert list(ordered) == ["b", "a"]
        assert (len(ordered.first), len(ordered.second)) == (1, 0)
        assert twice[0] is twice[1]
        noted: list[Tensor] = [h]
        z = self.local(self.far(y, Ordered(y))[0], noted)
        assert len(noted) == 2
        result: Tensor = z + ordered.first[0] + noted[1]
        return result


class Ordering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, ordered: Ordered) -> tuple[Tensor, list[list[Tensor]]]:
        y = torch.tanh(self.dense(x))
        ordered.move_to_end("a")
        ordered.first.append(y)
        return y, [ordered.second, ordered.second]


class Noting(nn.Module):
    """Without parameters: it runs where it is called, on what may be on its way."""

    def forward(self, x: Tensor, noted: list[Tensor]) -> Tensor:
        noted.append(x * 0.5)
        return x


_add("orders", Orders, _rows)


class Holder:
    """No container, and not told apart by what it holds."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Kinds(nn.Module):
    """Results without a tensor, and with tensors where nobody looks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.parts = nn.ModuleDict(
            {kind: Kind(kind) for kind in ("none", "number", "text", "size", "empty", "holder")}
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        found = {kind: part(h) for kind, part in self.parts.items()}
        assert found["none"] is None
        assert found["text"] == "text"
        assert found["empty"] == ({}, [])
        assert found["size"] == h.shape
        result: Tensor = h * found["number"] + self.parts["holder"](found["holder"]).tensor
        return result


class Kind(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.7))

    def forward(self, x: Any) -> Any:
        if self.kind == "holder":
            return Holder((x.tensor if isinstance(x, Holder) else x) * self.scale)
        return {
            "none": None,
            "number": x.shape[-1] / 2,
            "text": "text",
            "size": x.shape,
            "empty": ({}, []),
        }[self.kind]


_add("results_of_all_kinds", Kinds, _rows)


# --- what autograd can be told --------------------------------------------------------------------


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)
        self.words.requires_grad_(False)
        self.body[0].requires_grad_(False)
        self.body[2].requires_grad_(False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.body:
            x = torch.tanh(layer(x))
        result: Tensor = self.head(x)
        return result


_add("frozen", Frozen, _words, _next_word_loss)


class Checkpointed(nn.Module):
    """Recomputes: within modules, and around modules."""

    def __init__(self, is_reentrant: bool, is_around: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            Block() if is_around else Recomputing(is_reentrant) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, 4)
        self.is_reentrant = is_reentrant
        self.is_around = is_around

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if self.is_around:
                x = checkpoint(self._more, block, x, use_reentrant=self.is_reentrant)
            else:
                x = block(x)
        result: Tensor = self.head(x)
        return result

    @staticmethod
    def _more(block: nn.Module, x: Tensor) -> Tensor:
        return torch.tanh(block(x)) * torch.sigmoid(x)


class Recomputing(nn.Module):
    def __init__(self, is_reentrant: bool) -> None:
        super().__init__()
        self.block = Block()
        self.is_reentrant = is_reentrant

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.block, x, use_reentrant=self.is_reentrant)
        return result


for _around in (False, True):
    for _reentrant in (False, True):
        _name = f"checkpoint_{'around' if _around else 'inside'}" + "_reentrant" * _reentrant
        _add(_name, lambda a=_around, r=_reentrant: Checkpointed(r, a), _sequences)


def _autocast() -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


_add("autocast", lambda: GPT(3), _words, _next_word_loss, modes=_autocast)


class PartlyCast(nn.Module):
    """Autocast on and off within a forward, and another dtype by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        with torch.autocast("cpu", torch.bfloat16):
            x = self.layers[1](x)
            with torch.autocast("cpu", enabled=False):
                x = self.layers[2](x.float())
            x = self.layers[3](x)
        result: Tensor = self.wide(x.double())
        return result


_add("dtypes", PartlyCast, _rows)


class Cube(Function):
    """A user's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result: Tensor = 3 * x**2 * gradients[0]
        return result


class Custom(nn.Module):
    """A user's autograd function, hooks on tensors, gradients of inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = Cube.apply(self.first(x))  # type: ignore[no-untyped-call]
        x = self.second(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: 2 * gradient)
        result: Tensor = self.third(x)
        return result


_add("custom_function", Custom, _rows)


class Distilled(nn.Module):
    """A teacher without gradients, beside a student."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.student = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.bridge = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            wanted = self.teacher(x)
            wanted = self.bridge(wanted) + 1
        with torch.no_grad():
            wanted = wanted.clone() + self.bridge(x)
        for layer in self.student:
            x = torch.tanh(layer(x))
        return self.bridge(x) - wanted.clone()


_add("teacher", Distilled, _rows)


class Counting(nn.Module):
    """Buffers that are replaced by new tensors, and a hook on a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Counted() for _ in range(4))
        for layer in self.layers:
            layer.register_forward_hook(lambda module, args, output: output * 1.5)
            layer.register_full_backward_hook(
                lambda module, inputs, outputs: (
                    inputs[0] * 0.5 if inputs[0] is not None else None,
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Counted(nn.Module):
    calls: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dense(x)
        mean = result.detach().mean(0).clone()
        # From here to the end nothing is waited for: others may come by while something is.
        if self.training:
            self.calls = self.calls + 1
            self.mean = 0.9 * self.mean + 0.1 * mean
        return result + self.calls * 0.1


_add("buffers_and_hooks", Counting, _rows, is_batchwise=True)


class Auxiliary(nn.Module):
    """Returns more while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Forked()
        self.second = Forked()

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return self.second(self.first(x))
        x, first = self.first(x)
        x, second = self.second(x)
        return x + first + second


class Forked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Linear(WIDTH, WIDTH)
        self.side = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        main = torch.tanh(self.main(x))
        return (main, self.side(main)) if self.training else main


_add("auxiliary_output", Auxiliary, _rows)


@contextlib.contextmanager
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Wide(nn.Module):
    """Makes tensors of the default dtype; one of its modules has no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.noise = Ramp()
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.noise(self.first(x)))
        return result


class Ramp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linspace(0, 1, x.shape[-1]).to(x.dtype)


_add(
    "default_dtype",
    lambda: Wide().double(),
    lambda b, g, s: (_rows(b, g, s)[0].double(),),
    modes=_double,
)
