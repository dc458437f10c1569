"""Where the libraries for GPUs may lie: NCCL, and NVRTC, which compiles our kernels. Nothing is loaded here.

A library that the process has loaded already comes before all of these; then the wheels beside the framework, then
whatever the loader knows.
"""

from __future__ import annotations

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
