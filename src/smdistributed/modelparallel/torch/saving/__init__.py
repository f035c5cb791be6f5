# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Who saves what.

`state_dicts` are the model as dictionaries, `files` and `rank_files` are `smp.save` and `smp.load`,
`checkpoints` are directories with a model, its optimizer and what a script adds.
"""
