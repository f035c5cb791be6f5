# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Where objects lie: in folders of this machine, or in an S3 store.

store       what a store can do, and the errors
folder      a folder
s3          a bucket of Amazon's S3, or of what speaks its protocol; needs boto3
problems    what its errors mean
remote      the same, through a process of its own, for an agent: that one imports no boto3
process     that process
download    many objects into a folder: whole, checked, and only what is not there yet
"""
