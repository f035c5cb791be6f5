# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A process in its job, as far as no framework matters; the rooms `job` of the frameworks use it.

`state` is what `smp.init()` has found out; `ranks` answers questions about it; `communication`
sends objects between ranks, over whatever carries a framework's bytes; `agreement` compares the
parameters of all ranks.
"""
