# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What model parallelism decides before anything is done: pure functions, for every framework.

`config` reads the user's parameters, `topology` says which rank holds what, `partition` says which
module or operation goes where (`partition_file` stores that of modules), and `schedules` say which
rank does what when.
"""
