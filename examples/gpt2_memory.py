"""Bytes for each parameter: what the formulas say, and what a process really holds."""

import gc
import resource

import torch

GIB = 1 << 30
# Weights, gradients and Adam's state. A model of bfloat16 without sharding has float32 weights and autocast.
STAGES = {
    "whole": {"float32": lambda n: 16.0, "bfloat16": lambda n: 16.0},
    "sharded": {"float32": lambda n: 8 + 8 / n, "bfloat16": lambda n: 4 + 12 / n},
    "sharded, gradients freed": {"float32": lambda n: 4 + 12 / n, "bfloat16": lambda n: 2 + 14 / n},
}


def stage_of(mode: str, free_gradients: bool) -> str | None:
    """None: no formula; ZeroRedundancyOptimizer gives whole parameters to ranks."""
    if mode == "zero":
        return None
    if not mode.startswith("sharded"):
        return "whole"
    return "sharded, gradients freed" if free_gradients else "sharded"


def table(parameters: int, dtype: str, ranks: tuple[int, ...] = (1, 2, 4, 8)) -> list[str]:
    """GiB of one rank by stage and number of ranks, without activations."""
    lines = [f"Memory of weights, gradients and Adam's state, {parameters:,} parameters, {dtype}, GiB on each rank:"]
    lines.append(f"{'':26}" + "".join(f"{f'{n} ranks':>10}" for n in ranks))
    for stage, formulas in STAGES.items():
        lines.append(f"{stage:26}" + "".join(f"{parameters * formulas[dtype](n) / GIB:10.2f}" for n in ranks))
    return lines


def held(place: torch.device) -> int:
    """Bytes that this process holds now: of the GPU as torch counts, of the host in all tensors."""
    gc.collect()
    if place.type == "cuda":
        torch.cuda.synchronize(place)
        return torch.cuda.memory_allocated(place)
    tensors = [entry for entry in gc.get_objects() if type(entry) in (torch.Tensor, torch.nn.Parameter)]
    tensors += [tensor.grad for tensor in tensors if tensor.is_leaf and type(tensor.grad) is torch.Tensor]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def peaks(place: torch.device) -> str:
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    device = f"{torch.cuda.max_memory_allocated(place) / GIB:.2f} GiB" if place.type == "cuda" else "none"
    return f"peak memory: device {device}, host {host:.2f} GiB"
