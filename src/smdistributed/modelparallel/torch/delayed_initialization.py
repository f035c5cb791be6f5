# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters without memory: what made their values is noted, and done again where they are needed.

While `recording` lasts, a tensor that becomes a parameter of a module moves to the meta device,
which has shapes and no data. What is computed with it is computed for real, in memory that the next
parameter takes over, so constructors run as ever, whatever they do, and random numbers are drawn in
the order that they would be without us. Noted are the operations that wrote to a tensor, with the
state of the random generator before each: that is all it takes to compute it once more, later, on
the one rank that wants it.

Words: a *source* is all that is known of the values of one piece of memory: those operations, its
*notes*. A tensor that refers to such memory is *tracked*, one without data is *delayed*. Tensors
that came from elsewhere (NumPy, a file, an earlier one) have no source; what is computed from these
alone has none either, and stays real as a parameter.

Cost: one pass over the initialisation for all parameters, as without us, and one more for those
that are needed; memory for one parameter at a time, and about 5 KB for each random operation.

Source: modelparallel specification, section 6.5.
"""

# torch's modes have no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import bisect
import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from smdistributed._common.log import get_logger

__all__ = [
    "Disguise",
    "Values",
    "drop_expired",
    "has_delayed",
    "is_delayed",
    "materialise",
    "noting_changes",
    "plainly",
    "record_until_wrapped",
    "recording",
    "replace_data",
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

_VERSION = "_smp_version"

_DEVICE = Tensor.device.__get__
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
_LOOKS = {_DEVICE, Tensor.is_meta.__get__}  # type: ignore[attr-defined]
_READS = {Tensor.numpy, Tensor.__array__, Tensor.tolist}
# With these, others can write to the memory.
_LETS_MEMORY_OUT = {
    Tensor.numpy,
    Tensor.__array__,
    Tensor.data_ptr,
    Tensor.untyped_storage,
    Tensor.__dlpack__,
    Tensor.share_memory_,
}


class _Source:
    """Where the values of one piece of memory come from.

    Attributes:
        device: of its values.
        nbytes: of all of it.
        notes: of operations that wrote to it, the oldest first.
        is_parameters: it belongs to a delayed parameter.
    """

    __slots__ = ("__weakref__", "device", "is_parameters", "nbytes", "notes")

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.notes: list[_Note] = []
        self.is_parameters = False


class _View(NamedTuple):
    """A tensor among the arguments of a note: which memory, and how it is seen."""

    source: _Source
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def is_all(self) -> bool:
        """Whether it has each element of the memory once."""
        length = 1
        for size, stride in sorted(zip(self.size, self.stride, strict=True), key=lambda p: p[1]):
            if size != 1 and stride != length:
                return False
            length *= size
        return length * self.dtype.itemsize == self.source.nbytes


class _Note(NamedTuple):
    """An operation that can be done again.

    Attributes:
        number: orders all notes.
        args, kwargs: tensors are `_View`s, or copies of those without a source.
        reads: the sources among them whose values matter.
        fills: the source that it sets all of, if any.
        made: by result, what is known of its memory if that is new.
        random: the generator, and its state before; None if it draws nothing.
        default_dtype: torch's, at that time.
    """

    number: int
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[_Source, ...]
    fills: _Source | None
    made: tuple[_View | None, ...]
    random: tuple[torch.Generator, Tensor] | None
    default_dtype: torch.dtype


_Sources = dict[StorageWeakRef, _Source]

# By memory: of delayed tensors; and of others, for as long as a block sees what is done to them.
_of_delayed: _Sources = {}
_of_real: _Sources = {}
_numbers = itertools.count()


def _source_of(tensor: Tensor) -> _Source | None:
    is_plain = type(tensor) is Tensor or isinstance(tensor, nn.Parameter)
    if not is_plain or tensor.layout is not torch.strided:
        return None
    return _known(tensor).get(StorageWeakRef(tensor.untyped_storage()))


def _known(tensor: Tensor) -> _Sources:
    return _of_delayed if tensor.is_meta else _of_real


def _track(tensor: Tensor, source: _Source) -> None:
    _known(tensor)[StorageWeakRef(tensor.untyped_storage())] = source


def _forget(tensor: Tensor) -> None:
    _known(tensor).pop(StorageWeakRef(tensor.untyped_storage()), None)


def _view(tensor: Tensor, source: _Source) -> _View:
    return _View(
        source,
        tensor.dtype,
        tuple(tensor.size()),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
    )


def drop_expired() -> None:
    """Forgets sources of memory that nobody refers to; notes of others keep what they need."""
    for sources in (_of_delayed, _of_real):
        for reference in [each for each in sources if each.expired()]:
            del sources[reference]


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """What this block computes is seen by no mode."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


# ---- doing it again ------------------------------------------------------------------------------


class Values:
    """Values of delayed tensors, computed once: those that share memory get the same again."""

    def __init__(self) -> None:
        self._storages: dict[_Source, torch.UntypedStorage] = {}

    def of(self, tensor: Tensor, name: str = "a parameter") -> Tensor:
        """The tensor itself, or if it is delayed one with its values, where it would be without us.

        Args:
            name: for messages.

        Raises:
            ValueError: it has no data, and nothing is known of its values.
        """
        with plainly():
            if not tensor.is_meta:
                return tensor
            source = _source_of(tensor)
            if source is None:
                raise ValueError(
                    f"{name} is on the meta device, and nothing tells its values; expected one that"
                    " was made, and copied if it was, in `with smp.delay_param_initialization():`"
                    " or smp.model_creation(). Make the module there, or in CPU memory."
                )
            _warn_of_changes(tensor, name)
            if source not in self._storages:
                self._storages[source] = _computed(source)
            return _view(tensor, source).on(self._storages[source])

    def fill_attributes(self, module: nn.Module) -> None:
        """Tensors that a module keeps beside parameters and buffers, and that are delayed."""
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and is_delayed(value):
                vars(module)[name] = self.of(value, name)


def _computed(source: _Source) -> torch.UntypedStorage:
    """Does again what made the values, in the order of then."""
    storages: dict[_Source, torch.UntypedStorage] = {}

    def real(view: _View) -> Tensor:
        if view.source not in storages:
            nbytes, device = view.source.nbytes, view.source.device
            storages[view.source] = torch.UntypedStorage(nbytes, device=device)
        return view.on(storages[view.source])

    default = torch.get_default_dtype()
    try:
        for note in _needed(source):
            args, kwargs = tree_map_only(
                _View, real, (note.args, note.kwargs), is_leaf=lambda each: isinstance(each, _View)
            )
            torch.set_default_dtype(note.default_dtype)
            with _random_state(note.random):
                result = note.func(*args, **kwargs)
            for view, tensor in zip(note.made, _tensors(result), strict=True):
                if view is None:
                    continue
                if (tensor.stride(), tensor.storage_offset()) == (view.stride, view.offset):
                    storages[view.source] = tensor.untyped_storage()
                else:
                    real(view).copy_(tensor)
    finally:
        torch.set_default_dtype(default)
    return real(_View(source, torch.uint8, (), (), 0)).untyped_storage()


def _needed(source: _Source) -> list[_Note]:
    """Notes that decide its values, in their order; none of what was overwritten later."""
    found: dict[int, _Note] = {}
    walked: set[tuple[_Source, int]] = set()
    left = [(source, len(source.notes))]
    while left:
        each, end = left.pop()
        for index in range(end - 1, -1, -1):
            if (each, index) in walked:
                break
            walked.add((each, index))
            note = each.notes[index]
            found[note.number] = note
            left += ((read, _count_before(read, note.number)) for read in note.reads)
            if note.fills is each:
                break
    return [found[number] for number in sorted(found)]


def _count_before(source: _Source, number: int) -> int:
    return bisect.bisect_left(source.notes, number, key=lambda note: note.number)


@contextlib.contextmanager
def _random_state(random: tuple[torch.Generator, Tensor] | None) -> Iterator[None]:
    if random is None:
        yield
        return
    generator, state = random
    before = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(before)


def _tensors(result: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


# ---- noting it -----------------------------------------------------------------------------------


_recorder: _Recorder | None = None


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
    _recorder = recorder = _Recorder(delays)
    handles = [
        register_module_parameter_registration_hook(recorder.on_parameter),
        register_module_buffer_registration_hook(recorder.on_buffer),
    ]
    try:
        with recorder, _Past(), Disguise():
            yield
    finally:
        _recorder = None
        for handle in handles:
            handle.remove()
        recorder.finish()
        _of_real.clear()
        drop_expired()


def is_delayed(tensor: Tensor) -> bool:
    """Whether it is without data, and its values can be had."""
    with plainly():
        return tensor.is_meta and _source_of(tensor) is not None


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


def materialise(module: nn.Module) -> None:
    """Gives all of a module its values, in memory."""
    values = Values()
    tensors = (*module.named_parameters(), *module.named_buffers())
    for name, tensor in tensors:
        if is_delayed(tensor):
            replace_data(tensor, values.of(tensor, name))
    for part in module.modules():
        values.fill_attributes(part)
    drop_expired()


class _Recorder(TorchDispatchMode):
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
        self._hot: dict[_Source, torch.UntypedStorage] = {}
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
            made = _delayed_like(parameter)
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
                setattr(tensor, _VERSION, tensor._version)
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
        given = {id(each): each for each in _tensors((args, kwargs))}
        sources = {key: _source_of(each) for key, each in given.items()}
        delayed = {key: s for key, s in sources.items() if s is not None and given[key].is_meta}
        if delayed and func is _aten.set_.source_Tensor:
            args = (args[0], _delayed_like(args[1]))
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
        delayed: dict[int, _Source],
        fills: _Source | None,
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
                    held = _computed(source)
            self._hot[source] = held
        real = {key: _view(given[key], s).on(self._hot[s]) for key, s in delayed.items()}
        back = {id(each): given[key] for key, each in real.items()}
        args, kwargs = tree_map_only(Tensor, lambda t: real.get(id(t), t), (args, kwargs))
        result = func(*args, **kwargs)
        return tree_map_only(Tensor, lambda t: back.get(id(t), t), result)

    def _memory_for(self, source: _Source) -> torch.UntypedStorage:
        """That of the last one, if it is enough: freed each time it would end up in pieces."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.device == source.device and spare.nbytes() >= source.nbytes:
            return spare
        return torch.UntypedStorage(source.nbytes, device=source.device)

    def _see_real(self, tensor: Tensor, source: _Source | None) -> None:
        """A tensor with data was written to."""
        if source is not None:
            self._hot.pop(source, None)  # a delayed parameter may have been made of it
            if tensor.untyped_storage().nbytes() != source.nbytes:
                _forget(tensor)

    def _random(
        self,
        func: Any,
        kwargs: dict[str, Any],
        given: dict[int, Tensor],
        sources: dict[int, _Source | None],
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
        sources: dict[int, _Source | None],
        written: list[Tensor],
        fills: _Source | None,
        random: tuple[torch.Generator, Tensor] | None,
    ) -> None:
        """Keeps what it takes to do it again, and forgets what cannot be had again."""
        is_known = func.namespace == "aten" and all(
            source is not None or given[key].numel() <= _SMALL for key, source in sources.items()
        )
        changed: list[_Source] = []
        for tensor in written:
            source = sources.get(id(tensor))
            if source is None:
                continue
            if is_known or tensor.is_meta or source.is_parameters:
                changed.append(source)
            else:
                _forget(tensor)
            owner = tensor if tensor._base is None else tensor._base
            if owner.is_meta:
                self._changed[id(owner)] = owner
        made: list[_View | None] = []
        for tensor in _tensors(result):
            new = None
            if id(tensor) not in given and is_known and _is_trackable(tensor):
                storage = StorageWeakRef(tensor.untyped_storage())
                if all(storage != StorageWeakRef(t.untyped_storage()) for t in given.values()):
                    device = next((s.device for s in sources.values() if s), tensor.device)
                    place = device if tensor.is_meta else tensor.device
                    source = _Source(place, tensor.untyped_storage().nbytes())
                    _track(tensor, source)
                    new = _view(tensor, source)
                    changed.append(source)
            made.append(new)
        if not changed:
            return

        def kept(tensor: Tensor) -> Any:
            if id(tensor) not in sources:
                return torch.empty_like(tensor)  # its shape matters, its memory does not
            source = sources[id(tensor)]
            return tensor.detach().clone() if source is None else _view(tensor, source)

        kept_args, kept_kwargs = tree_map_only(Tensor, kept, (args, kwargs))
        note = _Note(
            next(_numbers),
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


class Disguise(TorchFunctionMode):
    """Tensors on the meta device look as if they were on another one.

    Functions of torch.nn.init leave alone what is on the meta device, and many a model makes
    tensors on the device of others, and looks at their values.

    Args:
        device: None: of delayed tensors, that of their values.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _LOOKS and args[0].is_meta:
            device = self._device
            if device is None:
                with plainly():
                    source = _source_of(args[0])
                device = None if source is None else source.device
            if device is not None:
                return device if func == _DEVICE else False
        return func(*args, **(kwargs or {}))


class _Past(TorchFunctionMode):
    """Sees what uses the memory of tensors past all operations."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _SET_DATA:
            tensor, value = args
            with plainly():
                replace_data(tensor, _delayed_like(value) if tensor.is_meta else value)
            return None
        if func not in _READS and func not in _LETS_MEMORY_OUT:
            return func(*args, **kwargs)
        tensor = args[0]
        with plainly():
            source = _source_of(tensor)
        if source is None:
            return func(*args, **kwargs)
        if tensor.is_meta and func in _READS:
            value = func(Values().of(tensor).detach(), *args[1:], **kwargs)
            if func is not Tensor.tolist:
                value.setflags(write=False)  # it would not get to the parameter
            return value
        if func in _LETS_MEMORY_OUT and not tensor.is_meta and not source.is_parameters:
            _forget(tensor)
        return func(*args, **kwargs)


def _delayed_like(value: Tensor) -> Tensor:
    """A tensor without data, and with the values of another; that itself if they are not known."""
    source = _source_of(value)
    if value.is_meta or source is None or source.is_parameters or not _view(value, source).is_all():
        return value
    made = torch.empty_like(value, device="meta")
    _track(made, source)
    source.is_parameters = True
    return made


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
            found += _tensors(value)
    return found


def _filled(func: Any, args: tuple[Any, ...], sources: dict[int, _Source | None]) -> _Source | None:
    """What it sets all of."""
    if func not in _FILLS:
        return None
    source = sources.get(id(args[0]))
    if source is None or not _view(args[0], source).is_all():
        return None
    others = [each for each in _tensors(args[1:]) if sources[id(each)] is source]
    return None if others else source


def _is_trackable(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.layout is torch.strided


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    index = torch.empty(0, device=device).device.index  # of "cuda" alone, the current one's
    generator: torch.Generator = torch.get_device_module(device).default_generators[index]
    return generator


# ---- parameters get their values -----------------------------------------------------------------


def replace_data(tensor: Tensor, value: Tensor) -> None:
    """As `tensor.data = value`, also from and to the meta device; the object stays the same.

    Raises:
        RuntimeError: torch's: it is to get data, or to lose it, and C++ code refers to it too.
    """
    if tensor.is_meta == value.is_meta:
        tensor.data = value
        return
    fresh = value.detach()
    if isinstance(tensor, nn.Parameter):
        fresh = torch.Tensor._make_subclass(nn.Parameter, fresh, tensor.requires_grad)
    hooks = tensor._backward_hooks
    # Not torch.utils.swap_tensors, which refuses what has weak references, as weights of an LSTM
    # have: here the other tensor is seen by nobody, and all attributes stay where they are.
    torch._C._swap_tensor_impl(tensor, fresh)
    if hooks:
        tensor._backward_hooks = hooks
    tensor.__dict__.pop(_VERSION, None)


def _warn_of_changes(tensor: Tensor, name: str) -> None:
    if getattr(tensor, _VERSION, tensor._version) != tensor._version:
        warnings.warn(
            f"{name} was changed after the block of smp.delay_param_initialization() that it was"
            " made in, while it had no data: it gets its values without that change. Change it in"
            " such a block (a new one will do), or after the model is placed, in a hook:"
            " model.register_post_partition_hook().",
            stacklevel=2,
        )
