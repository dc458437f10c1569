"""The compiled core's interface for Python. Private: only the adapters use it."""

from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

# One tensor of a request: address to read, address to write (0: the core allocates the result), dtype number,
# shape, device (-1 host, otherwise the number of a GPU).
Tensor = tuple[int, int, int, tuple[int, ...], int]

class InternalError(RuntimeError):
    """Ranks disagree, or the job has failed (Horovod's HorovodInternalError)."""

class Buffer:
    """Bytes that the core allocated for a result; supports the buffer protocol (writable, format 'B')."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Work:
    """One submitted request. The core keeps `keep` alive while it uses the memory, even if this object is dropped."""
    def done(self) -> bool:
        """True once finished or failed; never blocks, never raises."""
    def wait(self, stream: int | None = None) -> None:
        """Blocks without the GIL. ValueError or InternalError if the request failed; KeyboardInterrupt works.

        On a GPU the work is done when all of it is queued. stream: the handle of a stream of that GPU, which then waits
        for the results; None: this thread waits.
        """
    # Valid after wait():
    def outcome(self) -> Any:
        """Of start_call(): the tensor `out`, or a new one."""
    def buffers(self) -> list[Buffer | None]:
        """One for each tensor whose result the core allocated, None for the others."""
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each result (allgather, reducescatter and alltoall change dimension 0)."""
    def received_splits(self) -> list[int]:
        """alltoall: the number of rows from each rank."""
    def value(self) -> int:
        """join: the last rank to join. add_process_set: the new id. Otherwise 0."""

VERBS: dict[str, int]  # the collectives' names, barrier, join, add_process_set, remove_process_set, send, receive
OPS: dict[str, int]  # average sum adasum min max product
DTYPES: dict[str, int]  # bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64
FIRST_MEMBERS_ONLY_SET: int  # ids of process sets that their members made alone
END_OF_PROCESS_SETS: int

def init(
    mpi_libraries: Sequence[str], comm_handle: int, comm_ranks: Sequence[int], identity: str, launcher: int = -1
) -> None:
    """Starts the engine of this process.

    mpi_libraries: paths to try in order. comm_handle: the value of an MPI_Comm of that library to duplicate, or 0.
    comm_ranks: ranks of MPI_COMM_WORLD that take part; empty: all. identity: text that must be equal on all ranks
    (versions); the error for a difference shows both. launcher: the descriptor of job.rank.supervisor_link, open
    until after shutdown(), or -1. Raises InternalError or ValueError.
    """

def init_over_sockets(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    key: bytes,
    listener: int,
    generation: int,
    identity: str,
    launcher: int = -1,
) -> None:
    """As init(), without MPI: the ranks connect by TCP.

    addresses: by rank, an IP address and a port. key: the job's secret. listener: the descriptor of this rank's socket,
    which listens at its address without blocking, and which the core then owns; -1 for a job of one rank. generation:
    of these addresses; frames of another generation are refused.
    """

def start_timeout() -> float:
    """SIRTAKI_START_TIMEOUT, in seconds. ValueError if any setting is wrong."""

def shutdown() -> Cause | None:
    """Leaves the job; returns when all ranks have called it. No effect when not initialised.

    Returns the failure cause if the job has failed, before or during this call; otherwise None.
    """

def finalize(supervised: bool) -> None:
    """Finalises MPI if init initialised it. For the end of the process, after shutdown: MPI cannot start again."""

def take_notice() -> str | None:
    """The launcher's newest message for the program, if it was not taken yet."""

def failure() -> str:
    """The failure as text; "" if the job has not failed. ValueError before init."""

Cause = dict[str, Any]
"""Why the job cannot go on, the same on all ranks.

kind: "exception", "signal", "early exit", "killed", "lost connection", "failed collective", "refused negotiation" or
"passed limit". rank, host: whose failure it is. text: may have several lines. time: seconds since 1970. site:
"train.py:41" or "". witness: the rank that recorded it, -1 for the launcher. description: all of that in words.
"""

def cause() -> Cause | None:
    """The failure cause; None if the job has not failed. ValueError before init."""

def fail(kind: str, text: str, site: str = "") -> Cause:
    """Fails the job because of this process: from now on every collective fails, on all ranks.

    Returns the first failure cause when the ranks have agreed on it, or after 2.5 seconds. ValueError before init.
    """

def abort(exit_code: int) -> None:
    """Ends the whole job at once; the process exits with exit_code. Call fail() before."""

def is_initialized() -> bool: ...

# All of these raise ValueError before init.
def rank() -> int: ...
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> bool: ...
def uses_mpi() -> bool: ...
def mpi_threads_supported() -> bool: ...
def process_sets() -> dict[int, list[int]]:
    """Global ranks of each existing process set, by id; 0 is the set of all ranks."""

def start_call(
    verb: int,
    tensor: Any,
    out: Any,
    name: str,
    op: int,
    prescale: float,
    postscale: float,
    root: int,
    process_set: int,
    site: str,
    awaited: bool,
    tag: int,
    /,
) -> Any:
    """Queues a call of a verb with one tensor of the framework. None, without any effect, unless both tensors are dense
    and contiguous in host memory, of a dtype of the core. out: memory for the result; the tensor itself: in place, and
    for send and receive; None: a new tensor. name: without the verb. Returns a Work; with `awaited` waits, and returns
    the result. Errors as submit().
    """

def submit(
    verb: int,
    name: str,
    tensors: Sequence[Tensor],
    op: int = 1,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = -1,
    splits: Sequence[int] = (),
    process_set: int = 0,
    site: str = "",
    awaited: bool = False,
    keep: Any = None,
    stream: int = 0,
    allocate: Callable[[int, tuple[int, ...], int], int] | None = None,
    rooms: Sequence[int] = (),
    tag: int = 0,
) -> Work:
    """Queues one request and returns at once. Several tensors are one request (a grouped call).

    name "": numbered by the core, by order of calls of that verb. root: global rank. splits: alltoall, rows for each
    rank (empty: equal parts); add_process_set, the ranks (and as root the id on
    which the members have agreed, if they alone make the set); remove_process_set, the id. tag: send and receive,
    whose root is the other rank; without a name. site: the line of the user's
    program. awaited: the caller calls wait() next, so the engine's thread is not woken. Refused at the call, with the
    value in the message: ValueError for bad arguments (unknown process set or not a member, a name already in use, bad
    splits, root, scale, dtype for the op), InternalError before init and after shutdown.

    GPU tensors. stream: the handle of the stream on which the tensors are made. allocate: called on the engine's thread
    as allocate(number of the tensor, shape, handle of the writing stream); returns the address for a result whose size
    depends on all ranks. Needed for allgather, reducescatter and alltoall. rooms: for these, the bytes at each address
    to write. If the result has another size, it is not written there, and Work.wait() raises ValueError on this rank.
    """

# From this number of bytes on, new_buffer() and the core's results reuse memory.
LARGE_BLOCK: int

def new_buffer(bytes: int) -> Buffer:
    """Memory with undefined content. Large memory is reused: up to 256 MiB of free memory are kept in a process."""

# Hooks on parameters (bindings/core/gradients/gradients.h). The usual course runs without Python. In all other cases
# the hooks call the two functions that the step was made with.
class GradientStep:
    """Shared by all hooks of one reducer. on_gradient(slot): called before an unusual gradient is counted, may change
    the slot's bucket. send(bucket): sends a complete bucket that cannot be sent in place. passes: gradients to
    accumulate before they are sent. how: op, prescale, postscale.
    """
    def __init__(
        self,
        on_gradient: Callable[[Any], None],
        send: Callable[[Any], None],
        passes: int,
        how: tuple[int, float, float],
        process_set: int,
        /,
    ) -> None: ...
    passes: int
    site: str  # where the program called backward
    listening: bool  # a callback waits for the end of the running backward; otherwise every hook calls on_gradient
    full: bool  # since it was cleared, some parameter has had all its passes
    touched: bool  # since it was cleared, a hook has run

class GradientBucket:
    """Slots that are sent in one request. A subclass has make_presence(tensor): two tensors with one element for each
    slot, sent behind the gradients; the input of a rank that has all gradients, and the result.
    """
    def __init__(self, step: GradientStep, slots: Sequence[GradientSlot], name: str, in_place: bool, /) -> None: ...
    step: GradientStep
    slots: Sequence[Any]
    name: str  # of the request
    work: Any  # None unless it was sent and not finished
    presence: Any  # what make_presence() gave for the tensors that were sent last
    state: int  # 0: waits for gradients, 1: sent, 2: reduced; Python may set other values
    ready: int  # number of slots that have had all their passes
    times: int  # how many times it was sent in this step
    in_place: bool  # the gradients may be sent from their own memory
    def send_in_place(self) -> bool:
        """Sends the gradients from their own memory. False, without any effect, if that is not possible: one is
        missing, sparse or has an unusual layout, or gradients are diverted. Errors as submit().
        """
    def send_packed(self, packed: Any, /) -> None:
        """Sends packed.tensors. packed.present: which slots have a gradient, as the first tensor of `presence`; None:
        all. packed.unpack(bucket) is called when they are reduced and no gradient was changed.
        """
    def note_sent(self, work: Any, packed: Any, /) -> None:
        """The bucket was sent in another way. work: has wait(stream). packed: as above."""
    def call_name(self) -> str:
        """The name of the next request: differs when a bucket is sent again in a step."""
    def has_reduced(self, slot: GradientSlot, /) -> bool:
        """Whether the parameter's gradient is still the one that was reduced in this step."""
    def reset(self) -> None:
        """Resets the bucket and its slots for the next step. Does not wait for a request that was sent."""

class GradientSlot:
    """A parameter, and the hook on it: slot(parameter)."""
    def __init__(self, parameter: Any, /) -> None: ...
    def __call__(self, parameter: Any) -> None: ...
    parameter: Any
    bucket: Any  # None: the parameter is not reduced now
    gradient: Any  # the one sent in this step, later the reduced one; None: no rank has one
    fired: int  # number of gradients since the last step
    def is_unsettled(self) -> bool:
        """Whether the parameter has a gradient that was not reduced in this step. Another tensor with the memory of the
        reduced gradient counts as reduced.
        """

def finish_buckets(buckets: list[Any]) -> Any:
    """Waits for all buckets that were sent, also if one fails; then raises the first failure. After an interrupted wait
    the bucket is still sent. Returns the first slot whose gradient was replaced or written since it was sent; True if
    there is none.
    """

def all_sent(buckets: list[Any]) -> bool:
    """Whether no bucket waits for gradients."""

def describe_tensor(tensor: Any) -> Tensor | None:
    """How submit() takes the tensor, with its shape in the order of memory. None if it must be copied first, or has no
    memory that the core can read.
    """

def same_parameters(slots: tuple[Any, ...], groups: list[Any]) -> bool:
    """Whether an optimizer's groups contain the parameters of these slots in this order, and each parameter has a
    bucket or needs none (it requires no gradient and has none).
    """

def first_unsettled(slots: tuple[Any, ...], groups: list[Any]) -> Any:
    """The first slot whose gradient was not reduced in this step; None if there is none. True if the groups do not
    contain the parameters of these slots in this order.
    """

def layout_checksum(tensors: Sequence[Any]) -> int:
    """Of the shapes and strides; below 2**31."""

class CastGradients:
    """A bucket's gradients that are sent as one tensor of another dtype (bindings/core/gradients/cast_gradients.h)."""
    @staticmethod
    def make(
        slots: tuple[Any, ...], wire: int, make: Callable[[Any, int, int], tuple[Any, Any]]
    ) -> CastGradients | None:
        """Casts the gradients into a new tensor. wire: the number of its dtype. make(like, elements, checksum of the
        layout) returns the tensors to send. None if these gradients cannot be cast together.
        """
    @property
    def tensors(self) -> tuple[Any, Any]: ...
    @property
    def present(self) -> None:
        """All slots have a gradient."""
    def unpack(self, bucket: Any) -> None:
        """Writes the reduced values into the gradients."""

def divert_gradients(elsewhere: bool) -> None:
    """While it is true, each complete bucket is passed to `send` of its step."""

def look_outward(
    internal: tuple[str, ...], counted: CodeType, wanted: tuple[CodeType, ...]
) -> tuple[str, int, int, Any]:
    """(file and line of the innermost frame whose file begins with none of `internal`, "" and 0 if there is none; how
    many frames run the code `counted`; `self` of the outermost frame that runs one of `wanted`, or None).
    """

def c_api() -> int:
    """The address of the table of C functions that compiled kernels of frameworks call (bindings/c_api.h)."""

def mpi_info(paths: Sequence[str]) -> dict[str, str]:
    """Loads the first library that can be loaded: path, version (its own text), abi ("standard", "mpich", "openmpi").
    InternalError with the loader's message for each path. Does not initialise MPI.
    """

def set_gpu_libraries(nccl: Sequence[str], nvrtc: Sequence[str]) -> None:
    """Paths to try in order at the first GPU tensor; call it before init."""

def set_usual_gpu(number: int) -> None:
    """The GPU of this rank if it joins without having submitted a GPU tensor; -1: the one of its local rank."""

# NCCL without the engine, for steps that are captured into a graph (bindings/core/gpu/gpu_direct.cc).
Card = tuple[str, str, str, str]

def gpu_card(device: int) -> Card:
    """The facts by which the ranks decide on NCCL: the GPU's identity, NCCL's version, the reason if there is no NCCL,
    the reason if there are no kernels.
    """

def common_gpu_capabilities(cards: Sequence[Card]) -> tuple[bool, bool, str]:
    """From the cards of all ranks: (whether NCCL is used, whether kernels are used, the reason against NCCL)."""

def nccl_unique_id() -> bytes:
    """Rank 0 calls it and sends it to the other ranks."""

class DirectNccl:
    """An NCCL communicator of all ranks, separate from the engine's. One thread at a time may use it."""
    def __init__(self, id: bytes, rank: int, size: int, device: int, stream: int, kernels: bool) -> None: ...
    def allreduce(
        self, tensors: Sequence[Tensor], op: int, prescale: float, postscale: float, wire: int = -1
    ) -> None: ...
    def reducescatter(self, tensor: Tensor, op: int, prescale: float, postscale: float) -> None:
        """Reads as many equal parts as ranks, with the described shape in all; writes this rank's reduced part."""
    def allgather(self, tensor: Tensor) -> None:
        """Reads this rank's part; writes all parts, with the described shape in all."""
    def check(self) -> None:
        """Raises an error that NCCL has found since the last call."""

def gpu_info() -> dict[str, str]:
    """Loads the GPU libraries. For "CUDA", "kernels" and "NCCL": a description, or the loader's message."""

def statistics() -> dict[str, int]:
    """Counters since init: batches, tensors, bytes, messages, cache_hits, cache_misses, idle_wakeups, planned_batches,
    plans, departures; wait_cpu_ns: processor time of the program's threads in waits since time_waits(), which
    includes the engine's work that they do meanwhile.
    """

def end_step() -> None:
    """Notifies observers that the program has waited for all gradients of a training step."""

RECORD_KINDS: tuple[str, ...]  # names of the kinds of records, by number

def records(since: int = 0) -> tuple[bytes, int, int]:
    """What the flight recorder holds since a cursor, ordered by time: records of 32 bytes (sirtaki.timing.records),
    the next cursor, and how many records were overwritten before this call. 0: from the oldest one on. Any thread;
    also after shutdown(). Empty before init(), and with SIRTAKI_RECORDER=0.
    """

def step_times() -> dict[str, Any] | None:
    """The times of this rank's steps, in nanoseconds; None with SIRTAKI_RECORDER=0 and before init().

    steps: how many were counted. total, latest, open: of all of them, of the last one, and since its end. Each has the
    keys length; late, agreement, queue, copy, wire, host (the parts of the wait); exchange, hidden (the time in which
    data moved, and the part of it in which the program did not wait); delay (the thread was ready and had no core).
    last: by rank, the steps in which it came last, and the sum of its lateness. lost: records that were overwritten
    before they were counted.
    """

def mark_ranges(libraries: Sequence[str]) -> str:
    """Marks batches, waits and steps as NVTX ranges from now on, through the first of these libraries that has NVTX's
    functions; with an empty list no longer. Returns that library, "" if there is none. ValueError before init().
    """

def record_names(on: bool) -> None:
    """Collects the names of tensors that are submitted from now on; False stops that and forgets them."""

def recorded_names() -> dict[int, str]:
    """The names that were collected, by the number that records have for them."""

def time_gpu(on: bool) -> None:
    """Takes the times of batches on this rank's GPU from now on, or no longer. ValueError before init()."""

def gpu_times() -> tuple[list[tuple[int, bool, int, int, int, int, int]], int]:
    """The times that were not returned yet of batches whose work on the GPU is over, and how many are not over.

    Each is the process set, whether the batch is one of a locked plan, its number, verb, bytes, begin and end, in
    nanoseconds of CLOCK_MONOTONIC.
    """

def clock_offset_ns() -> tuple[int, int]:
    """This host's CLOCK_MONOTONIC minus that of rank 0's host, and the greatest error of that; in nanoseconds. Exactly
    0 on rank 0's host. ValueError before init.
    """

def time_waits() -> None:
    """Starts to measure waits. Each wait is then a little slower."""

def plane_uses() -> dict[str, int]:
    """How often each data plane was chosen since init, by its name, in alphabetical order: "shm" (all ranks of the
    group share memory), "two-level" (ranks of each host do), "mpi", "point-to-point", ..."""

def control() -> str:
    """The transport of control messages: "shm", "mpi" or "sockets"."""

def question() -> bool:
    """Blocks without the GIL until the engine asks for this process's Python stacks (True) or shuts down (False)."""

def answer(stacks: str) -> None: ...
def set_forced_stacks(signal: int, file: int) -> None:
    """At this signal faulthandler writes the Python stacks into this file, even while native code holds the GIL.
    signal 0: not available.
    """

def set_fusion_threshold(bytes: int) -> None:
    """Only rank 0's value is used; takes effect with the next batch."""
