# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Messages between the ranks of a pipeline: sent, waited for, and given to whom they are for.

Ranks end a step one after the other, so a message may be of a step that this rank has not begun, or
of one that it has left. The number of the step in each tells.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from smdistributed._common.log import get_logger
from smdistributed.modelparallel.exceptions import SMPError
from smdistributed.modelparallel.messages.channel import Channel, Incoming
from smdistributed.modelparallel.messages.waiting import Wait
from smdistributed.modelparallel.torch.pipeline.loop.recorder import Recorder
from smdistributed.modelparallel.torch.pipeline.messages import messages
from smdistributed.modelparallel.torch.pipeline.messages.wire import pack, unpack

__all__ = ["Router"]

_log = get_logger()

# How long a rank that leaves waits for those who do not.
_PARTING_S = 1.0

_NO_CHANGE = contextlib.nullcontext()


class _Arrived(NamedTuple):
    step: int
    source: int
    message: messages.Message


class Router:
    """Of one rank of a pipeline.

    Args:
        rank, size: in the pipeline.
        channel: between its ranks.
        device: of this rank: where tensors that arrive go, if they were on the sender's.
        timeout_s: how long to wait for one message.
        predecessor: what used the channel before, and is closed.

    Attributes:
        handlers: by type of message, what deals with one of the step under way, from a rank; the
            table is in `pipeline.handlers`.
        of_ended_step: what deals with a Call of a step that has ended.
        recorder: what counts messages, or None.
        is_step_over: a handler has set it: what comes from now on is not of this step.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        channel: Channel,
        device: torch.device,
        timeout_s: float,
        predecessor: Router | None = None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._channel = channel
        self._device = None if device.type == "cpu" else device
        self._timeout_s = timeout_s
        self._step: int = predecessor._step if predecessor else 0
        # Of steps that this rank has not begun.
        self._early: list[_Arrived] = predecessor._early if predecessor else []
        self._left: set[int] = set()
        self.handlers: Mapping[type[messages.Message], Callable[[int, Any], None]] = {}
        self.of_ended_step: Callable[[int, messages.Call], None] = lambda *_: None
        self.recorder: Recorder | None = None
        self.is_step_over = False

    def begin_step(self) -> None:
        """From now on messages are of the next step."""
        self._step += 1
        self.is_step_over = False

    def take_early(self) -> None:
        """Deals with what has come before this rank began the step."""
        early, self._early = self._early, []
        for arrived in early:
            self._handle(arrived)

    def post(self, rank: int, message: messages.Message) -> None:
        """Sends a message of this step; waits for nobody.

        Raises:
            TypeError: a tensor cannot travel.
        """
        encoded = message.encode()
        header, segments, kept = pack(message.number, self._step, *encoded, device=self._device)
        if self.recorder is not None:  # before: by the time afterwards it may have come
            num_bytes = len(header) + sum(size for _, size in segments)
            self.recorder.sent(rank, type(message).__name__, num_bytes)
        self._channel.post_message(rank, header, segments)
        del kept

    @property
    def others(self) -> Iterator[int]:
        """All ranks of the pipeline but this one."""
        return (rank for rank in range(self._size) if rank != self._rank)

    def post_to_all(self, message: messages.Message) -> None:
        """`post` to all other ranks."""
        for rank in self.others:
            self.post(rank, message)

    def poll(self) -> None:
        """Deals with the messages that have come; after the step's end its leader may be gone."""
        while not self.is_step_over and (message := self._channel.next_message(0.0)) is not None:
            self._open(message)

    def wait(self, awaited: Callable[[], str]) -> None:
        """Waits for a message, and deals with it.

        Args:
            awaited: what is expected, in words; empty if nothing is: then there is no limit.

        Raises:
            SMPError: none has come in time.
        """
        self._open(Wait(awaited, self._timeout_s, SMPError).next_message(self._channel))

    def part(self) -> None:
        """Waits a moment for the others to end their last step, before the channel is closed.

        Who has not heard of the end yet would take this rank for lost. One that has, but does not
        leave, is not waited for longer.
        """
        self._step += 1  # whatever else may come is of an earlier one
        end = time.monotonic() + _PARTING_S
        try:
            self.post_to_all(messages.Leave())
            while len(self._left) < self._size - 1:
                message = self._channel.next_message(max(0.0, end - time.monotonic()))
                if message is None:
                    return
                self._open(message)
        except Exception as error:  # they are gone, which is what was waited for
            _log.debug("left the pipeline without the others: %s", error)

    def abort(self, reason: str) -> None:
        """Ends the channel on every rank: whoever waits raises."""
        self._channel.abort(reason)

    def _open(self, message: Incoming) -> None:
        # Whoever is suspended may be in inference mode; whom the message is for may be not.
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NO_CHANGE:
            letter = unpack(message, self._device)
            content = messages.decode(letter.kind, letter.ints, letter.tensors, letter.pickled)
            self._handle(_Arrived(letter.step, letter.source, content))

    def _handle(self, arrived: _Arrived) -> None:
        step, source, message = arrived
        if isinstance(message, messages.Leave):
            self._left.add(source)
        elif step == self._step:
            self.handlers[type(message)](source, message)
        elif step > self._step:
            self._early.append(arrived)  # its sender has heard of the step's end before this rank
        elif isinstance(message, messages.Call):  # of a step that was aborted; but what it defines
            self.of_ended_step(source, message)
