# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs on a cluster with Slurm.

backend     the five verbs, on the machine of who has started the job
runner      the job's process, on the first node of Slurm's job
nodes       what it asks of Slurm for each attempt: a task on each node
node        the task, which starts the agent of a host
files       what lies in the job's directory for all of this
commands    Slurm's own
options     what a job asks of Slurm
waiting     what its words mean for a job that waits
"""
