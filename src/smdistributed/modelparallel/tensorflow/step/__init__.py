# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smp.step`: binds arguments, traces, agrees with the other ranks, and runs the programs.

`step_function` is what the decorator makes; it has a program for each signature, which `building`
makes from what `graph` has traced and cut. `gradients` is how gradients are taken in a step.

Source: TensorFlow modelparallel specification, sections 3 and 5.2.
"""
