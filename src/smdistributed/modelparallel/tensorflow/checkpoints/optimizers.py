# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which slots a whole optimizer has, and which of them this rank holds.

Keras keeps slots by position: `_variables/3` is the second moment of the first variable. An
optimizer that has the variables of one rank counts otherwise than one that has all. So the slots of
both are named by what they belong to (`Slot`): the list that has one for each variable, and the
variable's place in the model.

Source: TensorFlow modelparallel specification, section 5.5.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from smdistributed.modelparallel.tensorflow.checkpoints.together import CheckpointError
from smdistributed.modelparallel.tensorflow.variables import empty_optimizers, raw

__all__ = ["Slot", "build", "built_with", "is_optimizer", "named_slots", "whole_optimizer"]

# Attributes that list what others have already, or variables of the model.
_OTHER_LISTS = frozenset(("_variables", "_trainable_variables", "_weights", "_slots"))


@dataclasses.dataclass(frozen=True)
class Slot:
    """A variable of an optimizer.

    Attributes:
        attribute: where the optimizer has it, as `_momentums` or `inner_optimizer._iterations`.
        variable: the place in the model's list of the variable that it belongs to; None for what
            there is once, as the number of iterations.
    """

    attribute: str
    variable: int | None


def is_optimizer(value: Any) -> bool:
    """Whether it is an optimizer of either Keras, or of TensorFlow 1."""
    return isinstance(value, tf.compat.v1.train.Optimizer) or any(
        isinstance(value, each) for each in _optimizers_of_kerases()
    )


def built_with(optimizer: Any, variables: Sequence[Any]) -> list[int] | None:
    """Places in the model's list of what an optimizer has slots for, in its order.

    Args:
        variables: of the model, all of them.

    Returns:
        None if it has made none yet.

    Raises:
        CheckpointError: it has variables that are not the model's, or in another order.
    """
    name = type(optimizer).__name__
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        raise CheckpointError(
            f"{type(optimizer).__module__}.{name} keeps its slots by names of a graph, which"
            " smp.CheckpointManager does not gather from several ranks; expected an optimizer of"
            " Keras. Use tf.keras.optimizers."
        )
    if _is_legacy(optimizer):
        slots = optimizer._slots
        return [i for i, each in enumerate(variables) if _legacy_key(each) in slots] or None
    inner = _inner(optimizer)
    if inner is not None:  # `LossScaleOptimizer`
        return built_with(inner, variables)
    if hasattr(optimizer, "_index_dict"):
        places = {optimizer._var_key(each): i for i, each in enumerate(variables)}
        found = [places.get(key) for key in optimizer._index_dict]
    else:
        by_id = {id(raw(each)): i for i, each in enumerate(variables)}
        # tf-keras' have no list of either kind before they begin.
        known = getattr(optimizer, "_trainable_variables", ())
        found = [by_id.get(id(raw(each))) for each in known]
    if None in found:
        raise CheckpointError(
            f"the optimizer {name} was given variables that are not the model's (number"
            f" {found.index(None)} of its {len(found)}); expected those of"
            " model.trainable_variables, as a checkpoint has slots by position. Make a second"
            " optimizer for the others."
        )
    complete = [each for each in found if each is not None]
    if complete != sorted(complete):
        raise CheckpointError(
            f"the optimizer {name} was given variables in another order than the model's; expected"
            " that of model.trainable_variables: the order of all of them on one rank is not known"
            " otherwise. Pass zip(gradients, model.trainable_variables)."
        )
    return complete or None


def named_slots(
    optimizer: Any, variables: Sequence[Any], places: Sequence[int]
) -> Iterator[tuple[Any, Slot]]:
    """The `tf.Variable`s of an optimizer, and what each is.

    Args:
        variables: of the model, all of them.
        places: in that list, of those that the optimizer has, in its order.
    """
    for name, value in vars(optimizer).items():
        if is_optimizer(value):
            for each, slot in named_slots(value, variables, places):
                yield each, dataclasses.replace(slot, attribute=f"{name}.{slot.attribute}")
        elif _is_variable(value):
            yield raw(value), Slot(name, None)
        elif name in _OTHER_LISTS:
            continue
        elif isinstance(value, (list, tuple)) and all(map(_is_variable_or_none, value)):
            for i, each in enumerate(value):
                if each is None:
                    continue
                if len(value) == len(places):
                    yield raw(each), Slot(name, places[i])
                else:
                    yield raw(each), Slot(f"{name}[{i}]", None)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                if _is_variable(each):
                    yield raw(each), Slot(f"{name}[{key}]", None)
        elif isinstance(value, tf.__internal__.tracking.Trackable) and name == "_loss_scale":
            for key, each in value._trackable_children().items():
                if _is_variable(each):
                    yield raw(each), Slot(f"{name}.{key}", None)
    if _is_legacy(optimizer):
        for place in places:
            of_variable = optimizer._slots.get(_legacy_key(variables[place]), {})
            for name, each in of_variable.items():
                yield raw(each), Slot(f"_slots[{name}]", place)


def whole_optimizer(optimizer: Any, variables: Sequence[Any], places: Sequence[int]) -> Any:
    """An optimizer of the same kind that has slots for variables of all ranks, without values.

    Args:
        optimizer: one that is in use.
        variables: of the model, all of them.
        places: in that list, of those that it is to have.

    Raises:
        CheckpointError: the optimizer cannot be made again from its configuration.
    """
    cls = type(optimizer)
    with tf.init_scope(), empty_optimizers():
        try:
            made = cls.from_config(optimizer.get_config())
        except Exception as error:
            raise CheckpointError(
                f"{cls.__name__}.from_config(optimizer.get_config()) has failed"
                f" ({type(error).__name__}: {error}); expected it to make an optimizer like the one"
                " in use, from which a checkpoint has its positions. Give the optimizer a"
                " `get_config` with all arguments of its `__init__`."
            ) from error
        build(made, [variables[place] for place in places])
        return made


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Lets an optimizer make its slots, as its first `apply_gradients` does."""
    if _is_legacy(optimizer):
        optimizer._create_all_weights(variables)
    else:
        optimizer.build(variables)


def _optimizers_of_kerases() -> Iterator[type]:
    if (keras := sys.modules.get("keras")) is not None:
        yield keras.optimizers.Optimizer
    if (keras := sys.modules.get("tf_keras")) is not None:
        yield keras.optimizers.Optimizer
        yield keras.optimizers.legacy.Optimizer


def _is_legacy(optimizer: Any) -> bool:
    keras = sys.modules.get("tf_keras")
    return keras is not None and isinstance(optimizer, keras.optimizers.legacy.Optimizer)


def _legacy_key(variable: Any) -> Any:
    from tf_keras.src.optimizers.legacy.optimizer_v2 import _var_key

    return _var_key(variable)


def _inner(optimizer: Any) -> Any:
    return next((each for each in vars(optimizer).values() if is_optimizer(each)), None)


def _is_variable(value: Any) -> bool:
    return isinstance(raw(value), tf.Variable)


def _is_variable_or_none(value: Any) -> bool:
    return value is None or _is_variable(value)
