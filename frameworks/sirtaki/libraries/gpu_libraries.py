"""Where GPU libraries may be: NCCL, NVRTC, which compiles our kernels, and NVTX, which marks ranges for profilers.

Importing this module loads nothing. The order: a library that the process has loaded already, the wheels beside the
framework, the loader's own search.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys


def _in_wheels(pattern: str) -> list[str]:
    found = []
    for place in sys.path:
        found += sorted(glob.glob(os.path.join(place, "nvidia", pattern)), reverse=True)
    return found


def nccl() -> list[str]:
    """Files and names to try for NCCL, in order."""
    return [*_in_wheels("nccl/lib/libnccl.so.2"), "libnccl.so.2"]


def nvrtc() -> list[str]:
    """Files and names to try for NVRTC, in order."""
    files = [path for path in _in_wheels("*/lib/libnvrtc.so.*") if ".alt." not in path]
    return [*files, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"]


def nvtx() -> list[str]:
    """Files and names to try for NVTX, in order. NVIDIA renamed the library in CUDA 12.9."""
    names = ("libnvtx3interop.so.1", "libnvToolsExt.so.1")
    return [*(path for name in names for path in _in_wheels(f"*/lib/{name}")), *names]


def nccl_version() -> int:
    """NCCL's version code (22809 is 2.28.9), 0 if none loads."""
    number = ctypes.c_int()
    for name in nccl():
        try:
            ctypes.CDLL(name).ncclGetVersion(ctypes.byref(number))
            return number.value
        except (OSError, AttributeError):
            continue
    return 0


def has_driver() -> bool:
    """Whether the CUDA driver loads."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
