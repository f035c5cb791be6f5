# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The documented estimator modules: classes and checks under the names of the SageMaker SDK 2.x.

Names and modules are imported when they are first asked for.

Source: launch specification, section 1.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smdistributed.sagemaker.analytics import TrainingJobAnalytics as TrainingJobAnalytics
    from smdistributed.sagemaker.inputs import TrainingInput as TrainingInput
    from smdistributed.sagemaker.instance_group import InstanceGroup as InstanceGroup
    from smdistributed.sagemaker.local import LocalSession as LocalSession
    from smdistributed.sagemaker.predictor import Predictor as Predictor
    from smdistributed.sagemaker.session import Session as Session
    from smdistributed.sagemaker.session import get_execution_role as get_execution_role

__version__ = "2.257.7"
"""The release of the SDK whose arguments the classes take; scripts look at its first numbers."""

# Where each name is.
_NAMES = {
    "InstanceGroup": "instance_group",
    "LocalSession": "local",
    "Predictor": "predictor",
    "Session": "session",
    "TrainingInput": "inputs",
    "TrainingJobAnalytics": "analytics",
    "get_execution_role": "session",
}

# Scripts write `sagemaker.inputs.TrainingInput` after `import sagemaker` alone.
_MODULES = (
    "analytics",
    "deserializers",
    "estimator",
    "exceptions",
    "framework",
    "fw_utils",
    "huggingface",
    "inputs",
    "instance_group",
    "local",
    "model",
    "predictor",
    "pytorch",
    "serializers",
    "session",
    "tensorflow",
)

__all__ = [*sorted(_NAMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _NAMES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; expected one of"
            f" {', '.join([*_NAMES, *_MODULES])}."
        )
    value = getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})
