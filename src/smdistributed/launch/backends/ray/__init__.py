# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster.

settings    what a user says of it
backend     on the machine that starts jobs: sends them there, and follows them
driver      the job's process in the cluster; a placement group for its hosts
cluster     a cluster that `smd cluster up` starts over SSH, and ends
node        what it does at each machine
"""
