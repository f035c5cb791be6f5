# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one rank of a pipeline of TensorFlow's: a list of segments, in its order.

What runs is a `Program` (`program`): which segment of which microbatch comes when, what each uses,
and where what it makes goes. It knows no model. The driver (`driver`) works the list off: calls
segments eagerly, sends and waits for messages (`wire`, `mailbox`). Where a step is called in a
user's graph, a queue takes its arguments to the driver and another one its results back (`bridge`).
Who asks for it gets a `record` of what ran when, and of what was held meanwhile.

All ranks do the same things in the same order: agree on something, run a step, or say why they
cannot. Each has the next number, by which ranks that disagree are found, what comes early is kept,
and what is left of something that has failed is dropped (`mailbox`).

Source: our choice.
"""
