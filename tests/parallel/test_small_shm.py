"""C48: too little shared memory. Data goes another way, after one warning that names the size and the remedy."""

import jobs

BODY = """
from mpi4py import MPI  # MPI has taken what it needs itself
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # as in a /dev/shm of 1 MB
import torch, sirtaki.torch as hvd
from sirtaki.native import core
hvd.init()
ones = torch.ones(25_000_000)
assert torch.equal(hvd.allreduce_(ones, name="large", op=hvd.Sum), torch.full_like(ones, hvd.size()))
uses = core.plane_uses()
assert "shm" not in uses or not uses["shm"], uses
print("right", flush=True)
"""


def test_a_large_allreduce_in_too_little_shared_memory():
    ended = jobs.run_script(4, BODY, 60)
    assert ended.code == 0 and ended.output.count("right") == 4, ended.output
    (warning,) = [line for line in ended.output.splitlines() if "shared memory" in line]
    assert "[rank 0]" in warning and "/dev/shm has no room for 10" in warning and " bytes: " in warning
    assert "--shm-size=1g" in warning
