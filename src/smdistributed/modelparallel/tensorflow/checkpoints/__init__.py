# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What is kept of a training, and how it comes back: `smp.CheckpointManager`.

A file has what a run in one process would have written: the object graph of the script's
`tf.train.Checkpoint`, with all variables of the model and all slots of the optimizer. Rank 0 writes
it, and asks the owners for their values, one after the other.

To read in this order: `manager` (what scripts call), `saving` and `restoring` (what is done),
`contents` (what belongs into a file), `optimizers` (which slots a whole optimizer has), `matching`
(what in a file belongs to what is here), `values` (values that travel), `files`, `together`.

Source: TensorFlow modelparallel specification, section 5.5.
"""
