# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share.

A benchmark is a folder of programs, and Python finds the modules of a program's own folder only. So
each program that uses this package adds the folder above it to `sys.path` first.
"""
