# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The model's state as dictionaries: of one rank, of the whole model, and back.

Names, hooks, extra state and messages are torch's own: its `state_dict` and `load_state_dict` run
on the user's module on every rank. What differs is what they see in place of a parameter that is on
another rank:

- saving: the entry is there, and is replaced by what the owner of its module has;
- loading: for its duration the parameter is one on the meta device, which has a shape and takes no
  data. So every rank finds the same missing and unexpected keys and the same wrong shapes, and
  nothing of another rank is ever in memory here.

A key belongs to the module with the longest prefix of it. Keys that no module has been seen to make
(of a state-dict hook) belong so too; when loading, everyone gets those.

Source: modelparallel specification, section 4.4.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from smdistributed.modelparallel.decide.topology import GroupKind
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.torch.job.gathering import gather
from smdistributed.modelparallel.torch.job.state import Job
from smdistributed.modelparallel.torch.modules.placement import Placement

__all__ = [
    "FP16_STATES",
    "IS_PARTIAL",
    "LentTensors",
    "bring_home",
    "full_state_dict",
    "load_state_dict",
    "local_state_dict",
    "partition_of_member",
    "snapshot",
]

IS_PARTIAL = "_smp_is_partial"
"""A key of dictionaries that hold one rank's part."""

FP16_STATES = "fp16_states"
"""A key beside `state` and `param_groups` of an optimizer: masters and the loss scaler."""

_EXTRA = "_extra_state"


def local_state_dict(placement: Placement) -> dict[str, Any]:
    """This rank's part, and `_smp_is_partial: True`. Not collective.

    Tensors are the model's own memory, on its device, as in torch's `state_dict`.
    """
    whole = placement.model.state_dict()
    is_here = _keys_here(placement)
    part = _like(whole, {key: value for key, value in whole.items() if is_here(key)})
    part[IS_PARTIAL] = True
    return part


def full_state_dict(
    model: nn.Module, placement: Placement | None, job: Job, gather_to_rank0: bool
) -> dict[str, Any]:
    """The whole model's, in CPU memory. Once partitioned, a collective of the MP group, blocking.

    Args:
        model: the user's module.
        placement: where its parts are; None before that is decided.
        job: what this process knows of the others.
        gather_to_rank0: only world rank 0 gets it, and others `{}`. MP groups without that rank
            then do nothing.

    Returns: what plain torch would give: its names and order; tied parameters share memory under
        all their names. Of a model with several partitions the tensors are copies; otherwise, if
        they are in CPU memory, the model's own, as in torch.

    Raises:
        SMPError: the `state_dict` of another rank raised; says which, and how.
        Exception: what the modules' own state methods raise here.
    """
    if gather_to_rank0 and 0 not in job.members(GroupKind.MP):
        return {}
    if placement is None or job.holds_whole_model:
        if gather_to_rank0 and job.rank != 0:
            return {}
        whole = model.state_dict()
        moved: dict[Any, Tensor] = {}
        return _like(whole, {key: _on_cpu(value, moved) for key, value in whole.items()})
    is_here = _keys_here(placement)
    mine: OrderedDict[str, Any] = OrderedDict()

    def offer() -> tuple[Any, Mapping[str, Any]]:
        nonlocal mine
        mine = _like(model.state_dict(), None)
        owned = {key: value for key, value in mine.items() if is_here(key)}
        same_as = _same_as(owned)
        first = {key: value for key, value in owned.items() if key not in same_as}
        return (list(mine), same_as), first

    def wants(member: int, _: Any, __: Any) -> bool:
        return not gather_to_rank0 or job.members(GroupKind.MP)[member] == 0

    notes, values = gather(job, offer, wants, copies=True)
    if gather_to_rank0 and job.rank != 0:
        return {}
    same_as = {key: first for _, theirs in notes for key, first in theirs.items()}
    keys = dict.fromkeys(key for theirs, _ in notes for key in theirs)
    gathered = ((key, same_as.get(key, key)) for key in keys)
    return _like(mine, {key: values[first] for key, first in gathered if first in values})


def load_state_dict(
    model: nn.Module,
    placement: Placement | None,
    job: Job,
    loaded: Mapping[str, Any],
    strict: bool,
    same_partition_load: bool,
) -> Any:
    """Loads a whole model's state, or that of its ranks, into the parts that are here.

    Args:
        model: the user's module.
        placement: where its parts are; None before that is decided: then all of it is here.
        job: what this process knows of the others.
        loaded: the whole, or with `_smp_is_partial: True` a part: what ranks have between them is
            merged first, a collective of the MP group. Each rank is sent what it holds and has not
            got, so parts that were saved with another number of partitions can be loaded.
        strict: missing and unexpected keys raise.
        same_partition_load: this rank's part is all it needs; not collective.

    Returns: torch's `_IncompatibleKeys`; the same on all ranks, but for `same_partition_load`.

    Raises:
        RuntimeError: torch's, of keys and shapes.
        SMPError: another rank failed to take part; says which, and how.
    """
    is_partial = bool(loaded.get(IS_PARTIAL, False))
    given = _like(loaded, {key: value for key, value in loaded.items() if key != IS_PARTIAL})
    if placement is None or job.holds_whole_model:
        return model.load_state_dict(given, strict=strict)
    if is_partial and same_partition_load:
        _add_absent(placement, given)
    elif is_partial:
        given = _merged(placement, job, given)
    with _set_aside(placement, is_partial and same_partition_load), warnings.catch_warnings():
        # Of a checkpoint that is whole, for parameters that are not here.
        warnings.filterwarnings("ignore", ".*copying from a non-meta parameter", UserWarning)
        return model.load_state_dict(given, strict=strict)


def bring_home(model: nn.Module, placement: Placement | None, job: Job) -> None:
    """Fills all parameters and buffers of the model, in CPU memory. A collective of the MP group.

    They stay the objects they are. Without several partitions there is nothing to gather.
    """
    tensors: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if placement is None or job.holds_whole_model:
        for tensor in tensors.values():
            tensor.data = tensor.data.cpu()
        return

    def offer() -> tuple[None, dict[str, Tensor]]:
        return None, {name: t.data for name, t in tensors.items() if placement.is_here(name)}

    _, values = gather(job, offer, lambda *_: True, copies=False)
    for name, tensor in tensors.items():
        tensor.data = values[name].cpu()


def partition_of_member(job: Job, member: int) -> int:
    """The partition that a rank of the MP group holds."""
    return job.topology.coordinates(job.members(GroupKind.MP)[member]).pp


# ---- loads that wait ---------------------------------------------------------------------------


def snapshot(value: Any, copies_tensors: bool, _copied: dict[Any, Tensor] | None = None) -> Any:
    """What a state dictionary is now, whatever becomes of it: dictionaries and lists are copied.

    Args:
        copies_tensors: they too; those that share memory still do. Without it they stay the
            caller's. Objects of other kinds always do.
    """
    copied = {} if _copied is None else _copied
    if isinstance(value, Tensor):
        return _copy_of(value, copied) if copies_tensors else value
    if isinstance(value, Mapping):
        # torch's dictionaries have versions of modules in an attribute.
        result: Any = copy.copy(value) if isinstance(value, dict) else dict(value)
        for key, each in value.items():
            result[key] = snapshot(each, copies_tensors, copied)
        if hasattr(result, "_metadata"):
            result._metadata = snapshot(result._metadata, copies_tensors, copied)
        return result
    if type(value) in (list, tuple):
        return type(value)(snapshot(each, copies_tensors, copied) for each in value)
    return value


def _copy_of(tensor: Tensor, copied: dict[Any, Tensor]) -> Tensor:
    where = _where(tensor)
    if where is None:
        return tensor.detach().clone()
    if where not in copied:
        copied[where] = tensor.detach().clone()
    return copied[where]


class LentTensors:
    """Those of a state that waits without copies; finds out whether they were changed in place.

    Args:
        loaded: of a model: tensors by name, and anything else.
    """

    def __init__(self, loaded: Mapping[str, Any]) -> None:
        tensors = {key: value for key, value in loaded.items() if isinstance(value, Tensor)}
        # Those of torch.inference_mode() have no version, and are rarely changed.
        self._versions = {
            key: (tensor, tensor._version)
            for key, tensor in tensors.items()
            if not tensor.is_inference()
        }

    def check(self) -> None:
        """Raises SMPError if one was changed."""
        for key, (tensor, version) in self._versions.items():
            if tensor._version != version:
                raise SMPError(
                    f"{key} of a state for model.load_state_dict() was changed in place before the"
                    " model was partitioned; expected the tensors as they were, since of all the"
                    " state of a model without data no copies are made. Change it after the first"
                    " step, or pass a copy."
                )


# ---- keys ----------------------------------------------------------------------------------------


def _owners(model: nn.Module) -> Callable[[str], nn.Module]:
    """The module that a key of a state dictionary belongs to."""
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))

    def owner(key: str) -> nn.Module:
        parts = key.split(".")
        for end in range(len(parts) - 1, 0, -1):
            module = modules.get(".".join(parts[:end]))
            if module is not None:
                return module
        return model

    return owner


def _keys_here(placement: Placement) -> Callable[[str], bool]:
    """Whether a key of a state dictionary belongs to a module on this rank."""
    owner = _owners(placement.model)
    return lambda key: placement.is_module_here(owner(key))


def _own_keys(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor | None]]:
    """What torch would look for: keys, their modules, and tensors; of extra state None."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        before = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield before + name, module, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield before + name, module, buffer
        if type(module).set_extra_state is not nn.Module.set_extra_state:
            yield before + _EXTRA, module, None


def _same_as(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Keys whose tensor is one that has come before, with the key of that."""
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for key, value in tensors.items():
        where = _where(value)
        if where is not None and first.setdefault(where, key) != key:
            same[key] = first[where]
    return same


def _where(value: Any) -> Any:
    """What two entries have in common if they are the same tensor."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.numel() == 0:
        return None
    if value.is_meta:
        return None
    return value.device, value.data_ptr(), value.dtype, value.shape, value.stride()


def _on_cpu(value: Any, moved: dict[Any, Tensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    where = _where(value)
    if where is None or value.device.type == "cpu":
        return value.cpu()
    if where not in moved:
        moved[where] = value.cpu()
    return moved[where]


def _like(original: Mapping[str, Any], entries: Mapping[str, Any] | None) -> OrderedDict[str, Any]:
    """Other entries, with the versions that torch keeps beside a state dictionary."""
    result: OrderedDict[str, Any] = OrderedDict(original if entries is None else entries)
    metadata = getattr(original, "_metadata", None)
    if metadata is not None:
        result._metadata = metadata  # type: ignore[attr-defined]
    return result


# ---- loading -------------------------------------------------------------------------------------


def _merged(placement: Placement, job: Job, given: OrderedDict[str, Any]) -> OrderedDict[str, Any]:
    """All keys of all parts; this rank's with their values, others with no data."""
    owner = _owners(placement.model)
    partitions = placement.partition_of_module
    with_data = {key for key, _, tensor in _own_keys(placement.model) if tensor is not None}

    def wants(member: int, key: Any, _: Any) -> bool:
        # Extra state may be anything, and so may what hooks of the modules look for.
        if key not in with_data:
            return True
        return partitions[owner(key)] == partition_of_member(job, member)

    metadata = getattr(given, "_metadata", None)
    notes, values = gather(job, lambda: (metadata, given), wants, copies=False)
    merged: OrderedDict[str, Any] = OrderedDict(values)
    versions = [versions for versions in notes if versions is not None]
    if versions:
        merged._metadata = OrderedDict()  # type: ignore[attr-defined]
        for each in versions:
            for prefix, version in each.items():
                merged._metadata.setdefault(prefix, version)  # type: ignore[attr-defined]
    return merged


def _add_absent(placement: Placement, given: OrderedDict[str, Any]) -> None:
    """What is not here is not missing either."""
    for key, module, tensor in _own_keys(placement.model):
        if not placement.is_module_here(module) and key not in given:
            given[key] = None if tensor is None else torch.empty_like(tensor, device="meta")


@contextlib.contextmanager
def _set_aside(placement: Placement, has_no_extra_state: bool) -> Iterator[None]:
    """While this lasts, what is not here is on the meta device.

    Args:
        has_no_extra_state: and its modules do not take any.
    """
    taken: list[tuple[dict[str, Any], str, Tensor]] = []
    quiet: list[nn.Module] = []
    stand_ins: dict[int, Tensor] = {}
    for module in placement.partition_of_module:
        if placement.is_module_here(module):
            continue
        held: dict[str, Any]
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in stand_ins:
                    stand_ins[id(tensor)] = _stand_in(tensor)
                taken.append((held, name, tensor))
        if has_no_extra_state and type(module).set_extra_state is not nn.Module.set_extra_state:
            quiet.append(module)
    try:
        for held, name, tensor in taken:
            held[name] = stand_ins[id(tensor)]
        for module in quiet:
            module.__dict__["set_extra_state"] = _ignore
        yield
    finally:
        for held, name, tensor in taken:
            held[name] = tensor
        for module in quiet:
            del module.__dict__["set_extra_state"]


def _stand_in(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def _ignore(_: Any) -> None:
    """Takes the place of `set_extra_state`."""
