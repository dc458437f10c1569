"""Sirtaki: data-parallel training by collectives over MPI, with Horovod's interface.

Importing this package loads neither a framework nor the compiled core; `sirtaki.torch` is the PyTorch adapter.
`sirtaki.missing()` lists the parts that this machine lacks, and why.
"""

from __future__ import annotations

import importlib
from typing import Any

_RUNTIME = (
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
)
_HOMES = dict.fromkeys(_RUNTIME, "runtime") | {
    "ProcessSet": "process_sets",
    "global_process_set": "process_sets",
    "add_process_set": "process_sets",
    "remove_process_set": "process_sets",
    "HostsUpdatedInterrupt": "exceptions",
    "HorovodInternalError": "exceptions",
    "HorovodVersionMismatchError": "exceptions",
    "SirtakiInternalError": "exceptions",
    "Average": "reduce_ops",
    "Sum": "reduce_ops",
    "Adasum": "reduce_ops",
    "Min": "reduce_ops",
    "Max": "reduce_ops",
    "Product": "reduce_ops",
    "c_api": "compiled_adapters",
    "get_include": "compiled_adapters",
    "check_extension": "extensions",
    "run": "launch.function_job",
    "__version__": "version",
}
__all__ = ["missing", *_HOMES]


def missing() -> dict[str, str]:
    """The parts that this installation lacks, as {part: the loader's reason}; empty when it is complete.

    Loads the compiled core and an MPI library but starts neither.

    >>> hvd.missing()
    {}
    """
    from sirtaki.native import absent_parts

    return absent_parts()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sirtaki' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sirtaki.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
