# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Requests and responses, compared with the service's own model, where botocore is installed.

botocore brings a description of each operation: names of fields, types, least values. Nothing here
needs it; without it nothing is compared.

Source: launch specification, sections 1 and 7.4.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger

__all__ = ["check_request", "check_response"]

_log = get_logger()

# What our responses have beside the service's own fields, and what they may lack: the model of a
# job that has made none.
_OURS = ("Local", "SessionChainingConfig", "Tags")
_MAY_LACK = '"ModelArtifacts"'


def check_request(operation: str, request: Mapping[str, Any]) -> None:
    """Refuses a request that the service's model does not allow.

    A field that the installed botocore does not know is no fault: it may be older than the field.

    Args:
        operation: such as `CreateTrainingJob`.
        request: as it would be sent.

    Raises:
        ConfigurationError: (a ValueError) names each field that is wrong.
    """
    model = _model(operation)
    if model is None:
        return
    faults = [
        line
        for line in _faults(request, model.input_shape)
        if not line.startswith("Unknown parameter")
    ]
    if faults:
        raise ConfigurationError(
            f"the request {operation} is not one that the service's model allows, as the installed"
            f" botocore has it: {'; '.join(faults)}. Change the arguments that these fields are"
            " made of."
        )


def check_response(operation: str, response: Mapping[str, Any]) -> None:
    """Warns of a response that is not like the service's. It is still better than none.

    Args:
        operation: such as `DescribeTrainingJob`.
        response: as it is given to a caller.
    """
    model = _model(operation)
    if model is None:
        return
    theirs = {key: value for key, value in response.items() if key not in _OURS}
    for line in _faults(theirs, model.output_shape):
        if not (line.startswith("Missing required") and line.endswith(_MAY_LACK)):
            _log.warning("the response of %s is not like the service's: %s", operation, line)


@functools.cache
def _model(operation: str) -> Any:
    """The operation, as botocore describes it; None without botocore."""
    service = _service()
    return service and service.operation_model(operation)


@functools.cache
def _service() -> Any:
    if importlib.util.find_spec("botocore") is None:
        return None
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    return ServiceModel(Loader().load_service_model("sagemaker", "service-2"), "sagemaker")


def _faults(values: Mapping[str, Any], shape: Any) -> list[str]:
    from botocore.validate import ParamValidator

    report: str = ParamValidator().validate(dict(values), shape).generate_report()
    return report.splitlines()
