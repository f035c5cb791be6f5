# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the model parallel library.

Training toolkits list every class that `dir()` finds in this module and look for those names in a
job's stderr; the first hit names the failure of the job. Therefore this module holds exception
classes only, and imports nothing that is a class.

Each class also derives from the engine's error of the same meaning (`smdistributed._common.errors`)
or from the built-in that a Python user would catch, so either `except` works.

Source: modelparallel specification, sections 0, 1.3, 2, 3.12 and 4.
"""

from smdistributed._common import errors as _errors


class SMPError(_errors.SmdistributedError):
    """Base of all errors of the model parallel library."""


# As in dataparallel.exceptions: by this TensorFlow tells whether it can make such an error anew.
SMPError.__init__ = Exception.__init__  # type: ignore[method-assign]


class ConfigError(SMPError, _errors.ConfigurationError):
    """A parameter has a value that cannot work, alone or beside another; a `ValueError`."""


class SMPNotInitialized(SMPError, RuntimeError):
    """A function that needs `smp.init()` was called before it."""


class ModelNotPartitionedError(SMPError, RuntimeError):
    """What a rank holds was asked for before the model was partitioned."""


class MultipleDistributedModelError(SMPError, RuntimeError):
    """A second model was wrapped while the first one lives."""


class StepAborted(SMPError, RuntimeError):
    """A step ended because something raised on another rank; the message names it."""
