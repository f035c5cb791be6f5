# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Brings the results of hosts whose couriers have told that their agents have ended."""

from __future__ import annotations

from collections.abc import Sequence

from smdistributed._common.errors import SmdistributedError
from smdistributed.launch.backends.hosts import UnreachableError
from smdistributed.launch.courier.mirror import Mirror, MirrorError

__all__ = ["bring_all"]


def bring_all(mirrors: Sequence[Mirror], *, has_model: bool) -> None:
    """Brings what hosts have at `/opt/ml`, as of `Hosts.bring`.

    Raises:
        UnreachableError: some of it is lost with its machine; another attempt may bring it.
        SmdistributedError: some cannot be kept here, or packed there.
    """
    names = [*(["model"] if has_model else []), "output", "checkpoints"]
    lost, problems = [], []
    for mirror in mirrors:
        try:
            mirror.bring(names)
        except MirrorError as error:
            lost.append(str(error))
        except SmdistributedError as error:
            problems.append(str(error))
    if problems:
        raise SmdistributedError("; ".join([*problems, *lost]))
    if lost:
        raise UnreachableError("; ".join(lost))
