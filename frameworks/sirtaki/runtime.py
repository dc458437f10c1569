"""init, shutdown, rank and size: the engine of this process, shared by all frameworks."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import threading
from collections.abc import Sequence
from typing import Any

from sirtaki import process_sets, settings, starters
from sirtaki.checkpoints import saving
from sirtaki.checks import call_numbers, gradient_kinds, parameter_check
from sirtaki.host import segments
from sirtaki.job.rank import (
    arrival,
    children,
    ending,
    preemption,
    renewal,
    stacks,
    starter_socket,
    supervisor_link,
)
from sirtaki.job.rank.preemption import preempted as preempted
from sirtaki.libraries import gpu_libraries, mpi_library, mpi_settings
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, bind_existing, bind_global, register_at_init, unbind_all
from sirtaki.rendezvous import environment, launcher
from sirtaki.timeline import writer
from sirtaki.timeline.writer import start_timeline as start_timeline
from sirtaki.timeline.writer import stop_timeline as stop_timeline
from sirtaki.timing import energy, summary, tuner
from sirtaki.timing.text import summary_line
from sirtaki.version import __version__

# What every adapter exports.
__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "preempted",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


_lock = threading.RLock()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Starts or joins the job; every rank calls it. A second call while initialised only binds the process sets given.

    comm: None or [] for all ranks that were started, a list of ranks of MPI_COMM_WORLD, or an mpi4py communicator
    (which is duplicated). process_sets: ProcessSet objects to register, the same on every rank, or "dynamic" to allow
    add_process_set() later (as SIRTAKI_DYNAMIC_PROCESS_SETS=1 does).

    ValueError for wrong arguments. ImportError with the loader's message if the compiled core is missing.
    SirtakiInternalError if MPI does not load, or if settings or arguments differ between ranks. RuntimeError if MPI
    sees this process alone although its launcher announced several, or if a rank forked or spawned this process.

    >>> hvd.init()
    >>> hvd.size()  # on one rank
    1
    """
    ending.watch()
    sets, dynamic = _checked_process_sets(process_sets)
    handle, ranks = _checked_comm(comm, sets)
    with _lock:
        children.refuse(is_initialized())
        if core.is_initialized():
            bind_existing(sets)
            return
        _start(handle, ranks, dynamic)
        try:
            if not handle and not ranks and core.uses_mpi():
                _check_not_alone()
                segments.remove_initial_name()
            register_at_init(sets)
            renewal.run()
        except BaseException:
            shutdown()
            raise


def _start(handle: int, ranks: list[int], dynamic: bool) -> None:
    writer.before_init()
    settings.has_summary()  # a wrong value is refused here, not when the job ends
    core.set_gpu_libraries(gpu_libraries.nccl(), gpu_libraries.nvrtc())
    starter_socket.leave_outer_job()
    start = _start_over_sockets if uses_sockets() else _start_over_mpi
    arrival.claim()
    limit = core.start_timeout()
    line = supervisor_link.join(limit)
    try:
        start(handle, ranks, _identity(dynamic), line, limit)
    except BaseException:
        supervisor_link.failed()
        raise
    supervisor_link.up()
    children.note_rank(is_alone=core.size() == 1 and starters.announced_size()[1] < 2 and line < 0)
    call_numbers.reset()
    gradient_kinds.begin_job()
    tuner.begin_job()
    bind_global(dynamic)
    energy.start()
    ending.install(shutdown)
    stacks.start()
    writer.after_init(launcher.newest_generation() if settings.flag("ELASTIC") else 1)


def _start_over_mpi(handle: int, ranks: list[int], identity: str, line: int, limit: float) -> None:
    libraries = _mpi_libraries()
    starter_socket.restore()
    _refuse_other_mpi(libraries)
    mpi_settings.adapt_to_host()
    # A launcher knows better which ranks are missing.
    with arrival.Watch(limit) if line < 0 else contextlib.nullcontext():
        core.init(libraries, handle, ranks, identity, line)
    mpi_library.share_with_mpi4py(core.mpi_info(libraries)["path"])


def _start_over_sockets(handle: int, ranks: list[int], identity: str, line: int, limit: float) -> None:
    if handle or ranks:
        raise ValueError("comm: a communicator or ranks of MPI_COMM_WORLD need MPI, which this job does without")
    table = environment.join(limit)
    listener = -1 if table.listener is None else table.listener.detach()
    core.init_over_sockets(table.rank, table.addresses, table.key, listener, table.generation, identity, line)


def uses_sockets() -> bool:
    """Whether init() connects the ranks without MPI: if sirtakirun started them so, else as SIRTAKI_CONTROL says, by
    default where there is no MPI.
    """
    if launcher.has_started_this():
        return True
    return settings.control() == "sockets" or (not settings.control() and not _mpi_libraries())


def _mpi_libraries() -> list[str]:
    return mpi_library.candidates()


def _identity(dynamic: bool) -> str:
    return (
        f"Sirtaki {__version__} ({platform.machine()}), dynamic process sets {'on' if dynamic else 'off'}, "
        f"{parameter_check.VARIABLE}={parameter_check.setting()}, {settings.tuner().agreed()}"
    )


def _checked_process_sets(value: Sequence[ProcessSet] | str | None) -> tuple[list[ProcessSet], bool]:
    dynamic = settings.flag("DYNAMIC_PROCESS_SETS")
    if value is None:
        return [], dynamic
    if isinstance(value, str):
        if value.lower() != "dynamic":
            raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", got {value!r}')
        return [], True
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, ProcessSet) for entry in value):
        raise ValueError(f'process_sets must be a list of ProcessSet or "dynamic", got {value!r}')
    _refuse_duplicates(value)
    return list(value), dynamic


def _refuse_duplicates(entries: Sequence[ProcessSet]) -> None:
    seen: list[list[int]] = []
    for number, entry in enumerate(entries):
        if entry.mpi_comm is None and entry.ranks in seen:
            entry.process_set_id = None
            raise ValueError(f"process_sets[{number}] repeats the ranks {entry.ranks} of an earlier entry")
        if entry.mpi_comm is None and entry.ranks is not None:
            seen.append(entry.ranks)


def _checked_comm(comm: Any, sets: list[ProcessSet]) -> tuple[int, list[int]]:
    """(handle of an MPI communicator or 0, ranks of MPI_COMM_WORLD or [])."""
    if process_sets.is_communicator(comm):
        return _handle(comm), []
    if comm is None:
        return 0, []
    if not isinstance(comm, (list, tuple, range)):
        raise ValueError(f"comm must be None, a list of ranks or an mpi4py communicator, got {comm!r}")
    if any(process_sets.is_communicator(entry) for entry in comm):
        if len(comm) == 1:
            return _handle(comm[0]), []
        raise ValueError(
            "comm takes one communicator; give further ones as process_sets=[ProcessSet(communicator), ...]"
        )
    ranks = process_sets.checked_ranks(comm)
    if ranks and any(entry.mpi_comm is not None for entry in sets):
        raise NotImplementedError("process sets from communicators cannot be combined with a list of ranks as comm")
    return 0, ranks


def _handle(comm: Any) -> int:
    from mpi4py import MPI

    if comm == MPI.COMM_NULL:
        raise ValueError("comm is MPI.COMM_NULL; this process belongs to no job")
    return int(MPI._handleof(comm))


def _refuse_other_mpi(libraries: list[str]) -> None:
    """Some MPIs abort in their own init if another MPI's starter has started the process."""
    variable = starters.variable_of_other_mpi(lambda: core.mpi_info(libraries)["version"])
    if variable:
        library = core.mpi_info(libraries)
        raise RuntimeError(
            f"the launcher announced {os.environ[variable]} processes ({variable}={os.environ[variable]}), but the MPI "
            f"in use cannot find them: it is {_first_line(library['version'])} from {library['path']}; "
            f"{starters.advice_on(variable)}"
        )


def _first_line(text: str) -> str:
    return " ".join(text.strip().partition("\n")[0].split())


def _check_not_alone() -> None:
    variable, announced = starters.announced_size()
    if core.size() == 1 and announced > 1:
        library = core.mpi_info(_mpi_libraries())
        found = _first_line(library["version"])
        raise RuntimeError(
            f"the launcher announced {announced} processes ({variable}={os.environ.get(variable)}), but MPI sees only "
            f"this one. The MPI in use is {found} from {library['path']}; {starters.advice_on(variable)}"
        )

    workers = os.environ.get("WORLD_SIZE", "")
    if core.size() == 1 and "TORCHELASTIC_RUN_ID" in os.environ and workers.isdigit() and int(workers) > 1:
        raise RuntimeError(
            f"torchrun has started {workers} processes (WORLD_SIZE={workers}), but Sirtaki sees only this one. Call "
            'torch.distributed.init_process_group("sirtaki") before init(), set SIRTAKI_CONTROL=sockets, or start the '
            "program by sirtakirun"
        )


def shutdown() -> None:
    """Leaves the job. Returns when all ranks have called it. No effect when not initialised.

    Removes all process sets; a later init() starts a new job. Raises the OSError of a checkpoint that was not written.

    >>> hvd.shutdown()
    >>> hvd.is_initialized()
    False
    >>> hvd.init()  # a new job, of the same ranks
    """
    if not is_initialized():
        return
    saving.finish()
    writer.before_shutdown()
    own_rank = core.rank()
    cause = core.shutdown()
    preemption.leave()  # only now: its thread may have waited for a rank that has left
    ending.note_end(cause)
    stacks.stop()
    if cause is None:
        tuner.end_job(own_rank)
        _send_closing_report(own_rank)
    energy.stop()
    supervisor_link.leave()
    arrival.leave()
    unbind_all()


def _send_closing_report(own_rank: int) -> None:
    """Where the time went: the launcher prints it for the whole job; without a launcher rank 0 prints its own."""
    report = summary.closing_report()
    if report is None or supervisor_link.send_times(report) or own_rank != 0:
        return
    with contextlib.suppress(OSError, ValueError):
        print(f"sirtaki: on rank 0: {summary_line.line([report])}", file=sys.stderr, flush=True)


def is_initialized() -> bool:
    """Whether init() has succeeded and shutdown() was not called. Never raises, even without the compiled core.

    >>> hvd.is_initialized()
    True
    """
    try:
        return core.is_initialized()
    except ImportError:
        return False


def rank() -> int:
    """This process's rank, 0..size() - 1. This and the next five functions raise ValueError before init.

    >>> hvd.rank(), hvd.local_rank(), hvd.cross_rank()
    (0, 0, 0)
    """
    return core.rank()


def size() -> int:
    """Number of ranks.

    >>> hvd.size(), hvd.local_size(), hvd.cross_size()
    (1, 1, 1)
    """
    return core.size()


def local_rank() -> int:
    """This process's number among the ranks of its host."""
    return core.local_rank()


def local_size() -> int:
    """Number of ranks on this host."""
    return core.local_size()


def cross_rank() -> int:
    """The number of this host among the hosts that have a rank with this local rank."""
    return core.cross_rank()


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return core.cross_size()


def is_homogeneous() -> bool:
    """Whether every host has the same number of ranks. ValueError before init."""
    return core.is_homogeneous()


def mpi_threads_supported() -> bool:
    """Whether MPI was started with MPI_THREAD_MULTIPLE. ValueError before init."""
    return core.mpi_threads_supported()


def mpi_enabled() -> bool:
    """Whether the ranks use MPI now."""
    return is_initialized() and core.uses_mpi()


def mpi_built() -> bool:
    """Always true: MPI is loaded at run time, so every installation can use it."""
    return True


def gloo_enabled() -> bool:
    """Always false: Sirtaki has no gloo. Horovod's programs ask."""
    return False


def gloo_built() -> bool:
    """Always false, as gloo_enabled()."""
    return False


def nccl_built() -> int:
    """NCCL's version code (22809 is 2.28.9), 0 without NCCL. It is looked for at run time."""
    return gpu_libraries.nccl_version()


def ddl_built() -> bool:
    """Always false: IBM's DDL is not supported."""
    return False


def ccl_built() -> bool:
    """Always false: Intel's oneCCL is not supported."""
    return False


def cuda_built() -> bool:
    """Whether the CUDA driver loads; GPU tensors need nothing else."""
    return gpu_libraries.has_driver()


def rocm_built() -> bool:
    """Always false: AMD's GPUs are not supported."""
    return False
