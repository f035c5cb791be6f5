# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Serves a model on a Ray cluster, by Ray Serve: each endpoint is one application there.

    endpoints   here: starts one, asks how it stands, deletes it
    deploying   here: the process that sends the model there, and ends once it is served
    jobs        here: small jobs of Ray's, which alone change what Serve serves
    package     what goes there: the record, the model, its code
    driver      there: what those jobs run
    keeper      there: an actor that keeps the package
    replica     there: one instance, an actor of Serve
    host        there: its process, which is that of an endpoint on its own machine
    messages    between them

Applications of others are never changed, and Serve itself is never shut down.
"""
