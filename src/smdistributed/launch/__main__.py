# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m smdistributed.launch` is `smddprun`."""

import sys

from smdistributed.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
