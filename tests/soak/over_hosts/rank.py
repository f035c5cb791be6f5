# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What runs as a rank: works in rounds, does what it is told in the middle of them, and reports.

Commands come as lines of JSON on standard input, reports go to the descriptor that is the first
argument (the second is the seed):

    round   make groups and work until told otherwise     -> running, then done with what came of it
    stop    (to rank 0) end the round together
    abort   abort all groups                              -> struck
    leave   destroy all groups, in the middle of work     -> struck
    mismatch  make another call than the other ranks      -> struck
    exit    end this process at once                      -> struck
    part    destroy all groups                            -> parted, with what this process holds
    end     end this process in good order
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.soak.lane import Lane
from tests.soak.plan import LANES, plan_lane
from tests.soak.usage import measure

_STEPS = 120  # of a lane's plan, which begins anew when it is through
_STEPS_BETWEEN_QUESTIONS = 8
# Beyond the driver's bound: a hang is to be seen as one, and not ended by a timeout.
_TIMEOUT = timedelta(seconds=240)


@dataclass
class _Ended:
    """How a lane has ended: with `error` None after right results only."""

    error: BaseException | None
    at_s: float  # time.monotonic(), which all processes of a machine share


class Rank:
    """One rank, which works on its main thread and listens on another."""

    def __init__(self, reports: int, seed: int) -> None:
        self._reports, self._seed = os.fdopen(reports, "w"), seed
        self._telling = threading.Lock()
        self._rank, self._world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()  # of the round under way
        self._stop, self._mismatch = threading.Event(), threading.Event()
        self._groups: list[Any] = []  # that abort() is called on

    def serve(self) -> None:
        """Until told to end."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell("ready")
        while True:
            command = self._commands.get()
            if command["do"] == "round":
                self._round(command["number"], command["store"])
            elif command["do"] == "part":
                start = time.monotonic()
                self._destroy()
                seconds = time.monotonic() - start
                self._tell("parted", usage=asdict(measure()), seconds=seconds)
            elif command["do"] == "end":
                self._destroy()
                return

    # --- words ------------------------------------------------------------------------------------

    def _tell(self, what: str, **details: Any) -> None:
        with self._telling:
            print(json.dumps({"tell": what, **details}), file=self._reports, flush=True)

    def _listen(self) -> None:
        for line in sys.stdin:
            command = json.loads(line)
            what = command["do"]
            if what in ("round", "part", "end"):
                self._commands.put(command)
            elif what == "stop":
                self._stop.set()
            elif what == "mismatch":
                self._mismatch.set()
            elif what == "leave":
                self._events.put("leave")
            elif what == "abort":
                self._tell("struck", at=time.monotonic())
                self._abort(f"the soak aborts on rank {self._rank}")
            elif what == "exit":
                self._tell("struck", at=time.monotonic())
                os._exit(3)
        os._exit(0)  # the driver is gone

    # --- a round ----------------------------------------------------------------------------------

    def _round(self, number: int, store: str) -> None:
        self._stop.clear()
        self._mismatch.clear()
        self._events = queue.SimpleQueue()
        begun = threading.Semaphore(0)
        ended: list[_Ended] = []
        moved = calls = 0
        try:
            lanes = self._make_lanes(number, store)
        except Exception as error:
            self._abort(f"rank {self._rank} could not make its groups: {error}")
            ended.append(_Ended(error, time.monotonic()))
            lanes = []
        threads = [
            threading.Thread(
                target=self._run_lane, args=(number, index, lane, world, begun, ended), daemon=True
            )
            for index, (lane, world) in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        for _ in threads:
            begun.acquire()
        self._tell("running")
        for _ in threads:
            while self._events.get() == "leave":
                self._tell("struck", at=time.monotonic())
                self._destroy()
        for thread in threads:
            thread.join()
        for lane, _ in lanes:
            moved += lane.done.moved_bytes
            calls += sum(lane.done.calls.values())
        for group in self._groups:
            if dist.is_initialized() and group is not dist.group.WORLD:
                dist.destroy_process_group(group)
        self._groups = []
        self._tell(
            "done",
            calls=calls,
            bytes=moved,
            ended=[
                {
                    "error": None if each.error is None else type(each.error).__name__,
                    "module": type(each.error).__module__,
                    "text": str(each.error),
                    "at": each.at_s,
                }
                for each in ended
            ],
        )

    def _make_lanes(self, number: int, store: str) -> list[tuple[Lane, Any]]:
        """The lanes, each with its group of all ranks."""
        if not dist.is_initialized():
            dist.init_process_group(
                "smddp",
                store=dist.FileStore(store, self._world_size),  # hosts share their files
                rank=self._rank,
                world_size=self._world_size,
                timeout=_TIMEOUT,
            )
        plans = [
            plan_lane(self._seed, number, lane, self._world_size, _STEPS) for lane in range(LANES)
        ]
        lanes = []
        for index, plan in enumerate(plans):
            groups: list[Any] = []
            for n, ranks in enumerate(plan.groups):
                # One group may live through many rounds.
                is_kept = (index, n) == (0, 0)
                group = (
                    dist.group.WORLD if is_kept else dist.new_group(list(ranks), timeout=_TIMEOUT)
                )
                groups.append(group if self._rank in ranks else None)
                self._groups += [group] if self._rank in ranks else []
            delays = random.Random(f"{self._seed}/{number}/{index}/{self._rank}")
            lanes.append((Lane(plan, groups, self._rank, delays), groups[0]))
        return lanes

    def _run_lane(
        self,
        number: int,
        index: int,
        lane: Lane,
        world: Any,
        begun: threading.Semaphore,
        ended: list[_Ended],
    ) -> None:
        error: BaseException | None = None
        has_begun = False

        def is_over() -> bool:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                begun.release()
            if index == 0 and self._mismatch.is_set():
                self._tell("struck", at=time.monotonic())
                dist.all_reduce(torch.ones(3, dtype=torch.int64), group=world)
                raise AssertionError("a call that does not match was taken for one that does")
            answer = torch.tensor([int(self._stop.is_set())])
            dist.broadcast(answer, 0, group=world)
            return bool(answer)

        try:
            lane.run_until(is_over, _STEPS_BETWEEN_QUESTIONS)
        except BaseException as caught:
            error = caught
            at_s = time.monotonic()
            print(
                f"rank {self._rank}, round {number}, lane {index}, {lane.now}:"
                f" {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
            # Who waits for this rank in another group learns it there.
            self._abort(f"lane {index} of rank {self._rank} has failed: {error}")
        else:
            at_s = time.monotonic()
        ended.append(_Ended(error, at_s))
        if not has_begun:
            begun.release()
        self._events.put("ended")

    def _abort(self, reason: str) -> None:
        for group in self._groups:
            group.abort(reason)

    def _destroy(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401  (registers the backend)

    faulthandler.register(signal.SIGUSR2, all_threads=True)
    torch.set_num_threads(1)
    Rank(int(sys.argv[1]), int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
