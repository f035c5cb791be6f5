# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.runner`: to start ranks is smddprun's work."""

from typing import Any, NoReturn

from smdistributed.dataparallel.exceptions import SMDDPUnsupported

__all__ = ["run"]


def run(*_: Any, **__: Any) -> NoReturn:
    """Raises `SMDDPUnsupported`: a function is not sent to processes here."""
    raise SMDDPUnsupported(
        "horovod.run is not there: a function is not sent to processes here. Write the training"
        " into a script, and start that: smddprun -np 2 train.py"
    )
