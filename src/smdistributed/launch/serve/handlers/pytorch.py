# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Models of PyTorch: `model_fn`, `input_fn`, `predict_fn`, `output_fn`, or `transform_fn`.

Source: launch specification, section 10.4.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from smdistributed.launch.serve.handlers.answers import InferenceError, made_answer
from smdistributed.launch.serve.handlers.bodies import (
    CSV,
    JSON,
    accepted,
    array_of,
    body_of,
    main_type,
    text_of,
)
from smdistributed.launch.serve.handlers.functions import Context, import_program, with_context
from smdistributed.launch.serve.messages import Answer, Call

__all__ = ["PyTorchHandlers"]

# How many arguments each has, without the context.
_NUM_ARGUMENTS = {"model_fn": 1, "input_fn": 2, "predict_fn": 2, "output_fn": 2, "transform_fn": 4}
_DEFAULT_FILE = "model.pt"


class PyTorchHandlers:
    """Answers with one model of PyTorch.

    Args:
        model_dir: the model's folder; its code is below `code/`.

    Raises:
        TypeError: a function has the wrong number of parameters.
        ValueError: there are functions that exclude each other.
    """

    def __init__(self, model_dir: Path) -> None:
        self._model_dir = str(model_dir)
        program = os.environ.get("SAGEMAKER_PROGRAM", "")
        module = import_program(model_dir / "code", program)
        self._before = getattr(module, "pre_model_fn", None)
        self._warm_up = getattr(module, "model_warmup_fn", None)
        functions = _functions(module)
        self._last = "transform_fn" if "transform_fn" in functions else "output_fn"
        self._model_fn = functions["model_fn"]
        self._transform = functions.get("transform_fn") or _chained(
            functions["input_fn"], functions["predict_fn"], functions["output_fn"]
        )
        self._accept = os.environ.get("SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT", JSON)
        self._properties = {
            "model_dir": self._model_dir,
            "gpu_id": torch.cuda.current_device() if torch.cuda.is_available() else None,
            "batch_size": 1,
        }
        self._model: Any = None

    def load(self) -> None:
        """Loads the model."""
        if self._before is not None:
            self._before(self._model_dir)
        self._model = self._model_fn(self._model_dir, Context(self._properties, {}))
        if self._warm_up is not None:
            self._warm_up(self._model_dir, self._model)

    def answer(self, call: Call) -> Answer:
        """Answers a call."""
        content_type = call.content_type or JSON
        accept = accepted(call.accept, self._accept)
        body = text_of(call.body, content_type)
        context = Context(self._properties, call.headers)
        said = self._transform(self._model, body, content_type, accept, context)
        data, kind = said if isinstance(said, tuple) else (said, accept)
        return made_answer(self._last, data, kind)


def _functions(module: ModuleType | None) -> dict[str, Callable[..., Any]]:
    """By name, each with the context as its last argument."""
    given = {name: getattr(module, name, None) for name in _NUM_ARGUMENTS}
    if given["transform_fn"] and any(
        given[name] for name in ("input_fn", "predict_fn", "output_fn")
    ):
        raise ValueError(
            "Cannot use transform_fn implementation in conjunction with input_fn, predict_fn,"
            " and/or output_fn implementation"
        )
    defaults = {
        "model_fn": _load,
        "input_fn": _input,
        "predict_fn": _predict,
        "output_fn": _output,
        "transform_fn": None,
    }
    return {
        name: with_context(function, _NUM_ARGUMENTS[name])
        for name in _NUM_ARGUMENTS
        if (function := given[name] or defaults[name]) is not None
    }


def _chained(
    input_fn: Callable[..., Any], predict_fn: Callable[..., Any], output_fn: Callable[..., Any]
) -> Callable[..., Any]:
    """The three as one `transform_fn`."""

    def transform(model: Any, body: Any, content_type: str, accept: str, context: Context) -> Any:
        data = input_fn(body, content_type, context)
        return output_fn(predict_fn(data, model, context), accept, context)

    return transform


# --- what stands for a function that is not there -------------------------------------------------


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _load(model_dir: str) -> Any:
    """The TorchScript of `model.pt`, or of the only `.pt` or `.pth`."""
    folder = Path(model_dir)
    path = folder / _DEFAULT_FILE
    if not path.is_file():
        found = sorted(each for each in folder.iterdir() if each.suffix in (".pt", ".pth"))
        if len(found) != 1:
            names = [each.name for each in found]
            raise ValueError(
                f"Exactly one .pth or .pt file is required for PyTorch models: {names}"
            )
        (path,) = found
    try:
        return torch.jit.load(str(path), map_location=_device())  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ValueError(
            f"{path.name} could not be loaded as TorchScript: {str(error).splitlines()[0]};"
            " expected what torch.jit.save() writes. For weights alone, or another format, write a"
            " model_fn(model_dir) that loads them, and give deploy() its file as entry_point."
        ) from None


def _input(body: str | bytes, content_type: str) -> torch.Tensor:
    array = array_of(body, content_type)
    if main_type(content_type) in (JSON, CSV):
        array = _as_float(array)
    return torch.from_numpy(np.array(array)).to(_device())


def _as_float(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind not in "biuf":
        raise InferenceError(400, f"The body holds {array.dtype} values; expected numbers.")
    return array.astype(np.float32)


def _predict(data: Any, model: Any) -> Any:
    with torch.no_grad():
        model.to(_device())
        model.eval()
        return model(data)


def _output(prediction: Any, accept: str) -> tuple[bytes, str]:
    if isinstance(prediction, torch.Tensor):
        prediction = prediction.detach().cpu().numpy()
    return body_of(prediction, accept)
