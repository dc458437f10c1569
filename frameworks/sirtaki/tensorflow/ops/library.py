"""Loads the compiled kernels into TensorFlow and connects them to this process's engine."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from sirtaki.native import core

_FILE = Path(__file__).parents[2] / "_tensorflow_ops.so"


def _load() -> Any:
    """The module of op functions that TensorFlow generates. ImportError with the loader's message."""
    table = core.c_api()  # raises ImportError itself if the core is missing
    if not _FILE.exists():
        raise ImportError(f"Sirtaki's TensorFlow kernels are not installed: no {_FILE}; install the package with pip")
    try:
        module = tf.load_op_library(str(_FILE))
    except tf.errors.OpError as error:
        raise ImportError(f"Sirtaki's TensorFlow kernels do not load: {error.message} (tried {_FILE})") from error
    connect = ctypes.CDLL(str(_FILE)).sirtaki_tensorflow_connect
    connect.argtypes, connect.restype = [ctypes.c_void_p], ctypes.c_char_p
    problem = connect(table).decode()
    if problem:
        raise ImportError(
            f"Sirtaki's TensorFlow kernels ({_FILE}) do not fit TensorFlow {tf.__version__} (Sirtaki needs 2.16 or "
            f"later): {problem}"
        )
    return module


ops: Any = _load()
