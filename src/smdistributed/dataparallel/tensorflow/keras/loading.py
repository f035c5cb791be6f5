# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`load_model`: a saved model that goes on training on several ranks.

Source: our choice: Horovod's name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from smdistributed.dataparallel.compression import Compression
from smdistributed.dataparallel.exceptions import SMDDPUnsupported
from smdistributed.dataparallel.tensorflow import optimizers
from smdistributed.dataparallel.tensorflow.keras.in_use import keras_in_use

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
    **options: Any,
) -> Any:
    """Loads a model, and makes its optimizer a `DistributedOptimizer`, which keeps its state.

    Args:
        filepath: of a `.keras` or `.h5` file, or whatever else Keras loads; or an open
            `h5py.File`.
        custom_optimizers: classes of optimizers that are not Keras's own.
        custom_objects: other classes and functions by name, as for Keras's `load_model`.
        compression: as for `DistributedOptimizer`.
        legacy_opts: the model was trained with an optimizer of `tf.keras.optimizers.legacy`. What
            is saved says so itself; this only makes sure that there can be such a thing.
        options: for `DistributedOptimizer`.

    Returns:
        The model. One that was saved without an optimizer comes without one. (In `.keras` files
        tf-keras keeps no state of legacy optimizers, and in `.h5` files it does.)

    Raises:
        SMDDPUnsupported: `legacy_opts` with Keras 3, which has none.
        As Keras's `load_model`, and as `DistributedOptimizer`.

    Source: our choice; see docs/tensorflow.md.
    """
    keras = keras_in_use()
    is_keras_3 = hasattr(keras.optimizers.Optimizer, "stateless_apply")
    if legacy_opts and is_keras_3:
        raise SMDDPUnsupported(
            "load_model() got legacy_opts=True with Keras 3, which has no legacy optimizers;"
            " expected tf-keras. Set TF_USE_LEGACY_KERAS=1 before Python starts, or leave it out."
        )
    if is_keras_3 and hasattr(filepath, "filename"):  # an h5py.File
        filepath = filepath.filename
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        if is_keras_3:
            _restore(model.optimizer, model.trainable_variables, filepath)
        optimizers.DistributedOptimizer(model.optimizer, compression=compression, **options)
        if getattr(model, "jit_compile", False):  # Keras's own choice where there is a GPU
            model.jit_compile = False
    return model


def _restore(optimizer: Any, variables: list[Any], filepath: Any) -> None:
    """Builds an optimizer that was loaded from `.h5`, and gives it its state.

    Keras 3 (3.15, and before) builds it there for no variables, and so leaves out its state but for
    the number of steps; to train it is an error then.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.built or inner._trainable_variables or not variables:
        return
    h5py = importlib.import_module("h5py")

    files = importlib.import_module("keras.src.legacy.saving.legacy_h5_format")
    for each in (inner, optimizer):
        each.built = False
    optimizer.build(variables)
    with h5py.File(filepath, "r") as file:
        optimizer.set_weights(files.load_optimizer_weights_from_hdf5_group(file))
