# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A move is alone among all calls, and calls that come meanwhile wait for it."""

from __future__ import annotations

import os
import threading

from smdistributed.dataparallel.torch.adoption.gate import Gate, gate

_PATIENCE_S = 60.0


def test_a_call_is_alone_only_if_no_other_is_inside() -> None:
    gate = Gate()
    with gate.alone() as is_alone:
        assert not is_alone, "it is not inside"
    with gate.call():
        with gate.alone() as is_alone:
            assert is_alone
        with gate.call(), gate.alone() as is_alone:
            assert not is_alone
        with gate.alone() as is_alone:
            assert is_alone


def test_calls_wait_for_a_move() -> None:
    gate = Gate()
    entered = threading.Event()

    def call() -> None:
        with gate.call():
            entered.set()

    thread = threading.Thread(target=call)
    with gate.call(), gate.alone() as is_alone:
        assert is_alone
        thread.start()
        # A wait that ends proves nothing; one that the gate lets through fails at once.
        assert not entered.wait(0.05)
    assert entered.wait(_PATIENCE_S)
    thread.join()


def test_a_forked_child_begins_with_nobody_inside() -> None:
    with gate.call(), gate.alone():
        child = os.fork()
        if child == 0:
            with gate.call(), gate.alone() as is_alone:
                os._exit(0 if is_alone else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
