"""Four GPUs, as two hosts of two: SIRTAKI_HOSTNAME gives each rank its host. Process sets over halves of the ranks."""

import jobs
import pytest
import torch
from gpu import needs_gpu
from test_two_level import START

pytestmark = [needs_gpu, pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four GPUs")]

# Each rank takes the GPU of its number, since both hosts are this one.
BODY = """
gpu = torch.device("cuda", rank)
torch.cuda.set_device(gpu)
assert (hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()) == (rank % 2, 2, rank // 2, 2)
# Whole numbers, so that the order of sums does not matter.
def of_all(shape, dtype):
    return [torch.randint(1, 4, shape, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(size)]
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64):
    for count in (1, 1003, 3_000_001):
        parts = of_all((count,), dtype)
        for op, expected in ((hvd.Sum, sum(parts)), (hvd.Max, torch.stack(parts).amax(0))):
            result = hvd.allreduce(parts[rank].to(gpu), op=op, name=f"{dtype} {count} {int(op)}")
            assert torch.equal(result.cpu(), expected), (dtype, count, op)
parts = of_all((8, 500), torch.float32)
assert torch.equal(hvd.allgather(parts[rank].to(gpu)).cpu(), torch.cat(parts))
assert torch.equal(hvd.broadcast(parts[rank].to(gpu), 3).cpu(), parts[3])
assert torch.equal(hvd.reducescatter(parts[rank].to(gpu), op=hvd.Sum).cpu(), sum(parts)[2 * rank : 2 * rank + 2])
blocks = torch.cat([part[2 * rank : 2 * rank + 2] for part in parts])
assert torch.equal(hvd.alltoall(parts[rank].to(gpu)).cpu(), blocks)
uses = core.plane_uses()
assert uses.get("HOW", 0) > 0, uses
half = [hvd.add_process_set([0, 1]), hvd.add_process_set([2, 3])][rank // 2]
across = [hvd.add_process_set([0, 2]), hvd.add_process_set([1, 3])][rank % 2]
for members, other in ((half, rank ^ 1), (across, rank ^ 2)):
    for step in range(20):
        own = torch.full((100_000 + step,), float(rank + step), device=gpu)
        total = hvd.allreduce(own, op=hvd.Sum, process_set=members, name=f"set {step}")
        assert total[0].item() == total[-1].item() == rank + other + 2 * step
    gathered = hvd.allgather(torch.full((rank + 1,), rank, device=gpu), process_set=members, name="gathered")
    assert gathered.tolist() == [r for r in sorted((rank, other)) for _ in range(r + 1)]
# All sets at once.
handles = [
    hvd.allreduce_async(torch.full((50_000,), float(rank), device=gpu), op=hvd.Sum, process_set=members, name=f"{n}")
    for n in range(10)
    for members in (hvd.global_process_set, half, across)
]
expected = [6.0, rank + (rank ^ 1), rank + (rank ^ 2)] * 10
assert [hvd.synchronize(handle)[7].item() for handle in handles] == expected
torch.cuda.synchronize()
print("passed")
hvd.shutdown()
"""


@pytest.mark.parametrize(("hierarchical", "how"), [("1", "hierarchical"), ("0", "nccl")])
def test_two_hosts_of_two_gpus(hierarchical, how):
    extra = {
        "RANKS_OF_HOST": "2",
        "SIRTAKI_DYNAMIC_PROCESS_SETS": "1",
        "SIRTAKI_HIERARCHICAL_ALLREDUCE": hierarchical,
        "NCCL_NVLS_ENABLE": "0",
    }
    ended = jobs.run_script(4, START + BODY.replace("HOW", how), extra=extra)
    assert ended.code == 0 and ended.output.count("passed") == 4, ended.output
