# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Noting what is done to tensors in a block."""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.torch.delayed_initialization.disguise import Disguise, Past
from smdistributed.modelparallel.torch.delayed_initialization.sources import (
    Note,
    Source,
    View,
    delayed_like,
    drop_expired,
    forget,
    forget_real,
    is_delayed,
    numbers,
    plainly,
    source_of,
    tensors_in,
    track,
    view_of,
)
from smdistributed.modelparallel.torch.delayed_initialization.values import (
    Values,
    computed,
    mark_unchanged,
    replace_data,
)

__all__ = [
    "has_delayed",
    "noting_changes",
    "record_until_wrapped",
    "recording",
    "stop_recording",
]

_aten: Any = torch.ops.aten

# They set every element of their first argument, whatever was in it.
_FILLS = (
    _aten.uniform_.default,
    _aten.normal_.default,
    _aten.fill_.Scalar,
    _aten.fill_.Tensor,
    _aten.zero_.default,
    _aten.copy_.default,
)

# Of a delayed tensor they give another delayed one: copies of modules need no memory either.
_COPIES = (_aten.clone.default, _aten._to_copy.default)

# They take a shape from a tensor, and no values.
_SHAPES = (
    *(_aten.empty_like, _aten.zeros_like, _aten.ones_like, _aten.full_like),
    *(_aten.rand_like, _aten.randn_like, _aten.new_empty, _aten.new_empty_strided),
    *(_aten.new_zeros, _aten.new_ones, _aten.new_full),
)

# So many elements of a tensor without a source are copied into a note.
_SMALL = 1024

# Bytes that are worth a warning.
_MUCH = 1_000_000

_recorder: Recorder | None = None


@contextlib.contextmanager
def recording(delays: bool = True) -> Iterator[None]:
    """In this block what is done to delayed tensors is noted; of this thread.

    Args:
        delays: parameters become delayed. Of nested blocks the innermost decides.
    """
    global _recorder
    if _recorder is not None:
        recorder = _recorder
        before, recorder.delays = recorder.delays, delays
        recorder.depth += 1
        try:
            yield
        finally:
            recorder.delays = before
            recorder.depth -= 1
        return
    _recorder = recorder = Recorder(delays)
    handles = [
        register_module_parameter_registration_hook(recorder.on_parameter),
        register_module_buffer_registration_hook(recorder.on_buffer),
    ]
    try:
        with recorder, Past(), Disguise():
            yield
    finally:
        _recorder = None
        for handle in handles:
            handle.remove()
        recorder.finish()
        forget_real()
        drop_expired()


_whole_run = contextlib.ExitStack()


def record_until_wrapped() -> None:
    """A block that begins here, and ends where `stop_recording` is called."""
    if _recorder is None:
        _whole_run.enter_context(recording())


def stop_recording() -> None:
    """Ends the block that `record_until_wrapped` began; not within other blocks."""
    if _recorder is not None and _recorder.depth == 0:
        _whole_run.close()


def has_delayed(module: nn.Module) -> bool:
    """Whether any of its parameters is delayed."""
    return any(is_delayed(parameter) for parameter in module.parameters())


def noting_changes(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A block in which a module may be changed, whether or not it has delayed parameters."""
    return recording() if has_delayed(module) else contextlib.nullcontext()


class Recorder(TorchDispatchMode):
    """Notes the operations of a block.

    Args:
        delays: parameters become delayed.

    Attributes:
        depth: of blocks within.
    """

    def __init__(self, delays: bool) -> None:
        super().__init__()
        self.delays = delays
        self.depth = 0
        # Values of the delayed tensors of the last operation that had any.
        self._hot: dict[Source, torch.UntypedStorage] = {}
        self._spare: torch.UntypedStorage | None = None
        self._device = torch.device("cpu")
        self._changed: dict[int, Tensor] = {}
        self._real: dict[str, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, which takes seconds

    # --- modules ---------------------------------------------------------------------------------

    def on_parameter(self, module: nn.Module, name: str, parameter: Any) -> None:
        """A module gets a parameter: its memory is let go of, if its values can be had again."""
        if parameter is None or not self.delays or is_lazy(parameter):
            return
        with plainly():
            if parameter.is_meta:
                return
            device = parameter.device
            made = delayed_like(parameter)
            if made is parameter:
                self._real[f"{name} of a {type(module).__name__}"] = parameter.nbytes
                return
            replace_data(parameter, made)
            self._device = device
            self._changed[id(parameter)] = parameter

    def on_buffer(self, module: nn.Module, name: str, buffer: Any) -> Any:
        """Buffers have their values at once."""
        if buffer is None or not is_delayed(buffer):
            return None
        return Values().of(buffer)

    def finish(self) -> None:
        """The block has ended."""
        for tensor in self._changed.values():
            if is_delayed(tensor):
                mark_unchanged(tensor)
        self._changed.clear()
        if sum(self._real.values()) >= _MUCH:
            some = ", ".join(itertools.islice(self._real, 3))
            get_logger().warning(
                "%d parameters (%.1f MB), as %s, keep their memory on all ranks until the model is"
                " placed: their values came from outside of the block, or other tensors share"
                " their memory. All else is right. To save it, compute them with torch, in a tensor"
                " each.",
                len(self._real),
                sum(self._real.values()) / 1e6,
                some,
            )

    # --- operations ------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "meta":
            # Asked for is the device of a delayed tensor, in most cases; here it is what it stands
            # for. As a parameter it will have no memory either.
            kwargs = {**kwargs, "device": self._device}
        given = {id(each): each for each in tensors_in((args, kwargs))}
        sources = {key: source_of(each) for key, each in given.items()}
        delayed = {key: s for key, s in sources.items() if s is not None and given[key].is_meta}
        if delayed and func is _aten.set_.source_Tensor:
            args = (args[0], delayed_like(args[1]))
        if delayed and _is_view(func):
            return func(*args, **kwargs)
        if delayed and func.overloadpacket in _SHAPES:  # and values do not matter
            kwargs = {"device": next(iter(delayed.values())).device, **kwargs}
            given, sources, delayed = {}, {}, {}
        written = _written(func, args, kwargs)
        fills = _filled(func, args, sources)
        random = self._random(func, kwargs, given, sources)
        if not delayed:
            result = func(*args, **kwargs)
            for each in written:
                self._see_real(each, sources.get(id(each)))
            if torch.Tag.inplace_view in func.tags:
                return result
        elif func in _COPIES and kwargs.get("device") is None:
            result = func(*args, **kwargs)
        else:
            result = self._run_for_real(func, args, kwargs, given, delayed, fills)
        self._note(func, args, kwargs, result, given, sources, written, fills, random)
        return result

    def _run_for_real(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: dict[int, Tensor],
        delayed: dict[int, Source],
        fills: Source | None,
    ) -> Any:
        """With values for what is delayed; they stay until others are wanted."""
        wanted = set(delayed.values())
        for source in self._hot.keys() - wanted:
            held = self._hot.pop(source)
            if self._spare is None or self._spare.nbytes() < held.nbytes():
                self._spare = held
        for source in wanted - self._hot.keys():
            if source is fills:
                held = self._memory_for(source)
            else:
                with plainly():
                    held = computed(source)
            self._hot[source] = held
        real = {key: view_of(given[key], s).on(self._hot[s]) for key, s in delayed.items()}
        back = {id(each): given[key] for key, each in real.items()}
        args, kwargs = tree_map_only(Tensor, lambda t: real.get(id(t), t), (args, kwargs))
        result = func(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: back.get(id(t), t), result)

    def _memory_for(self, source: Source) -> torch.UntypedStorage:
        """That of the last one, if it is enough: freed each time it would end up in pieces."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.device == source.device and spare.nbytes() >= source.nbytes:
            return spare
        return torch.UntypedStorage(source.nbytes, device=source.device)

    def _see_real(self, tensor: Tensor, source: Source | None) -> None:
        """A tensor with data was written to."""
        if source is not None:
            self._hot.pop(source, None)  # a delayed parameter may have been made of it
            if tensor.untyped_storage().nbytes() != source.nbytes:
                forget(tensor)

    def _random(
        self,
        func: Any,
        kwargs: dict[str, Any],
        given: dict[int, Tensor],
        sources: dict[int, Source | None],
    ) -> tuple[torch.Generator, Tensor] | None:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return None
        generator = kwargs.get("generator")
        if generator is None:
            device = torch.device(kwargs.get("device") or "cpu")
            for key, tensor in given.items():
                source = sources[key]
                device = tensor.device if source is None else source.device
                break
            generator = _default_generator(device)
        return generator, generator.get_state()

    def _note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        given: dict[int, Tensor],
        sources: dict[int, Source | None],
        written: list[Tensor],
        fills: Source | None,
        random: tuple[torch.Generator, Tensor] | None,
    ) -> None:
        """Keeps what it takes to do it again, and forgets what cannot be had again."""
        is_known = func.namespace == "aten" and all(
            source is not None or given[key].numel() <= _SMALL for key, source in sources.items()
        )
        changed: list[Source] = []
        for tensor in written:
            source = sources.get(id(tensor))
            if source is None:
                continue
            if is_known or tensor.is_meta or source.is_parameters:
                changed.append(source)
            else:
                forget(tensor)
            owner = tensor if tensor._base is None else tensor._base
            if owner.is_meta:
                self._changed[id(owner)] = owner
        made: list[View | None] = []
        for tensor in tensors_in(result):
            new = None
            if id(tensor) not in given and is_known and _is_trackable(tensor):
                storage = StorageWeakRef(tensor.untyped_storage())
                if all(storage != StorageWeakRef(t.untyped_storage()) for t in given.values()):
                    device = next((s.device for s in sources.values() if s), tensor.device)
                    place = device if tensor.is_meta else tensor.device
                    source = Source(place, tensor.untyped_storage().nbytes())
                    track(tensor, source)
                    new = view_of(tensor, source)
                    changed.append(source)
            made.append(new)
        if not changed:
            return

        def kept(tensor: Tensor) -> Any:
            if id(tensor) not in sources:
                return torch.empty_like(tensor)  # its shape matters, its memory does not
            source = sources[id(tensor)]
            return tensor.detach().clone() if source is None else view_of(tensor, source)

        kept_args, kept_kwargs = tree_map_only(Tensor, kept, (args, kwargs))
        note = Note(
            next(numbers),
            func,
            kept_args,
            kept_kwargs,
            tuple({s for s in sources.values() if s is not None and s is not fills}),
            fills,
            tuple(made),
            random,
            torch.get_default_dtype(),
        )
        for source in changed:
            source.notes.append(note)


def _is_view(func: Any) -> bool:
    """Whether it only looks at memory in another way."""
    return torch.Tag.inplace_view in func.tags or any(
        argument.alias_info is not None and not argument.alias_info.is_write
        for argument in func._schema.arguments
    )


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    found = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            found += tensors_in(value)
    return found


def _filled(func: Any, args: tuple[Any, ...], sources: dict[int, Source | None]) -> Source | None:
    """What it sets all of."""
    if func not in _FILLS:
        return None
    source = sources.get(id(args[0]))
    if source is None or not view_of(args[0], source).is_all():
        return None
    others = [each for each in tensors_in(args[1:]) if sources[id(each)] is source]
    return None if others else source


def _is_trackable(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    index = torch.empty(0, device=device).device.index  # of "cuda" alone, the current one's
    generator: torch.Generator = torch.get_device_module(device).default_generators[index]
    return generator
