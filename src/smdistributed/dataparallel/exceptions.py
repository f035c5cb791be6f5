# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the data parallel library.

Training toolkits list every class that `dir()` finds in this module and look for those names in a
job's stderr; the first hit names the failure of the job. Therefore this module holds exception
classes only, imports nothing that is a class, and no name is a part of another one or of ordinary
log text.

Each class also derives from the engine's error of the same meaning (`smdistributed._common.errors`)
and from the built-in that a Python user would catch, so either `except` works.

Source: dataparallel specification, section 9.
"""

from smdistributed._common import errors as _errors


class SMDDPError(_errors.SmdistributedError):
    """Base of all errors of the data parallel library."""


# What the built-in classes beside it bring does the same, and is another object: by that TensorFlow
# tells whether it can make an error of this class anew, with the user's lines in its text.
SMDDPError.__init__ = Exception.__init__  # type: ignore[method-assign]


class SMDDPTimeoutError(SMDDPError, _errors.CollectiveTimeoutError, TimeoutError):
    """A collective, or ranks that make a group, waited longer than `SMDDP_TIMEOUT_SECONDS`.

    Where a rank does not even reach rank 0's address, torch's own `DistStoreError` says so.
    """


class SMDDPNotInitialized(SMDDPError, RuntimeError):
    """A function that needs the process group was called before initialisation."""


class SMDDPAlreadyInitialized(SMDDPError, RuntimeError):
    """Initialisation was called a second time."""


class SMDDPConfigInvalid(SMDDPError, _errors.ConfigurationError, ValueError):
    """An environment variable, buffer size, rank or argument has a value that cannot work."""


class SMDDPUnsupported(SMDDPError, _errors.UnsupportedError, NotImplementedError):
    """The request is deliberately not supported; the message says what to use instead."""


class SMDDPPeerLost(SMDDPError, _errors.PeerLostError, ConnectionError):
    """A rank died or a connection to it closed; the group cannot be used again."""


class SMDDPMismatch(SMDDPError, _errors.MismatchError, RuntimeError):
    """Ranks disagree on operation, order, shape, dtype, reduce operation or root."""
