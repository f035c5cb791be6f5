# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save_checkpoint()` and `smp.resume_from_checkpoint()`.

`api` has these functions; `agreement` lets all ranks succeed or fail together; `directory` keeps
checkpoints whole, and knows no ranks; `parts` are the files of a partial checkpoint;
`safetensors_files` are those that Hugging Face reads.
"""
