"""Shows that code which is compiled apart from Sirtaki can use its engine: a C library sums an array over the ranks,
and sends one from rank to rank.

cc -shared -fPIC -I$(python -c 'import sirtaki; print(sirtaki.get_include())') c_adapter.c -o libc_adapter.so
sirtakirun -np 2 python c_adapter.py ./libc_adapter.so
"""

import ctypes
import sys

import numpy as np

import sirtaki


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    array, text = [ctypes.c_void_p, ctypes.c_int64], [ctypes.c_char_p, ctypes.c_int]
    library.sum_floats.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *array, *text]
    for function in (library.send_floats, library.receive_floats):
        function.argtypes = [ctypes.c_void_p, *array, ctypes.c_int, ctypes.c_int, *text]
    sirtaki.init()
    rank, size = sirtaki.rank(), sirtaki.size()

    def summed(name: str, data: np.ndarray) -> str:
        """Sums in place; the engine's message, "" if all went well."""
        message = ctypes.create_string_buffer(512)
        error = library.sum_floats(sirtaki.c_api(), name.encode(), data.ctypes.data, data.size, message, len(message))
        return f"error {error}: {message.value.decode()}" if error else ""

    def passed_on(data: np.ndarray) -> str:
        """Rank 0 sends the data to the last rank, with tag 5; the message as above."""
        message = ctypes.create_string_buffer(512)
        function, peer = (library.send_floats, size - 1) if rank == 0 else (library.receive_floats, 0)
        error = function(sirtaki.c_api(), data.ctypes.data, data.size, peer, 5, message, len(message))
        return f"error {error}: {message.value.decode()}" if error else ""

    data = np.full(1000, rank + 1.0, np.float32)
    complaint = summed("ones", data)
    assert not complaint, complaint
    assert (data == size * (size + 1) / 2).all(), data
    uneven = summed("uneven", np.zeros(10 + rank, np.float32))  # another count on each rank: an error, on all of them
    sent, misfit = np.full(5, rank, np.float32), ""
    if size > 1 and rank in (0, size - 1):
        complaint = passed_on(sent)
        assert not complaint and not sent.any(), complaint
        misfit = passed_on(np.zeros(10 + rank, np.float32))
    sirtaki.shutdown()
    if rank == 0:
        print(f"{size} ranks summed {data.size} floats to {data[0]:g} each")
        print(f"a send and a receive that differ give: {misfit}")
        print(f"and counts that differ give: {uneven.splitlines()[0] if uneven else 'no error'}")


if __name__ == "__main__":
    main()
