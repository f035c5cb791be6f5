# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What `checkpoint_api` is made of.

`agreement` lets all ranks succeed or fail together; `directory` keeps checkpoints whole, and knows
no ranks; `parts` are the files of a partial checkpoint; `safetensors_files` are those that
Hugging Face reads.
"""
