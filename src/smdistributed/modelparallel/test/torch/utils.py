# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Keep the tensors of a model in a file, and compare a model with them later.

The names are published ones: scripts import them. What they do is our choice: a model that is
trained in two ways, or before and after a change, can be held against itself.

Source: modelparallel specification, section 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["dump_model", "verify"]


def dump_model(model: nn.Module, path: str | Path) -> None:
    """Write the tensors of a model to a file; `verify` reads it.

    Not a collective: a rank writes what it holds, so each needs a path of its own.

    Args:
        model: of its `local_state_dict()` if it has one, of its `state_dict()` otherwise, all
            tensors are written, as copies on the CPU.
        path: is overwritten; its folder must exist.

    Raises:
        OSError: the file cannot be written; torch's RuntimeError if the folder does not exist.
    """
    torch.save(_tensors_of(model), path)


def verify(
    model: nn.Module, path: str | Path, rtol: float | None = None, atol: float | None = None
) -> None:
    """Compare a model with one that was dumped; returns if they agree.

    Args:
        model: as of `dump_model`.
        path: what `dump_model` wrote.
        rtol, atol: tolerances as of `torch.testing.assert_close`: both or neither; by default by
            dtype.

    Raises:
        AssertionError: names, shapes, dtypes or values differ; the text names all of them.
        OSError: there is no such file.
    """
    expected = torch.load(path, map_location="cpu", weights_only=True)
    actual = _tensors_of(model)
    wrong = [f"{name}: only in {path}" for name in expected.keys() - actual.keys()]
    wrong += [f"{name}: only in the model" for name in actual.keys() - expected.keys()]
    for name in expected.keys() & actual.keys():
        try:
            torch.testing.assert_close(
                actual[name], expected[name], rtol=rtol, atol=atol, equal_nan=True
            )
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    if wrong:
        listed = "\n".join(sorted(wrong))
        raise AssertionError(
            f"the model differs from {path} in {len(wrong)} of {len(expected | actual)} tensors;"
            " expected the same names, shapes, dtypes and values within the tolerances. Compare"
            f" how the two were trained, or raise rtol and atol.\n{listed}"
        )


def _tensors_of(model: Any) -> dict[str, Tensor]:
    get = getattr(model, "local_state_dict", None) or model.state_dict
    entries: Mapping[str, Any] = get()
    return {
        name: value.detach().cpu() for name, value in entries.items() if isinstance(value, Tensor)
    }
