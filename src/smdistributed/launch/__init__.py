# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smddprun`: starts the processes of a job on this machine, or joins one that is being started.

Standard library only; no framework and no compiled part is needed, so it runs on a head node too.

    options     what the command line says, also in mpirun's words
    environment what each process is told
    supervisor  starts, watches and ends the processes
    output      their lines, prefixed and whole
    orphans     nothing survives the supervisor
    traces      merges the ranks' timelines
    check       what a bug report needs
    cli         the commands
"""
