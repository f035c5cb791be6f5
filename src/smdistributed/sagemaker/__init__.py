# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The documented estimator modules: classes and checks under the names of the SageMaker SDK 2.x."""
