# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What keeps scripts alive that were written for TensorFlow 2.3 to 2.6.

Source: TensorFlow modelparallel specification, section 6.2.
"""
