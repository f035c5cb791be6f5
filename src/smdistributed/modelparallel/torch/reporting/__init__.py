# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline did, and what one would do: `smp.report()` and `smp.plan()`.

What is made of the measurements is in `modelparallel.report`, which knows no framework; here they
are taken.

    report        of a run: what the ranks have recorded, gathered
    close_look    of one of its steps: time by module, memory at the peak
    peak_memory   beyond what was there before
    plan          before there is a pipeline
    profile       what each module costs in one microbatch
    live_bytes    which tensors live, operation by operation
    rows          modules that make sense as one thing to place
"""
