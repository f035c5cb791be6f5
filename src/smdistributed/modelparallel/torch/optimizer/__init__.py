# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a model on several ranks.

`distributed_optimizer` is what scripts hold. `sharding` divides its state between replicas,
`states` saves and loads it, `sixteen_bit` keeps masters in float32, `gradient_norms` clips, and
`fused` holds optimizers of our own (`smp.optimizers`).
"""
