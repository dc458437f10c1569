"""Ranks on several hosts, of which some share memory: hosts are told apart by SIRTAKI_HOSTNAME."""

import jobs

# Ranks 0 and 1 on one host, 2 and 3 on another; or three and one.
START = """
import os, sys
mine = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["SIRTAKI_HOSTNAME"] = f"host{mine // int(os.environ['RANKS_OF_HOST'])}"
import torch, sirtaki.torch as hvd
from sirtaki.native import core
hvd.init()
rank, size = hvd.rank(), hvd.size()
"""

REDUCTIONS = """
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank % 2, 2, rank // 2, 2)
def everybodys(make):
    return torch.stack([make(torch.Generator().manual_seed(r)) for r in range(size)])
REFERENCES = {hvd.Sum: lambda t: t.sum(0), hvd.Min: lambda t: t.amin(0), hvd.Max: lambda t: t.amax(0),
              hvd.Product: lambda t: t.prod(0), hvd.Average: lambda t: t.double().mean(0).to(t.dtype)}
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8):
    inputs = everybodys(lambda g: torch.randint(1, 4, (3, 1001), generator=g).to(dtype))
    for op, reference in REFERENCES.items():
        result = hvd.allreduce(inputs[rank], op=op, name=f"{dtype} {op}")
        assert torch.equal(result, reference(inputs).to(dtype)), (dtype, op)
# A batch of many pieces; sums that are rounded are the same bits everywhere, 16-bit ones rounded once.
inputs = [everybodys(lambda g: torch.randn(n, generator=g)) for n in (1, 70_001, 3, 900_001)]
results = hvd.grouped_allreduce([each[rank] for each in inputs], op=hvd.Sum)
for each, result in zip(inputs, results):
    torch.testing.assert_close(result, each.sum(0))
    assert all(torch.equal(other, result) for other in hvd.allgather(result[None]))
halves = everybodys(lambda g: torch.randn(50_001, generator=g)).bfloat16()
result = hvd.allreduce(halves[rank], op=hvd.Sum)
local = halves.float().view(2, 2, -1).sum(1).sum(0).bfloat16()
assert torch.equal(result, local)
uses = core.plane_uses()
# Min and Max of the four float dtypes and the average of 64-bit integers need one rank that sees all ranks' elements.
assert uses["point-to-point"] == 4 * 2 + 1 and uses["two-level"] == 35 - 9 + 2 and uses["mpi"] == len(inputs), uses
host = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])][rank // 2]
ends = hvd.add_process_set([0, 3])
assert hvd.allreduce(torch.ones(5), op=hvd.Sum, process_set=host).tolist() == [2] * 5
assert core.plane_uses()["shm"] == 1
by_mpi = core.plane_uses()["mpi"]
if ends.included():
    assert hvd.allreduce(torch.ones(5), op=hvd.Sum, process_set=ends).tolist() == [2] * 5
    assert core.plane_uses()["mpi"] == by_mpi + 1
print("passed")
hvd.shutdown()
"""

DEATH = """
assert hvd.local_size() == (3 if rank < 3 else 1)
data = torch.ones(300_001)
for step in range(10_000):
    if (rank, step) == (1, 5):
        os.kill(os.getpid(), 9)
    total = hvd.allreduce(data, op=hvd.Sum)
    assert total[0] == total[-1] == 4
"""


def test_allreduce():
    ended = jobs.run_script(4, START + REDUCTIONS, extra={"RANKS_OF_HOST": "2", "SIRTAKI_DYNAMIC_PROCESS_SETS": "1"})
    assert ended.code == 0 and ended.output.count("passed") == 4, ended.output


def test_a_rank_dies():
    """C23, with unequal hosts: the job ends."""
    ended = jobs.run_script(4, START + DEATH, extra={"RANKS_OF_HOST": "3"})
    assert ended.code not in (0, None), ended.output
