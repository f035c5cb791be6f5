# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`horovod.common.process_sets`: there is one set, of all ranks."""

from smdistributed.compat.horovod.common import ProcessSet, add_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "remove_process_set"]
