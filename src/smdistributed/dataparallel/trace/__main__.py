# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m smdistributed.dataparallel.trace` is `smddptrace`."""

import sys

from smdistributed.dataparallel.trace.cli import main

if __name__ == "__main__":
    sys.exit(main())
