# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one rank: calls the segments of its list, and exchanges tensors with other ranks.

Sends never wait, and the list is the same in every step: so whoever made it can say beforehand that
it does not block, and sums do not depend on what was faster. A rank to which nothing comes back
waits for word that there is room for its next microbatch, so that what it sends does not pile up.

A step ends on all ranks or on none. Rank 0 hears from each that it has run its list, and tells all;
until then an error anywhere ends the step everywhere. Then variables that segments assign are as
they were before it. So does an agreement: else a rank that is interrupted when it has told its
value would leave the others to go on without it.

Source: our choice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensorflow.python.eager.record import stop_recording  # it is not public

from smdistributed._common.errors import PeerLostError
from smdistributed._common.log import get_logger
from smdistributed.dataparallel.exceptions import SMDDPMismatch
from smdistributed.modelparallel.exceptions import StepAborted
from smdistributed.modelparallel.messages.channel import Channel, Incoming
from smdistributed.modelparallel.tensorflow.run.errors import text_of, with_line
from smdistributed.modelparallel.tensorflow.run.gathering import Gathered, Uses
from smdistributed.modelparallel.tensorflow.run.mailbox import EQUALLY_MANY, Mailbox, Receive
from smdistributed.modelparallel.tensorflow.run.members import Member
from smdistributed.modelparallel.tensorflow.run.plan import Plan, Turn
from smdistributed.modelparallel.tensorflow.run.program import Program
from smdistributed.modelparallel.tensorflow.run.record import StepRecord
from smdistributed.modelparallel.tensorflow.run.wire import (
    Agreement,
    Header,
    Kind,
    content_of,
    room_header,
    tensor_header,
    tensor_of,
)

__all__ = ["Driver", "Telling"]

T = TypeVar("T")

_LEADER = 0
# What the engine says of a rank that has ended in order, as one without batches does.
_HAS_LEFT = "left the group"


@dataclass
class _Doing:
    """What is under way on this rank: an agreement, a step, or nothing.

    Attributes:
        does: what this is, in words.
        program, plan: of a step.
        mark: of its batch.
        places: its tensors; see `Plan`.
        turn: the one that it runs now.
        record: what is kept of it, if somebody asks for that.
        num_done: how many other ranks have run their lists, or have what all bring, as far as the
            leader has heard.
        has_ended: the leader has heard so of all: it cannot fail any more.
    """

    does: str = ""
    program: Program | None = None
    plan: Plan | None = None
    mark: int = 0
    places: list[Any] = field(default_factory=list)
    turn: Turn | None = None
    record: StepRecord | None = None
    num_done: int = 0
    has_ended: bool = False


class Driver:
    """Of one rank of a group, whose ranks do the same things in the same order.

    Any thread may call it, one at a time.

    Args:
        channel: between the ranks, the native communicator; nobody else uses its messages.
        rank: in the group.
        members: its ranks.
        timeout_s: how long a step may wait for one tensor.
        stall_s: after how long the log says who waits for whom; 0 for never.

    Attributes:
        failure: of the last step that failed, in words: class and text, beginning with the rank
            where it was.
        otherwise: on rank 0, the ranks whose mark in the last step was another than its own.
        num_failures: how often something has failed here that the other ranks hear of.
        agreed: the number of the last agreement that has ended on all ranks.
    """

    def __init__(
        self,
        channel: Channel,
        rank: int,
        members: Sequence[Member],
        timeout_s: float = 1800.0,
        stall_s: float = 30.0,
    ) -> None:
        self._rank = rank
        self._members = list(members)
        names = [str(member) for member in members]
        self._mail = Mailbox(channel, rank, names, timeout_s, stall_s)
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()
        self._now = _Doing()
        self._records: deque[StepRecord] | None = None
        self.failure = ""
        self.otherwise: list[int] = []
        self.num_failures = 0
        self.agreed = 0

    @property
    def number(self) -> int:
        """Of what was done last; the same on all ranks that have done it."""
        return self._mail.number

    @property
    def steps(self) -> int:
        """How many have ended well; the same on all ranks that know of it."""
        return self._mail.steps

    # --- a step ----------------------------------------------------------------------------------

    def run(
        self,
        program: Program,
        pieces: Sequence[Sequence[Any]],
        mark: int = 0,
        uses: Uses | None = None,
    ) -> list[list[Any]]:
        """Runs a step, of which every rank of the group has its own program of the same number.

        Args:
            pieces: by microbatch, the arguments: eager tensors.
            mark: of the batch, below 2**32: whose is another's at the end, `otherwise` tells.
            uses: what this rank's results are used for; None: each is used.

        Returns:
            By microbatch, this rank's results. With `uses` one row more: the sums.

        Raises:
            Exception: what a segment of this rank raised; its text begins with rank and segment.
            StepAborted: another rank has failed; the text begins with that rank and its segment.
            SMDDPMismatch: another rank runs something else.
            SMDDPPeerLost: another rank is gone.
            SMDDPTimeoutError: another rank has not sent what this one waits for.
            ValueError: the pieces are not those of the program.
        """
        does = f"runs step {program.name}"
        self.require_outside(does)
        with self._lock, stop_recording():
            return self._do_together(
                does, self._take_of_step, lambda: self._run(program, pieces, mark, uses)
            )

    def _run(
        self,
        program: Program,
        pieces: Sequence[Sequence[Any]],
        mark: int,
        uses: Uses | None,
    ) -> list[list[Any]]:
        self._require_pieces(program, pieces)
        self._begin_step(program, pieces)
        self._now.mark, self.otherwise = mark, []
        assert program.plan is not None
        saved = [variable.read_value() for variable in program.changed]
        try:
            self._mail.take_early()
            results = self._run_turns(program, program.plan, Gathered(program, uses))
            record = self._now.record
            if record is not None:
                record.has_told()
            try:
                self._end_together(program.number)
            finally:
                if self._now.has_ended:
                    self._mail.steps += 1
            if self._records is not None and record is not None:
                record.has_ended(self._mail.steps)
                self._records.append(record)
        except BaseException:
            if not self._now.has_ended:
                for variable, value in zip(program.changed, saved, strict=True):
                    variable.assign(value)
            raise
        return results

    @contextmanager
    def recording(self, most: int | None = None) -> Iterator[deque[StepRecord]]:
        """While it is open, what this rank does in steps that end well is kept.

        Then it also takes messages before it needs them, so that what has come is counted. Each
        record holds its program.

        Args:
            most: records to keep, the last ones; None: all.
        """
        records: deque[StepRecord] = deque(maxlen=most)
        with self._lock:
            before, self._records = self._records, records
        try:
            yield records
        finally:
            with self._lock:
                self._records = before

    def _require_pieces(self, program: Program, pieces: Sequence[Sequence[Any]]) -> None:
        expected = [len(program.arguments)] * program.microbatches
        given = [len(each) for each in pieces]
        if given != expected:
            raise ValueError(
                f"step {program.name} got pieces of {given} tensors; expected {expected}. This is a"
                " defect of smdistributed: please report it with this message."
            )

    def _begin_step(self, program: Program, pieces: Sequence[Sequence[Any]]) -> None:
        is_first = program.plan is None
        if is_first:
            program.plan = Plan(program)
            self._names[program.number] = program.name
        now = self._now
        now.plan = program.plan
        now.program = program
        now.record = None if self._records is None else StepRecord(program, is_first)
        arguments = [tensor for each in pieces for tensor in each]
        now.places = arguments + [None] * (program.plan.num_places - len(arguments))

    def _run_turns(self, program: Program, plan: Plan, results: Gathered) -> list[list[Any]]:
        now = self._now
        places = now.places
        post = self._mail.channel.post_message
        number = self._mail.number
        record = now.record
        for turn in plan.turns:
            now.turn = turn
            if record is not None:
                self._mail.take_what_has_come()
            for place, _ in turn.awaited:
                if places[place] is None:
                    self._wait_for_inputs(turn)
                    if record is not None:
                        record.has_waited()
                    break
            self._mail.require_no_interrupt()
            if record is not None:
                record.begin(turn)
            outputs = turn.call([places[place] for place in turn.inputs])
            for output, edge, destinations in turn.sends:
                header, array = tensor_header(
                    outputs[output], program.number, number, edge, turn.microbatch
                )
                body = [(array.ctypes.data, array.nbytes)] if array.nbytes else []
                for destination in destinations:
                    post(destination, header, body)
                    if record is not None:
                        record.send(destination, "Tensor", len(header) + array.nbytes)
            if record is not None:
                record.made(turn, outputs)
            for output, place in turn.keeps:
                places[place] = outputs[output]
            for output, result in turn.results:
                results.take(turn.microbatch, result, outputs[output])
            for place in turn.last:
                places[place] = None
            del outputs  # or they would live until the next turn has ended
            for destination in turn.tells_room:
                header = room_header(program.number, number, turn.microbatch)
                post(destination, header, [])
                if record is not None:
                    record.send(destination, "Room", len(header))
            if record is not None:
                record.end(turn)
        now.turn = None
        return results.all()

    def _wait_for_inputs(self, turn: Turn) -> None:
        places = self._now.places
        self._mail.wait_for(
            lambda: all(places[place] is not None for place, _ in turn.awaited),
            lambda: self._missing(turn),
        )

    def _missing(self, turn: Turn) -> str:
        places = self._now.places
        sources = {source for place, source in turn.awaited if places[place] is None}
        return f"what {_words(turn)} needs of {self._named(sources)}"

    def _take_of_step(self, source: int, fields: Header, header: bytes, message: Incoming) -> None:
        now = self._now
        program, plan = now.program, now.plan
        assert program is not None
        assert plan is not None
        if fields.kind == Kind.AGREE or fields.program != program.number:
            raise self._mismatch(source, fields, header)
        if fields.kind == Kind.ROOM:
            now.places[plan.room[source] + fields.microbatch] = True
        elif fields.kind == Kind.TENSOR:
            place = plan.received[fields.edge][0] + fields.microbatch
            if now.places[place] is not None:
                raise RuntimeError(
                    f"{self._members[source]} sent edge {fields.edge} of microbatch"
                    f" {fields.microbatch} twice; expected once. This is a defect of smdistributed:"
                    " please report it with this message."
                )
            now.places[place] = tensor_of(message, header)
            if now.record is not None:
                now.record.hold(place, fields.microbatch, message.nbytes)
        else:
            self._take_end(source, fields, header)

    def _take_end(self, source: int, fields: Header, header: bytes) -> None:
        now = self._now
        if fields.kind == Kind.DONE:
            now.num_done += 1
            if content_of(header) != now.mark:
                self.otherwise.append(source)
        else:
            now.has_ended = True

    def _end_together(self, number: int) -> None:
        """Returns when all ranks have run their lists of a program, or have all that they agree on.

        Args:
            number: of the program; 0 for an agreement.
        """
        mail = self._mail
        if self._rank != _LEADER:
            self._wait_for_verdict(number)
            return
        mail.wait_for(
            lambda: self._now.num_done == mail.size - 1, lambda: "the others to run their parts"
        )
        self._now.has_ended = True  # from here on nobody can undo it
        try:
            for rank in mail.others:
                mail.post(rank, Kind.END, number)
        except KeyboardInterrupt:
            mail.channel.abort("interrupted by its user while a step ended")
            raise

    def _wait_for_verdict(self, number: int) -> None:
        """Tells the leader that this rank has run its list; returns when the step has ended well.

        Of an interrupt now the leader may hear too late.
        """

        def wait() -> None:
            leader = f"{self._members[_LEADER]} to say that all ranks have run their parts"
            self._mail.wait_for(lambda: self._now.has_ended, lambda: leader)

        try:
            self._mail.post(_LEADER, Kind.DONE, number, self._now.mark)
            wait()
        except KeyboardInterrupt as error:
            self._mail.post(_LEADER, Kind.ABORT, content=self.text_for_others(error))
            try:
                self._mail.end_interrupt()
                wait()
            except StepAborted:
                pass
            raise

    # --- agreements ------------------------------------------------------------------------------

    def agree(self, does: str, value: Any) -> list[Any]:
        """What each rank of the group brings, by rank.

        Args:
            does: what this rank does, for people, as "traces step f for a new signature"; the same
                on all ranks.
            value: any that pickles.

        Raises:
            SMDDPMismatch: another rank does something else.
            StepAborted: another rank cannot (`refuse`).
            SMDDPPeerLost, SMDDPTimeoutError: another rank is gone, or does not come.
            KeyboardInterrupt: perhaps when all agree, and the others go on to what comes next: they
                hear of it where this is called in `telling`.
            RuntimeError: as of `require_outside`.
        """
        self.require_outside(does)
        with self._lock:
            values: dict[int, Any] = {self._rank: value}

            def take(source: int, fields: Header, header: bytes, message: Incoming) -> None:
                if fields.kind in (Kind.DONE, Kind.END) and not fields.program:
                    self._take_end(source, fields, header)
                    return
                if fields.kind != Kind.AGREE:
                    raise self._mismatch(source, fields, header)
                brought: Agreement = content_of(header)
                if brought.does != does:
                    raise self._mismatch(source, fields, header)
                values[source] = brought.value

            def missing() -> str:
                absent = [rank for rank in range(self._mail.size) if rank not in values]
                return f"{self._named(absent)} to do the same: this rank {does}"

            def do() -> None:
                for rank in self._mail.others:
                    self._mail.post(rank, Kind.AGREE, content=Agreement(does, value))
                self._mail.take_early()
                self._mail.wait_for(lambda: len(values) == self._mail.size, missing)
                try:
                    self._end_together(0)
                finally:
                    if self._now.has_ended:
                        self.agreed = self.number

            self._do_together(does, take, do)
            return [values[rank] for rank in range(self._mail.size)]

    def telling(
        self,
        also: Callable[[BaseException], None] = lambda _: None,
        until: Callable[[], int] = lambda: 0,
    ) -> Telling:
        """While it is open, what is raised here is told to the others, as of `refuse`.

        Args:
            also: called with what is raised.
            until: a count. When it has grown, the others have done all that they do in this block,
                and do not hear of what is raised: they would take it for the end of what comes
                next, and be one thing behind.
        """
        return Telling(self, also, until)

    def refuse(self, error: BaseException) -> None:
        """This rank cannot do what comes next: the others end it with this cause.

        The error is the caller's to raise. It does not wait, and raises nothing.
        """
        if self._is_in_a_segment():
            return  # which fails with it, or goes on
        with self._lock:
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        self._mail.begin(lambda *_: None)
        self.num_failures += 1
        self.failure = self.text_for_others(error)
        self._mail.tell_abort(self.failure)
        self._mail.end()

    def text_for_others(self, error: BaseException) -> str:
        """Which rank raises an error, and where; its class and text."""
        return f"{self._line()}: {text_of(error)}"

    def require_outside(self, does: str) -> None:
        """Fails in an operation of a segment, which would wait for the step that it is in.

        Raises:
            RuntimeError: this is called there.
        """
        if self._is_in_a_segment():
            raise RuntimeError(
                f"{self._members[self._rank]} {does} in a Python function that TensorFlow calls"
                " while a step runs (tf.py_function, say); expected it before or after that step,"
                " for whose end it would wait. Return tensors from the step, and call it then."
            )

    def _is_in_a_segment(self) -> bool:
        """Of what threads of the script's begin meanwhile this knows nothing: it may wait."""
        thread = threading.current_thread()
        is_of_tensorflow = isinstance(thread, threading._DummyThread)
        return self._now.turn is not None and (is_of_tensorflow or self._mail.is_of(thread))

    def interrupt(self, reason: str) -> bool:
        """Ends what is under way here with KeyboardInterrupt; on the main thread Python does.

        Any thread may call it; it does not wait.

        Returns:
            Whether anything is.
        """
        return self._mail.interrupt(reason)

    # --- failures --------------------------------------------------------------------------------

    def _do_together(self, does: str, receive: Receive, do: Callable[[], T]) -> T:
        """Does the next thing that all ranks do; if it fails here, the others are told.

        No context manager: an interrupt that comes just when one is entered ends none.
        """
        self._now = _Doing(does)
        before = self._mail.number
        try:  # also of an interrupt in `begin` the others hear, or they would wait for this number
            self._mail.begin(receive)
            return do()
        except BaseException as raised:
            now = self._now
            has_agreed = now.has_ended and now.program is None  # so the others go on
            if self._mail.number == before or has_agreed:  # nothing here fails on other ranks
                raise
            self.num_failures += 1
            error = self._cause_of(raised)
            self._tell(error)
            located = self._located(error)
            if located is raised:
                raise
            raise located from None
        finally:
            self._mail.end()
            self._now = _Doing()

    def _cause_of(self, error: BaseException) -> BaseException:
        """What a rank has said before it left, if this one finds it gone and has not read it."""
        if isinstance(error, PeerLostError):
            try:
                self._mail.take_what_has_come()
            except StepAborted as cause:
                return cause
            except Exception:
                get_logger().debug("no cause has come", exc_info=True)
        return error

    def _tell(self, error: BaseException) -> None:
        is_told = isinstance(error, StepAborted)
        self.failure = str(error) if is_told else self.text_for_others(error)
        if self._now.has_ended or isinstance(error, PeerLostError):
            return  # the others need not hear of the one, and hear of the other by themselves
        if not is_told or self._rank == _LEADER:  # who waits for its verdict has told nobody else
            self._mail.tell_abort(self.failure)

    def _located(self, error: BaseException) -> BaseException:
        if isinstance(error, PeerLostError) and _HAS_LEFT in str(error):
            error.args = (f"{error}\nAll ranks had run {self._mail.steps} steps. {EQUALLY_MANY}",)
        if isinstance(error, PeerLostError):
            return with_line(error, f"{self._members[self._rank]} {self._now.does}{self._where()}")
        if isinstance(error, StepAborted) or self._now.turn is None:
            return error
        return with_line(error, self._line())

    def _line(self) -> str:
        return f"{self._members[self._rank]}{self._where()}"

    def _where(self) -> str:
        return "" if self._now.turn is None else f": {_words(self._now.turn)}"

    def _mismatch(self, source: int, fields: Header, header: bytes) -> SMDDPMismatch:
        if fields.kind == Kind.AGREE:
            theirs = content_of(header).does
        else:
            name = self._names.get(fields.program, f"number {fields.program}, unknown here")
            theirs = f"runs step {name}"
        return SMDDPMismatch(
            f"{self._members[source]} {theirs}, {self._members[self._rank]} {self._now.does};"
            " expected the same on all ranks of a pipeline. Call the same steps in the same order,"
            f" with arguments of the same types and shapes, on all of them. {EQUALLY_MANY}"
        )

    def _named(self, ranks: Sequence[int] | set[int]) -> str:
        return ", ".join(str(self._members[rank]) for rank in sorted(ranks))


class Telling:
    """Of `Driver.telling`. No generator: Ctrl-C just when one is entered would end it late."""

    def __init__(
        self, driver: Driver, also: Callable[[BaseException], None], until: Callable[[], int]
    ) -> None:
        self._driver = driver
        self._also = also
        self._until = until
        self._failures = 0
        self._count = 0

    def __enter__(self) -> None:
        self._failures = self._driver.num_failures
        self._count = self._until()

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        try:
            have_heard = self._driver.num_failures > self._failures
            if not have_heard and self._until() == self._count:
                self._driver.refuse(error)
        finally:
            self._also(error)


def _words(turn: Turn) -> str:
    return f"{turn.segment.phase} of {turn.segment.name}, microbatch {turn.microbatch}"
