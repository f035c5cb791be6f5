# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What a pipeline does with its time and memory, in words, pictures and for Perfetto.

`smp.report()` makes a `Report` of what the ranks have recorded, `smp.plan()` one of what a model
would do on ranks that are not there. No framework is imported here: the command `smpreport` reads
on any machine what was recorded on another.

    records      what a rank has recorded, and its file
    timeline     steps of all ranks on one clock; the way of a microbatch through them
    segments     what ranks run of a step that is cut beforehand, and what follows
    programs     what a report says of these
    costs        what a model's modules cost; what a partition of them leads to
    advice       what to change, and what that would bring
    document     the report: text, file
    plans        several of pipelines that are not there
    recording    what recording has in common, whatever the framework
    drawing      PNG
    perfetto     trace events, through the traces of smdistributed.dataparallel
    cli          the command

Source: our choice; docs/pipeline_report.md.
"""
