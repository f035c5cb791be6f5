# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs as pods of a Kubernetes cluster.

manifests   what a job is there, as documents
"""
