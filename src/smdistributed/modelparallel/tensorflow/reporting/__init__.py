# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline did, and what one would do: `smp.report()` and `smp.plan()`.

What is made of the measurements is in `modelparallel.report`, which knows no framework; here they
are taken.

    report      of a run: what the ranks have recorded, gathered
    records     from what the driver keeps to what a report is made of
    plan        before there is a pipeline
    alone       all ranks' parts of a step, in one process

Source: our choice; docs/pipeline_report.md.
"""
