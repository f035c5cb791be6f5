# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A timeline of a data parallel job: what each rank filled, reduced and waited for, and when.

Code that has something to show reports it here, and pays one attribute read when nobody records:

    from smdistributed.dataparallel import trace

    with trace.span("bucket 3", track="fill", bytes=26214400):
        ...

Training scripts may mark their steps so, `with trace.span("step 7", track="step")`; `smddptrace
summary` then says what a step spent waiting. Recording is switched on by
`smdistributed.dataparallel.start_profiler` or by the variable `SMDDP_TRACE`.

    recorder    holds what is reported, in bounded memory
    session     starts and ends a recording; the files' names
    termination last words of a process that gets SIGTERM
    chrome      what was recorded, as Chrome trace events
    files       reads and writes trace files, checks them
    clock       puts the clocks of several hosts on one
    merge       one trace of all ranks
    summary     the table that a reader wants first
    cli         the command `smddptrace`

Source: our choice; docs/tracing.md.
"""

from smdistributed.dataparallel.trace.recorder import begin, end, recorder, span

__all__ = ["begin", "end", "recorder", "span"]
