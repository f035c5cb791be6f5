# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters on their way from an estimator to a script.

An estimator encodes each value as text, for a request that maps text to text. The job decodes them,
keeps what is the framework's, and gives the rest to the script three times: as arguments, as
variables `SM_HP_*`, and as `SM_HPS`.

Source: launch specification, section 4.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from smdistributed._common.errors import ConfigurationError

__all__ = ["Hyperparameters", "command_line", "decode", "encode", "encode_plainly", "variable_text"]

_PREFIX = "sagemaker_"
# Neither the script's nor the framework's, though they have no prefix.
_HIDDEN = frozenset({"_tuning_objective_metric", "default_user_module_name"})
# Have the prefix, and say how the job is started; the framework has no use for them.
_OF_THE_JOB = frozenset(
    {
        "sagemaker_container_log_level",
        "sagemaker_enable_cloudwatch_metrics",
        "sagemaker_job_name",
        "sagemaker_program",
        "sagemaker_region",
        "sagemaker_s3_output",
        "sagemaker_submit_directory",
    }
)


class Hyperparameters(NamedTuple):
    """The decoded hyperparameters of a job, by who reads them.

    Attributes:
        user: of the script.
        framework: of the framework container: `SM_FRAMEWORK_PARAMS`.
        job: say how the job is started, such as `sagemaker_program`.
    """

    user: dict[str, Any]
    framework: dict[str, Any]
    job: dict[str, Any]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Hyperparameters:
        """Divides decoded hyperparameters."""
        user, framework, job = {}, {}, {}
        for key, value in values.items():
            if key in _HIDDEN or key in _OF_THE_JOB:
                job[key] = value
            elif key.startswith(_PREFIX):
                framework[key] = value
            else:
                user[key] = value
        return cls(user, framework, job)


def encode(values: Mapping[str, Any]) -> dict[str, str]:
    """The request's text of each value, as framework estimators make it: JSON.

    Args:
        values: by name; what `json` takes, and NumPy's scalars. It is not changed.

    Raises:
        ConfigurationError: a name, or a value, cannot reach a script unchanged; names it.
    """
    return {_checked(key, value): _json_of(key, value) for key, value in values.items()}


def encode_plainly(values: Mapping[str, Any]) -> dict[str, str]:
    """The request's text of each value, as the generic estimator makes it: `str()`.

    Raises:
        ConfigurationError: as of `encode`.
    """
    return {_checked(key, value): str(value) for key, value in values.items()}


def decode(texts: Mapping[str, Any]) -> dict[str, Any]:
    """The values in a request, or in `hyperparameters.json`; what is no JSON stays as it is."""
    return {key: _decoded(text) for key, text in texts.items()}


def command_line(user: Mapping[str, Any]) -> list[str]:
    """The arguments of a script: `--name value`, sorted by name, and `-n value`.

    Each is one argument, whatever is in it: no shell reads them.
    """
    arguments = []
    for key in sorted(user):
        arguments += ["-" + key if len(key) == 1 else "--" + key, _argument_text(user[key])]
    return arguments


def variable_text(value: Any) -> str:
    """A value in a variable: text as it is, None as nothing, all else as compact JSON.

    Source: launch specification, section 7.2.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _argument_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={value[key]}" for key in sorted(value))
    return str(value)


def _decoded(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json_of(key: str, value: Any) -> str:
    try:
        text = json.dumps(value, default=_plain)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"hyperparameter {key!r} is {type(value).__name__} {value!r:.200}, which JSON cannot"
            f" hold ({error}); expected numbers, text, booleans, None, and lists and dicts of them."
            " Pass str(value), and make the object of it in the script."
        ) from None
    return text


def _plain(value: Any) -> Any:
    """What JSON takes instead of a NumPy scalar, which is a number to its user."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _checked(key: Any, value: Any) -> str:
    """The name; it becomes an argument and a variable, neither of which takes everything."""
    if not isinstance(key, str):
        raise ConfigurationError(
            f"a hyperparameter has the name {key!r} of type {type(key).__name__}; expected text."
        )
    if not key or "=" in key or _flaw(key):
        raise ConfigurationError(
            f"a hyperparameter has the name {key!r}, and the environment variable"
            f" {'SM_HP_' + key.upper()!r} cannot be made of it; expected a name that is not empty,"
            " without '=', NUL characters and halves of surrogate pairs."
        )
    flaw = _flaw(value)
    if flaw:
        raise ConfigurationError(
            f"hyperparameter {key!r} has {flaw}, which neither arguments nor environment variables"
            " can hold; expected text without. Pass such data as an input channel."
        )
    return key


def _flaw(value: Any) -> str:
    """What is in it that a process cannot be given, in words; empty if nothing is."""
    if isinstance(value, dict):
        return next(filter(None, map(_flaw, [*value, *value.values()])), "")
    if not isinstance(value, str):
        return ""
    if "\0" in value:
        return "a NUL character"
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return "half of a surrogate pair"
    return ""
