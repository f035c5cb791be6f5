"""
The collectives engine. See smdistributed.collectives for the public face.
"""

from collections.abc import Sequence
import enum
from typing import Any

import smdistributed._common.engine_options


FLOAT32: int = 0

FLOAT64: int = 1

FLOAT16: int = 2

BFLOAT16: int = 3

INT8: int = 4

INT16: int = 5

INT32: int = 6

INT64: int = 7

UINT8: int = 8

BOOL: int = 9

COMPLEX64: int = 10

COMPLEX128: int = 11

UINT16: int = 12

UINT32: int = 13

UINT64: int = 14

OPAQUE8: int = 15

SUM: int = 0

AVG: int = 1

MIN: int = 2

MAX: int = 3

PRODUCT: int = 4

BAND: int = 5

BOR: int = 6

BXOR: int = 7

PREMUL_SUM: int = 8

class ReduceOp(enum.IntEnum):
    """
    How elements are combined. AVG is for numbers; of integers it is divided towards zero.
    """

    SUM = 0
    """The sum."""

    AVG = 1
    """
    The sum divided by the number of ranks: of integers towards zero, of bool not at all.
    """

    MIN = 2
    """The smallest."""

    MAX = 3
    """The largest."""

    PRODUCT = 4
    """The product."""

    BAND = 5
    """Bitwise and."""

    BOR = 6
    """Bitwise or."""

    BXOR = 7
    """Bitwise exclusive or."""

    PREMUL_SUM = 8
    """Each rank's elements times its factor, then the sum."""

def dtype_names() -> list[str]:
    """
    Names of the dtypes by code, as torch and NumPy have them; but opaque8, which is for what
    moves as bytes.
    """

def element_bytes(dtype: int) -> int:
    """Bytes of an element; 0 for a code that there is not."""

class HeldExport:
    """What hold() makes of an array with DLPack."""

def hold(arrays: object | None) -> Any:
    """
    What keeps the memory of arrays where it is, for use in their place: of one with the buffer
    protocol a memoryview, which makes resizing it a BufferError; of one with DLPack, what it has
    exported; of those in tuples and lists, a tuple of such; anything else as it is.
    """

def buffer(array: object | None, writable: bool = False) -> tuple[int, int, int]:
    """
    (address, number of elements, dtype code) of a contiguous array in CPU memory.

    The address is valid while the array lives and is not resized: see hold(). Raises ValueError
    for anything else.
    """

class Work:
    """Handle of an operation under way."""

    def wait(self, timeout_s: float | None = None) -> None:
        """
        Blocks (without the GIL) until the operation is complete; raises its error.

        ``timeout_s``: seconds to wait at most; None, zero or inf for no limit beyond the
        operation's own.
        """

    def is_completed(self) -> bool:
        """Whether it has ended, well or not. Never blocks."""

    def exception(self) -> BaseException | None:
        """The error of a completed operation, else None."""

    def add_done_callback(self, fn: object) -> None:
        """
        Calls ``fn(work)`` once the operation is complete: at once, or on the thread that
        completes it, which is the progress thread or one that waits. It is to be brief: a
        blocking call, a wait for another operation and close() are refused there
        (ConfigurationError). Also refused in a forked child, of an operation of its parent.
        """

    @property
    def is_small(self) -> bool:
        """So small that waking a thread for it takes longer than the operation."""

    @property
    def source(self) -> int:
        """Rank that sent, of a completed receive; else -1."""

class SharedBuffer:
    """
    Bytes in memory that all ranks of a host can reach: uint8, on a page boundary.

    For torch.from_dlpack() and numpy.frombuffer(); the memory lives as long as anything made
    from it, also after the communicator is closed. A forked child has a copy of its own.
    """

    @property
    def nbytes(self) -> int: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Message:
    """
    A message that has arrived: its header, and its body through the buffer protocol, writable.

    For torch.frombuffer() and numpy.frombuffer(), which copy nothing; the memory lives as long
    as anything made from it, also after the communicators of both ranks are closed. The body
    begins at a multiple of 64 bytes, and so does each segment in it: behind the one before, at
    the first such place.
    """

    @property
    def source(self) -> int:
        """Rank that posted it."""

    @property
    def header(self) -> bytes:
        """A copy of the header."""

    @property
    def nbytes(self) -> int:
        """Bytes of the body."""

def storage_order(dimensions: Sequence[int]) -> int:
    """
    The ``layout`` of an array whose dimensions lie in memory in this order, the one whose elements
    lie farthest apart first; without those of one element.
    """

def check_tls_files(certificate: str, key: str, authority: str) -> None:
    """
    Raises ConfigurationError for PEM files that cannot serve for TLS between ranks: missing,
    not belonging together, expired, not signed by the authority.
    """

class Communicator:
    """
    A group of ranks, by raw pointers into CPU memory. Front ends build on this; users on
    smdistributed.collectives.Communicator.

    Pointers are addresses of contiguous memory, counts are elements, dtype and op are the codes
    of this module. Every call releases the GIL. With async_op=True it returns a Work and
    keep_alive is held until the operation is complete; otherwise it returns None when complete.
    timeout_s <= 0 means the communicator's own. Errors: the classes given as ``errors``.
    """

    def __init__(self, rank: int, world_size: int, exchange: object, options: smdistributed._common.engine_options.EngineOptions, *, name: str = 'default', errors: object | None = None) -> None: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    @property
    def name(self) -> str: ...

    def plugin_handle(self) -> int:
        """
        For other native libraries of this package: an address that is valid while this object is.
        """

    def abort(self, reason: str) -> None:
        """Makes every rank's pending and later operations fail with ``reason``."""

    def close(self) -> None:
        """Says goodbye and releases everything. Idempotent."""

    @property
    def interfaces(self) -> str:
        """
        Network interfaces of this rank through which it reaches other hosts, the main one first:
        'eth0 (10.1.0.2), eth1 (10.2.0.2)'; '' if there are no other hosts.
        """

    @property
    def link(self) -> tuple[float, float]:
        """
        Between hosts: seconds that a small message takes, and bytes per second. Measured when the
        first group over several hosts is made, of the slowest, rounded to powers of two (in
        microseconds); the same on all ranks.
        """

    def topology(self) -> list[dict[str, object]]:
        """Per rank: host, pid, is_local, transport."""

    def explain(self, collective: str, payload_bytes: int) -> str:
        """Which algorithm would be chosen, and why."""

    def allocate_shared(self, nbytes: int, zeroed: bool = True) -> SharedBuffer | None:
        """
        Memory that all ranks can reach, or None where there is none to be had:
        one rank, several hosts, TCP, no room, a group that is closed or has failed.

        Not a collective. all_reduce_ptr and reduce_ptr work in place, and the others read their
        inputs where they lie, on addresses inside such buffers, if every rank passes one.
        Unless zeroed, it holds what this rank's earlier buffers have left there.
        """

    def post_message(self, dest: int, header: bytes, segments: Sequence[tuple[int, int]]) -> None:
        """
        Sends a message of unknown size: ``header``, and a body of ``segments``, (address, nbytes)
        each. Each segment begins at a multiple of 64 bytes in the body.

        Never waits for the peer: all has been copied, once, when it returns. Any thread. Raises the
        group's error, that the peer has gone, or that the group is closed.
        """

    def next_message(self, timeout_s: float) -> Message | None:
        """
        The oldest message that has arrived whole, from any peer; those of one peer come in the order
        of their posting. None if none has come in ``timeout_s`` seconds (0: only looks, negative:
        no limit), which harms nothing.

        One thread at a time. Raises the group's error, and PeerLostError once a peer has died or
        left the group; what had arrived before is delivered first. The communicator's timeout_s and
        stall_s do not apply.
        """

    def all_reduce(self, array: object | None, op: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0) -> Work | None:
        """
        What its namesake with _ptr does, on the memory of an array. Errors as of buffer().
        """

    def all_reduce_ptr(self, ptr: int, count: int, dtype: int, op: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None, layout: int = 0) -> Work | None:
        """
        ``layout``: 0, or what storage_order() gives for an array whose elements lie in another order
        than their indices; ranks that differ in it get MismatchError. Also in reduce_ptr,
        broadcast_ptr, and in coalesced_ptr, where it is a digest of all buffers'.
        """

    def reduce(self, array: object | None, op: int, root: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0) -> Work | None:
        """
        What its namesake with _ptr does, on the memory of an array. Errors as of buffer().
        """

    def reduce_ptr(self, ptr: int, count: int, dtype: int, op: int, root: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None, layout: int = 0) -> Work | None: ...

    def reduce_scatter_ptr(self, in_ptrs: Sequence[int], out_ptr: int, counts: Sequence[int], dtype: int, op: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None: ...

    def reduce_scatter_from_ptr(self, in_ptr: int, out_ptr: int, count: int, dtype: int, op: int, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None: ...

    def coalesced_ptr(self, collective: str, in_ptrs: Sequence[int], out_ptrs: Sequence[int], counts: Sequence[int], dtype: int, op: int = 0, factor: float = 1.0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None, layout: int = 0, label: int = 0, purpose: str = '') -> Work | None:
        """
        all_reduce, all_gather or reduce_scatter of many small buffers, as one operation on a
        packed copy; bit for bit what one call for each would give. counts: elements of each
        buffer, or of its share for one rank on the side that has one for every rank. For
        all_reduce out_ptrs may be in_ptrs.
        """

    def broadcast(self, array: object | None, root: int, async_op: bool = False, timeout_s: float = 0.0) -> Work | None:
        """
        What its namesake with _ptr does, on the memory of an array. Errors as of buffer().
        """

    def broadcast_ptr(self, ptr: int, count: int, dtype: int, root: int, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None, layout: int = 0, label: int = 0, purpose: str = '') -> Work | None: ...

    def all_gather_ptr(self, in_ptr: int, out_ptrs: Sequence[int], counts: Sequence[int], dtype: int, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None, label: int = 0, purpose: str = '') -> Work | None: ...

    def all_gather_into_ptr(self, in_ptr: int, out_ptr: int, count: int, dtype: int, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None: ...

    def all_to_all_ptr(self, in_ptrs: Sequence[int], in_counts: Sequence[int], out_ptrs: Sequence[int], out_counts: Sequence[int], dtype: int, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None: ...

    def gather_ptr(self, in_ptr: int, out_ptrs: Sequence[int], counts: Sequence[int], dtype: int, root: int, in_count: int = -1, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None:
        """
        in_count: elements of this rank's input; -1: counts[rank] (then every rank gives counts).
        """

    def scatter_ptr(self, in_ptrs: Sequence[int], out_ptr: int, counts: Sequence[int], dtype: int, root: int, out_count: int = -1, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None:
        """
        out_count: elements of this rank's output; -1: counts[rank] (then every rank gives counts).
        """

    def barrier(self, async_op: bool = False, timeout_s: float = 0.0) -> Work | None: ...

    def send_ptr(self, ptr: int, count: int, dtype: int, peer: int, tag: int = 0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> Work | None: ...

    def recv_ptr(self, ptr: int, count: int, dtype: int, peer: int, tag: int = 0, async_op: bool = False, timeout_s: float = 0.0, keep_alive: object | None = None) -> int | Work:
        """
        peer -1: whoever sends first. The blocking form returns the sender's rank.
        """

def is_in_use(address: int, nbytes: int) -> bool:
    """
    Whether an operation of this process that is not complete reads or writes there.

    Sends and receives in which another thread blocks are not counted.
    """

def set_uneven_batches_advice(advice: str) -> None:
    """
    What reports say to do about uneven batches, in words of the framework in use: the end of
    a sentence. The last call counts.
    """

def start_trace(capacity: int = 65536) -> None:
    """
    Records what the operations of this process do, up to ``capacity`` of them.

    The first ones are kept and later ones counted. Discards what was recorded before.
    """

def stop_trace() -> tuple[list[tuple[str, int, str, str, str, int, str, int, int, int, int, str, str]], int]:
    """
    (events, number dropped) since start_trace(); events in the order of completion.

    An event is (group, sequence, kind, dtype, reduce_op, nbytes, algorithm, queued_ns,
    started_ns, arrived_ns, finished_ns, driver, error). ``sequence`` counts the collectives of
    a group from 1 and is 0 for send and recv, whose ``algorithm`` is "message". Times are
    those of time.monotonic_ns(), 0 if something did not happen or is not known: the call, the
    start as the first of its queue, the moment all ranks had arrived, the end. ``driver`` is
    the thread it ended on: "caller" or "progress". ``error``: "" if it went well.
    """

class Baton:
    """
    What a thread waits for, and another one gives. Each give() ends one take().
    """

    def __init__(self) -> None: ...

    def give(self) -> None:
        """Lets the one that takes it go on, now or when it comes."""

    def take(self) -> None:
        """Waits until it is given. Raises what a signal's handler raises."""

    def pass_to(self, other: Baton) -> None:
        """
        Gives another one and takes this one, as one call. If a signal's handler raises, the other has
        been given.
        """

def flight_record() -> list[dict[str, object]]:
    """
    The last operations of every group of this process: see collectives.flight_record().
    """

def flight_record_text() -> str:
    """The same as text, as SIGUSR1 prints it."""

def prepare_exit() -> None:
    """Closes every communicator of this process and ends its threads."""

def kernel_set() -> str:
    """Instruction set of the reductions in use."""

def usable_cores() -> int:
    """
    Processors this process may use: affinity mask and cgroup quota respected.
    """
