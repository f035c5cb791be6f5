# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Serves a model on this machine: the published contract of two routes and five functions.

    endpoints   what is known of each, in its folder: any process finds one by its name
    endpoint    the process of one: makes the model's folder, starts workers, listens
    server      the two routes
    pool        workers: started, given calls, replaced when they die
    worker      one process: loads the model, answers one call after the other
    handlers    what the user's functions are given, and what stands for those that are not there

The process of an endpoint and its workers need the packages of the extra `serve`; who starts an
endpoint, finds or deletes it, needs the standard library only.
"""
