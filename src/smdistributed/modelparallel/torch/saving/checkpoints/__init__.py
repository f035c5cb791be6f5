# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.save_checkpoint()` and `smp.resume_from_checkpoint()`.

`save_and_resume` writes and reads all that is in a checkpoint; `agreement` lets all ranks succeed
or fail together; `directory` keeps checkpoints whole, says what is in one (`Layout`), and knows no
ranks; `parts` are the files of a partial checkpoint, `safetensors_files` those that Hugging Face
reads; `resuming` finds what to read.
"""
