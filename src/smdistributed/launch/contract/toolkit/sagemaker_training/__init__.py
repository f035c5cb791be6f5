# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for the open training toolkit in a job, where that is not installed.

Scripts import `sagemaker_training.environment` to ask about their job. This folder comes last on
the path of modules of a job, and only if there is no such package.
"""
