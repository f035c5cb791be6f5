# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""This process in its job: who it is, which groups it is in, and what ranks tell each other.

Read `state` first: it holds what `smp.init()` (`initialization`) has made; `ranks` answers
questions about it. `communication` carries objects between ranks. What no framework matters for is
in `modelparallel.job`; all bytes go over the engine (`smdistributed.collectives`).
"""
