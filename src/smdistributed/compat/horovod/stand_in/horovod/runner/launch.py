# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m horovod.runner.launch`, which is horovodrun by another name."""

import sys
from typing import NoReturn

__all__ = ["run_commandline"]


def run_commandline() -> NoReturn:
    """Ends the process with a text that says what to write instead."""
    sys.exit(
        "horovodrun is not there: this horovod is the stand-in of smdistributed-open. Start the"
        " script by smddprun -np 2 python train.py; docs/horovod.md has horovodrun's options."
    )


if __name__ == "__main__":
    run_commandline()
