# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the host at which ranks meet has an address, asked before anybody waits for it.

Sockets of several libraries, torch's store among them, retry a name that does not resolve as they
retry a host that does not answer: for minutes. A name that a cluster is about to publish needs
seconds.
"""

import socket
import threading
import time

from smdistributed._common.errors import ConfigurationError

__all__ = ["require_resolvable"]

_LIMIT_S = 5.0
_PAUSE_S = 0.25


def require_resolvable(host: str, *, limit_s: float | None = None) -> None:
    """Returns as soon as the name has an address; asks again until the time is up.

    Args:
        host: name or address, as `MASTER_ADDR` has it.
        limit_s: seconds, 5 by default; a resolver that does not answer at all counts too.

    Raises:
        ConfigurationError: the name has no address within that time.
    """
    limit_s = _LIMIT_S if limit_s is None else limit_s
    answer = _Answer()
    # The resolver's own limits are the system's, often 10 s and longer: so not on this thread.
    threading.Thread(
        target=_ask, args=(host, limit_s, answer), name="smddp-resolver", daemon=True
    ).start()
    answer.came.wait(limit_s)
    if not answer.is_known:
        raise ConfigurationError(
            f"MASTER_ADDR={host!r} does not resolve on host {socket.gethostname()!r} within"
            f" {limit_s:g} s ({answer.reason}); expected the name or address of the host of rank 0."
            " Correct MASTER_ADDR, or let this host know the name. If all ranks are on one host,"
            " use 127.0.0.1."
        )


class _Answer:
    def __init__(self) -> None:
        self.came = threading.Event()
        self.is_known = False
        self.reason = "the resolver does not answer"


def _ask(host: str, limit_s: float, answer: _Answer) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            answer.reason = getattr(error, "strerror", None) or str(error)
        else:
            answer.is_known = True
            answer.came.set()
            return
        if time.monotonic() + _PAUSE_S >= deadline:
            answer.came.set()
            return
        time.sleep(_PAUSE_S)
