"""Shows that code which is compiled apart from Sirtaki can use its engine: a C library sums an array over the ranks.

cc -shared -fPIC -I$(python -c 'import sirtaki; print(sirtaki.get_include())') c_adapter.c -o libc_adapter.so
sirtakirun -np 2 python c_adapter.py ./libc_adapter.so
"""

import ctypes
import sys

import numpy as np

import sirtaki


def main() -> None:
    sum_floats = ctypes.CDLL(sys.argv[1]).sum_floats
    sum_floats.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p]
    sum_floats.argtypes += [ctypes.c_int]
    sirtaki.init()
    rank, size = sirtaki.rank(), sirtaki.size()

    def summed(name: str, data: np.ndarray) -> str:
        """Sums in place; the engine's message, "" if all went well."""
        message = ctypes.create_string_buffer(512)
        error = sum_floats(sirtaki.c_api(), name.encode(), data.ctypes.data, data.size, message, len(message))
        return f"error {error}: {message.value.decode()}" if error else ""

    data = np.full(1000, rank + 1.0, np.float32)
    complaint = summed("ones", data)
    assert not complaint, complaint
    assert (data == size * (size + 1) / 2).all(), data
    uneven = summed("uneven", np.zeros(10 + rank, np.float32))  # another count on each rank: an error, on all of them
    sirtaki.shutdown()
    if rank == 0:
        print(f"{size} ranks summed {data.size} floats to {data[0]:g} each")
        print(f"and counts that differ give: {uneven.splitlines()[0] if uneven else 'no error'}")


if __name__ == "__main__":
    main()
