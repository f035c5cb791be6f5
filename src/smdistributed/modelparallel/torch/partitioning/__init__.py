# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""How the model gets its partition: by hand, from a file, or by what a run of it costs.

`partitioner` has one rank decide for all; `observation` watches one run of the model for it, and
`partition_report` tells the user what came of it.
"""
