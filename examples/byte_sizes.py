"""Sizes of buffers as people write them."""

import argparse


def parse(text: str) -> int:
    """ "64", "1KiB" or "16M" to a number of bytes, which must be whole float32 numbers."""
    letters = text.lower().removesuffix("ib").removesuffix("b")
    shift = {"k": 10, "m": 20, "g": 30}.get(letters[-1:], 0)
    size = int(letters[:-1] if shift else letters) << shift
    if size < 4 or size % 4:
        raise argparse.ArgumentTypeError(f"must be a positive multiple of 4 bytes, got {text}")
    return size


def show(nbytes: int) -> str:
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if nbytes >> shift:
            return f"{nbytes / (1 << shift):g} {unit}"
    return f"{nbytes} B"
