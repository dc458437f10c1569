"""C70: more ranks than cores, over shared memory and over MPI."""

import jobs

SUMS = """
import os
core_number = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core_number})
import numpy, sirtaki as hvd
from sirtaki.native import core
for data in ("shm", "mpi"):
    os.environ["SIRTAKI_CPU_OPERATIONS"] = data
    hvd.init()
    for step in range(200):
        mine = numpy.full(256, hvd.rank() + step, numpy.float32)
        summed = numpy.empty_like(mine)
        tensor = (mine.ctypes.data, summed.ctypes.data, core.DTYPES["float32"], mine.shape, -1)
        core.submit(core.VERBS["allreduce"], "x", [tensor], op=core.OPS["sum"]).wait()
        assert (summed == 6 + 4 * step).all(), (data, step)
    hvd.shutdown()
assert os.sched_getaffinity(0) == {core_number}
os.write(1, b"good\\n")
"""


def test_four_ranks_on_one_core():
    """200 allreduces of 1 KB each; the limit of the job is what fails this test."""
    ended = jobs.run_script(4, SUMS, 30)
    assert ended.code == 0 and ended.output.count("good") == 4, ended.output
