# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Compile the helper that DeepSpeed compiles when it first runs on CPUs.

It goes where DeepSpeed looks for it (`TORCH_EXTENSIONS_DIR`, by default below ~/.cache), so that
the tests find it ready. Where it cannot be compiled this says so and succeeds: everything but
DeepSpeed works without it, and the test of DeepSpeed then shows the compiler's own words.
"""

from __future__ import annotations

import sys


def main() -> int:
    try:
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        ShareMemCommBuilder().load(verbose=False)
    except (ImportError, OSError, RuntimeError) as error:
        print(
            f"DeepSpeed's helper for CPUs could not be compiled ({error}); expected a C++ compiler"
            " and ninja on PATH. The tests of DeepSpeed will fail, all else is not affected.",
            file=sys.stderr,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
