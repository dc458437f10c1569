"""Settings of MPI libraries that this host needs, applied before MPI starts."""

from __future__ import annotations

import ctypes
import os

# Otherwise MPI reads large messages directly from the other process's memory.
_WITHOUT_PROCESS_VM = {
    "MPIR_CVAR_CH4_CMA_ENABLE": "0",
    "UCX_TLS": "^cma",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_smsc": "^cma",
}


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def adapt_to_host() -> None:
    """Avoids a system call that this host may refuse, at MPI's first large transfer. The user's settings stay."""
    if not _may_read_process_memory():
        for name, value in _WITHOUT_PROCESS_VM.items():
            os.environ.setdefault(name, value)


def _may_read_process_memory() -> bool:
    """Whether process_vm_readv is permitted. Container profiles refuse it even for the process's own memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    source, target = ctypes.create_string_buffer(1), ctypes.create_string_buffer(1)
    local, remote = _Vector(ctypes.addressof(target), 1), _Vector(ctypes.addressof(source), 1)
    read = libc.process_vm_readv
    read.argtypes = (ctypes.c_int, *(ctypes.c_void_p, ctypes.c_ulong) * 2, ctypes.c_ulong)
    read.restype = ctypes.c_ssize_t
    return read(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) == 1
