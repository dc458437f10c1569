"""MPI copies large messages out of the sender's memory, which a container's profile may refuse."""

import platform

import jobs
import pytest

# A filter of system calls, as in seccomp(2): 310 and 311, process_vm_readv and process_vm_writev, fail with EPERM.
REFUSE = """
import ctypes, struct
def instruction(*fields): return struct.pack("HBBI", *fields)
filter = instruction(0x20, 0, 0, 0) + instruction(0x15, 1, 0, 310) + instruction(0x15, 0, 1, 311)
filter += instruction(0x06, 0, 0, 0x00050001) + instruction(0x06, 0, 0, 0x7FFF0000)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(5, filter)), 0, 0) == 0
"""
EXCHANGE = """
import numpy, os, sirtaki as hvd
hvd.init()
from mpi4py import MPI
world = MPI.COMM_WORLD
sent, received = numpy.full(1_000_000, float(world.rank)), numpy.empty(1_000_000)
world.Sendrecv(sent, (world.rank + 1) % world.size, recvbuf=received, source=(world.rank - 1) % world.size)
assert (received == (world.rank - 1) % world.size).all()
os.write(1, b"right\\n")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of the system calls are x86-64's")
@pytest.mark.parametrize("count", [2, 3])
def test_large_messages_without_access_to_other_processes(count):
    ended = jobs.run_script(count, REFUSE + EXCHANGE)
    assert ended.code == 0 and ended.output.count("right") == count, ended.output
