# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs as pods of a Kubernetes cluster.

settings    what a job asks for, and of which cluster
manifests   what a job is there, as documents
pods        what became of a pod
backend     on the machine that starts jobs: whether there is a cluster
cluster     there, too: asks for a job's pods, and follows the first one
log         of a pod
api         asks the cluster
pod         what runs in each pod
"""
