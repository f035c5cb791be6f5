# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The documented exceptions, by the kinds of error that the engine and discovery raise.

Apart from `exceptions`, which holds classes and nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from smdistributed._common import errors
from smdistributed.dataparallel import exceptions

__all__ = ["ENGINE_ERRORS", "documented_errors"]

# What an engine's communicator takes as `errors`.
ENGINE_ERRORS: Mapping[str, type[Exception]] = {
    "configuration": exceptions.SMDDPConfigInvalid,
    "mismatch": exceptions.SMDDPMismatch,
    "peer_lost": exceptions.SMDDPPeerLost,
    "timeout": exceptions.SMDDPTimeoutError,
    "unsupported": exceptions.SMDDPUnsupported,
    "internal": exceptions.SMDDPError,
}

_BY_BASE: tuple[tuple[type[Exception], type[exceptions.SMDDPError]], ...] = (
    (errors.ConfigurationError, exceptions.SMDDPConfigInvalid),
    (errors.MismatchError, exceptions.SMDDPMismatch),
    (errors.PeerLostError, exceptions.SMDDPPeerLost),
    (errors.CollectiveTimeoutError, exceptions.SMDDPTimeoutError),
    (errors.UnsupportedError, exceptions.SMDDPUnsupported),
    (errors.SmdistributedError, exceptions.SMDDPError),
)


@contextlib.contextmanager
def documented_errors() -> Iterator[None]:
    """Turns errors of discovery and rendezvous into the documented class of the same meaning."""
    try:
        yield
    except exceptions.SMDDPError:
        raise
    except errors.SmdistributedError as error:
        documented = next(kind for base, kind in _BY_BASE if isinstance(error, base))
        raise documented(str(error)) from None  # the same text again would be all it adds
