# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The public communicator: collectives on arrays."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from smdistributed._common.engine_options import EngineOptions
from smdistributed._common.log import get_logger
from smdistributed._common.settings import process_settings
from smdistributed.collectives import _native, arrays
from smdistributed.collectives.arrays import Array
from smdistributed.collectives.network import tell_of_interfaces
from smdistributed.collectives.trust import tell_of_weak_trust

__all__ = ["Communicator", "Exchange", "ReduceOp"]

Exchange = Callable[[str, bytes], list[bytes]]


ReduceOp = _native.ReduceOp
"""How elements are combined; its members are written in native/common/types.h."""


class Communicator:
    """A group of ranks that make the same collective calls in the same order.

    Arrays are contiguous and in CPU memory; shapes do not matter, only the number of elements.
    Every call blocks (without the GIL) until its result is there, unless `async_op=True`: then it
    returns a `Work`, and the arrays must be left alone until `work.wait()`; one that is resized
    before an operation is over raises `BufferError` where it is resized (not tensors). Calls of one
    communicator are safe from several threads as long as all ranks make them in the same order.

    Errors of every call: `ValueError` for an array that cannot be used; `MismatchError` on all
    ranks if they disagree; `PeerLostError`, `CollectiveTimeoutError` if a rank is gone or late,
    after which the communicator cannot be used again (`smdistributed._common.errors`).

    Args:
        rank: This process, 0 <= rank < world_size.
        world_size: Number of ranks.
        exchange: `exchange(key, value)` returns every rank's value by rank; used while the
            communicator is made only. `collectives.init()` brings one.
        options: How the engine behaves; None: as the variables `SMDDP_*` say. Ranks with different
            tokens raise `ConfigurationError`, all of them.
        name: For messages.
        errors: A front end's own classes by kind: "configuration", "mismatch", "peer_lost",
            "timeout", "unsupported", "internal".
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        exchange: Exchange,
        options: EngineOptions | None = None,
        *,
        name: str = "default",
        errors: Mapping[str, type[Exception]] | None = None,
    ) -> None:
        self._options = options or EngineOptions.from_settings(process_settings())
        self._errors = errors
        self._native = _native.Communicator(
            rank, world_size, exchange, self._options, name=name, errors=errors
        )
        tell_of_interfaces(self._native)
        tell_of_weak_trust(self._native, self._options.token)
        self._splits = 0
        self._has_told_of_no_shared_memory = False
        self.rank = rank
        self.world_size = world_size
        self.name = name

    @property
    def native(self) -> _native.Communicator:
        """The same group by raw pointers, for front ends."""
        return self._native

    @property
    def link(self) -> tuple[float, float]:
        """The network between hosts, as it was measured: seconds of a message, bytes per second.

        Of the slowest host, in powers of two, and the same on all ranks; an assumption where there
        is one host.
        """
        return self._native.link

    # --- collectives -----------------------------------------------------------------------------

    def all_reduce(
        self,
        array: Array,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Reduce `array` over all ranks, in place; every rank gets the same bits.

        Args:
            array: Same dtype and number of elements on every rank.
            op: How to combine. 16-bit floats accumulate in float32 and round once.
            factor: For `PREMUL_SUM`: what this rank's array is multiplied by first.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        return self._native.all_reduce(array, op, factor, async_op, timeout_s)

    def reduce(
        self,
        array: Array,
        root: int = 0,
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Reduce `array` over all ranks into the root's `array`; the others' stay as they are."""
        return self._native.reduce(array, op, root, factor, async_op, timeout_s)

    def broadcast(
        self, array: Array, root: int = 0, *, async_op: bool = False, timeout_s: float = 0.0
    ) -> _native.Work | None:
        """Copy the root's `array` into every rank's."""
        return self._native.broadcast(array, root, async_op, timeout_s)

    def all_gather(
        self,
        output: Array | Sequence[Array],
        input: Array,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Give every rank all ranks' `input`, in rank order.

        Args:
            output: One array of `world_size` times the input's elements, or a list of one array
                per rank (their sizes may differ; all ranks must expect the same ones).
            input: This rank's part.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        with arrays.Held((output, input), async_op) as held:
            output, input = held.arrays
            in_pointer, in_count, dtype = _native.buffer(input)
            if isinstance(output, (list, tuple)):
                parts = arrays.list_parts(
                    "all_gather", output, self.world_size, dtype, writable=True
                )
                arrays.require_count("all_gather", "input", in_count, parts.counts[self.rank])
                return self._native.all_gather_ptr(
                    in_pointer,
                    parts.pointers,
                    parts.counts,
                    dtype,
                    async_op,
                    timeout_s,
                    held.begins(),
                )
            out_pointer, out_count, out_dtype = _native.buffer(output, True)
            arrays.require_dtype("all_gather", dtype, out_dtype)
            arrays.require_count("all_gather", "output", out_count, in_count * self.world_size)
            return self._native.all_gather_into_ptr(
                in_pointer, out_pointer, in_count, dtype, async_op, timeout_s, held.begins()
            )

    def reduce_scatter(
        self,
        output: Array,
        input: Array | Sequence[Array],
        op: ReduceOp = ReduceOp.SUM,
        *,
        factor: float = 1.0,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Reduce over all ranks, each rank keeping its own part.

        Args:
            output: This rank's part of the result.
            input: One array of `world_size` times the output's elements, or a list of one array
                per rank (their sizes may differ; all ranks must agree on them).
            op: How to combine.
            factor: For `PREMUL_SUM`.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        with arrays.Held((output, input), async_op) as held:
            output, input = held.arrays
            out_pointer, out_count, dtype = _native.buffer(output, True)
            if isinstance(input, (list, tuple)):
                parts = arrays.list_parts(
                    "reduce_scatter", input, self.world_size, dtype, writable=False
                )
                arrays.require_count("reduce_scatter", "output", out_count, parts.counts[self.rank])
                return self._native.reduce_scatter_ptr(
                    parts.pointers,
                    out_pointer,
                    parts.counts,
                    dtype,
                    op,
                    factor,
                    async_op,
                    timeout_s,
                    held.begins(),
                )
            in_pointer, in_count, in_dtype = _native.buffer(input)
            arrays.require_dtype("reduce_scatter", dtype, in_dtype)
            arrays.require_count("reduce_scatter", "input", in_count, out_count * self.world_size)
            return self._native.reduce_scatter_from_ptr(
                in_pointer,
                out_pointer,
                out_count,
                dtype,
                op,
                factor,
                async_op,
                timeout_s,
                held.begins(),
            )

    def all_to_all(
        self,
        output: Array | Sequence[Array],
        input: Array | Sequence[Array],
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Send part `i` of `input` to rank `i`, receive part `i` of `output` from rank `i`.

        Args:
            output: One array, cut by `output_splits`, or a list of one array per rank.
            input: One array, cut by `input_splits`, or a list of one array per rank.
            output_splits: Elements received from each rank; None for equal parts.
            input_splits: Elements sent to each rank; None for equal parts.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        with arrays.Held((output, input), async_op) as held:
            output, input = held.arrays
            sent = arrays.cut("input", input, input_splits, self.world_size, writable=False)
            received = arrays.cut("output", output, output_splits, self.world_size, writable=True)
            arrays.require_dtype("all_to_all", sent.dtype, received.dtype)
            return self._native.all_to_all_ptr(
                sent.pointers,
                sent.counts,
                received.pointers,
                received.counts,
                sent.dtype,
                async_op,
                timeout_s,
                held.begins(),
            )

    def gather(
        self,
        output: Array | Sequence[Array] | None,
        input: Array,
        root: int = 0,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Give the root all ranks' `input`, in rank order.

        Args:
            output: On the root as for `all_gather`; elsewhere None.
            input: This rank's part.
            root: Who receives.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        with arrays.Held((output, input), async_op) as held:
            output, input = held.arrays
            in_pointer, in_count, dtype = _native.buffer(input)
            parts = arrays.root_parts(
                "gather",
                "output",
                output,
                self.world_size,
                dtype,
                is_root=self.rank == root,
                writable=True,
            )
            return self._native.gather_ptr(
                in_pointer,
                parts.pointers,
                parts.counts,
                dtype,
                root,
                in_count,
                async_op,
                timeout_s,
                held.begins(),
            )

    def scatter(
        self,
        output: Array,
        input: Array | Sequence[Array] | None,
        root: int = 0,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Give each rank its part of the root's `input`.

        Args:
            output: This rank's part.
            input: On the root: one array cut into equal parts, or a list of one array per rank;
                elsewhere None.
            root: Who sends.
            async_op: Return a `Work` at once.
            timeout_s: Seconds to wait for the others; 0 means the communicator's.
        """
        with arrays.Held((output, input), async_op) as held:
            output, input = held.arrays
            out_pointer, out_count, dtype = _native.buffer(output, True)
            parts = arrays.root_parts(
                "scatter",
                "input",
                input,
                self.world_size,
                dtype,
                is_root=self.rank == root,
                writable=False,
            )
            return self._native.scatter_ptr(
                parts.pointers,
                out_pointer,
                parts.counts,
                dtype,
                root,
                out_count,
                async_op,
                timeout_s,
                held.begins(),
            )

    def barrier(self, *, async_op: bool = False, timeout_s: float = 0.0) -> _native.Work | None:
        """Wait until every rank is here."""
        return self._native.barrier(async_op, timeout_s)

    # --- point to point --------------------------------------------------------------------------

    def send(
        self,
        array: Array,
        peer: int,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> _native.Work | None:
        """Send `array` to rank `peer`. Returns once `array` may be changed again.

        Large messages wait for their receiver, so two ranks that both send first wait for ever
        (until the timeout): let one of them receive first, or use `async_op=True`. The timeout of
        a message with `async_op=True` runs from when its `Work` is first asked: by `wait()`,
        `is_completed()` or `add_done_callback()`.
        """
        with arrays.Held(array, async_op) as held:
            pointer, count, dtype = _native.buffer(held.arrays)
            return self._native.send_ptr(
                pointer, count, dtype, peer, tag, async_op, timeout_s, held.begins()
            )

    def recv(
        self,
        array: Array,
        peer: int | None = None,
        tag: int = 0,
        *,
        async_op: bool = False,
        timeout_s: float = 0.0,
    ) -> int | _native.Work:
        """Receive into `array` from rank `peer`, or from whoever sends first (None).

        Returns:
            The sender's rank; or a `Work`, which has it as `source` once complete.

        Raises:
            ValueError: also for a `peer` below zero.
        """
        if peer is not None and peer < 0:
            raise ValueError(
                f"recv names rank {peer}; expected 0 to {self.world_size - 1}, or None for whoever "
                "sends first. Check the rank arithmetic of the caller."
            )
        with arrays.Held(array, async_op) as held:
            pointer, count, dtype = _native.buffer(held.arrays, True)
            return self._native.recv_ptr(
                pointer,
                count,
                dtype,
                -1 if peer is None else peer,
                tag,
                async_op,
                timeout_s,
                held.begins(),
            )

    # --- memory ----------------------------------------------------------------------------------

    def allocate_shared(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        """Allocate memory that all ranks can reach, in which collectives work without a copy.

        Not a collective: a rank may call it alone. `all_reduce` and `reduce` are done in place,
        each rank reducing its share straight from all buffers, and the inputs of the others are
        read where they lie, if every rank that contributes passes an array within such memory (a
        view with another dtype or a slice, for example); if some rank does not, it is done as
        always. Results are the same, bit by bit.

        Args:
            nbytes: At least 1.

        Returns:
            uint8 of shape `[nbytes]`, zeros, on a page boundary; or None where there is no such
            memory: one rank, several hosts, TCP, no room left, a group that is closed or has
            failed. Use ordinary arrays then. The memory lives as long as the array or any view of
            it, also after `close()`. A forked child has a copy of its own.

        Raises:
            ValueError: `nbytes` is below 1.

        Source: our choice; see docs/algorithms.md.
        """
        buffer = self._native.allocate_shared(nbytes)
        if buffer is None:
            if not self._has_told_of_no_shared_memory:
                self._has_told_of_no_shared_memory = True
                get_logger().debug(
                    "group '%s': no shared memory for %d bytes (it needs several ranks, all on one "
                    "host, not over TCP, and address space: ulimit -v); ordinary arrays work too",
                    self.name,
                    nbytes,
                )
            return None
        return np.frombuffer(cast("memoryview", buffer), dtype=np.uint8)

    # --- the group -------------------------------------------------------------------------------

    def split(
        self, color: int | None, key: int | None = None, *, note: str = ""
    ) -> "Communicator | None":
        """Make sub-communicators: ranks that pass the same `color` form one.

        Collective over this communicator. Ranks in the new one are ordered by `key` (default:
        this communicator's rank), then by old rank. What `note` says is a part of its name, which
        messages and traces have.

        Returns:
            The new communicator, or None on ranks that passed `color=None`.
        """
        self._splits += 1
        order = self.rank if key is None else key
        text = f"{'' if color is None else color},{order}".encode()
        members: list[tuple[int, int]] = []
        for old_rank, value in enumerate(self._exchange_bytes(text)):
            their_color, their_order = value.decode().split(",")
            if color is not None and their_color == str(color):
                members.append((int(their_order), old_rank))
        ranks = [old_rank for _, old_rank in sorted(members)]

        def exchange(key: str, value: bytes) -> list[bytes]:
            values = self._exchange_bytes(value)
            return [values[old_rank] for old_rank in ranks]

        if color is None:
            # The members' bootstrap exchanges go through the whole parent: take part in them.
            for _ in range(_BOOTSTRAP_EXCHANGES):
                self._exchange_bytes(b"")
            return None
        if len(ranks) == 1:
            for _ in range(_BOOTSTRAP_EXCHANGES):
                self._exchange_bytes(b"")
        return Communicator(
            ranks.index(self.rank),
            len(ranks),
            exchange,
            self._options,
            name=f"{self.name}/{self._splits}.{color}{note}",
            errors=self._errors,
        )

    def topology(self) -> list[dict[str, Any]]:
        """Per rank: `host`, `pid`, `is_local` and `transport` ("self", "shm" or "tcp")."""
        return self._native.topology()

    def explain(self, collective: str, payload_bytes: int) -> str:
        """Say which algorithm a collective of that size would use, and why."""
        return self._native.explain(collective, payload_bytes)

    def abort(self, reason: str) -> None:
        """Make every rank's pending and later calls fail with `reason`."""
        self._native.abort(reason)

    def close(self) -> None:
        """Say goodbye to the other ranks and release everything. Idempotent.

        Raises:
            ConfigurationError: called in a done-callback, whose thread it would wait for.
        """
        self._native.close()

    def __enter__(self) -> Self:
        """Return itself; `close()` on leaving."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; other ranks that still wait for this one get an error."""
        self.close()

    # --- helpers ---------------------------------------------------------------------------------

    def _exchange_bytes(self, value: bytes) -> list[bytes]:
        if len(value) > _MAX_EXCHANGE_BYTES:
            raise ValueError(
                f"{len(value)} bytes to exchange; expected at most {_MAX_EXCHANGE_BYTES}. Use a "
                "smaller color and key."
            )
        padded = len(value).to_bytes(4, "little") + value.ljust(_MAX_EXCHANGE_BYTES, b"\0")
        gathered = bytearray(len(padded) * self.world_size)
        self.all_gather(gathered, padded)
        values = []
        for rank in range(self.world_size):
            part = gathered[rank * len(padded) : (rank + 1) * len(padded)]
            length = int.from_bytes(part[:4], "little")
            values.append(bytes(part[4 : 4 + length]))
        return values


# An engine identity is a few hundred bytes.
_MAX_EXCHANGE_BYTES = 4092
# engine/group/bootstrap.h: identities, then who could attach.
_BOOTSTRAP_EXCHANGES = 2
