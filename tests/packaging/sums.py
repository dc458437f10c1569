"""A job of any number of ranks that checks results bit by bit, in sizes around the edges of the vector kernels.

    sirtakirun -np 2 python tests/packaging/sums.py

Every rank makes the inputs of all ranks, so it knows each result. Needs torch and no test framework, since it also runs
where only a wheel is installed (tests/packaging/aarch64.sh).
"""

import torch

import sirtaki.torch as hvd

SIZES = (*range(1, 20), 31, 32, 33, 63, 64, 65, 127, 129, 1023, 4096 + 7, 16384 + 1, (1 << 18) + 3)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8)


def inputs(dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    """Of each rank. Small floats become subnormal float16, large ones make sums that are infinite there."""
    generator = torch.Generator().manual_seed(size)
    made = []
    for _ in range(hvd.size()):
        values = torch.randn(size, generator=generator) * 10.0 ** torch.randint(-7, 5, (size,), generator=generator)
        made.append(values.to(dtype) if dtype.is_floating_point else (values.abs() % 100).to(dtype))
    return made


def reduced(op: object, parts: list[torch.Tensor]) -> torch.Tensor:
    """16-bit floats are summed in float32 and rounded once (docs/arithmetic.md)."""
    dtype = parts[0].dtype
    wide = [part.float() if dtype in (torch.float16, torch.bfloat16) else part for part in parts]
    total = wide[0]
    for part in wide[1:]:
        total = {hvd.Min: torch.minimum, hvd.Max: torch.maximum}.get(op, torch.add)(total, part)
    return (total * (1 / len(parts)) if op == hvd.Average else total).to(dtype)


def main() -> None:
    hvd.init()
    checked = 0
    for dtype in DTYPES:
        for size in SIZES:
            parts = inputs(dtype, size)
            for op in (hvd.Sum, hvd.Min, hvd.Max, *([hvd.Average] if dtype.is_floating_point else [])):
                got = hvd.allreduce(parts[hvd.rank()], op=op, name=f"{dtype} {size} {op}")
                expected = reduced(op, parts)
                assert torch.equal(got, expected), f"{op} of {size} {dtype}: {got}, not {expected}"
                checked += 1
    if hvd.rank() == 0:
        print(f"{checked} results are right on {hvd.size()} ranks")
    hvd.shutdown()


if __name__ == "__main__":
    main()
