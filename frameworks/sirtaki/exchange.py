"""Exchanges bytes and Python objects between the ranks. Used by init, process sets and every adapter."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from sirtaki.checks.call_site import call_site
from sirtaki.native import core

_HOST = -1


def _address(block: bytearray) -> tuple[int, Any]:
    """(address of the bytes, an object that keeps them alive)."""
    if not block:
        return 0, None
    view = (ctypes.c_char * len(block)).from_buffer(block)
    return ctypes.addressof(view), (block, view)


def start_transfer(verb: str, block: bytearray, peer: int, tag: int) -> Any:
    """Begins to send the block to rank peer, or to receive into it: verb "send" or "receive". Returns the work."""
    address, keep = _address(block)
    tensor = (address, address, core.DTYPES["uint8"], (len(block),), _HOST)
    return core.submit(core.VERBS[verb], "", [tensor], root=peer, tag=tag, site=call_site(), keep=keep)


def allgather_bytes(payload: bytes, name: str, process_set: int = 0) -> list[bytes]:
    """The payload of every rank of the set, in the order of ranks within the set. Lengths may differ. Blocks."""
    block = framed(payload)
    address, keep = _address(block)
    work = core.submit(
        core.VERBS["allgather"],
        name,
        [(address, 0, core.DTYPES["uint8"], (len(block),), _HOST)],
        process_set=process_set,
        site=call_site(),
        awaited=True,
        keep=keep,
    )
    work.wait()
    (joined,) = work.buffers()
    assert joined is not None  # the core allocates the result of an allgather
    return unframed(bytes(joined))


def framed(payload: bytes) -> bytearray:
    """The payload with its length in front, so that unframed() can split joined payloads."""
    return bytearray(len(payload).to_bytes(8, "little") + payload)


def unframed(joined: bytes) -> list[bytes]:
    """Splits joined results of framed() into their payloads."""
    parts, start = [], 0
    while start < len(joined):
        end = start + 8 + int.from_bytes(joined[start : start + 8], "little")
        parts.append(joined[start + 8 : end])
        start = end
    return parts


def allreduce_largest(payload: bytes, name: str, process_set: int = 0) -> bytes:
    """At each position the largest byte of any rank of the set. All payloads must have the same length. Blocks."""
    block = bytearray(payload)
    _reduce_to_largest(block, "uint8", len(block), name, process_set)
    return bytes(block)


def _reduce_to_largest(block: bytearray, dtype: str, count: int, name: str, process_set: int) -> None:
    address, keep = _address(block)
    core.submit(
        core.VERBS["allreduce"],
        name,
        [(address, address, core.DTYPES[dtype], (count,), _HOST)],
        op=core.OPS["max"],
        process_set=process_set,
        site=call_site(),
        awaited=True,
        keep=keep,
    ).wait()


def largest_numbers(values: Sequence[float], name: str) -> list[float]:
    """At each position the largest number of any rank. All ranks pass the same count. Blocks."""
    block = bytearray(struct.pack(f"{len(values)}d", *values))
    _reduce_to_largest(block, "float64", len(values), name, 0)
    return list(struct.unpack(f"{len(values)}d", block))


def _broadcast_in_place(block: bytearray, root_rank: int, name: str, process_set: int) -> None:
    address, keep = _address(block)
    core.submit(
        core.VERBS["broadcast"],
        name,
        [(address, address, core.DTYPES["uint8"], (len(block),), _HOST)],
        root=root_rank,
        process_set=process_set,
        site=call_site(),
        awaited=True,
        keep=keep,
    ).wait()


def broadcast_arrays(arrays: Sequence[Any], root_rank: int, name: str) -> None:
    """Overwrites contiguous numpy arrays by the root's; all have the same sizes on every rank. Blocks."""
    works = []
    for number, array in enumerate(arrays):
        tensor = (array.ctypes.data, array.ctypes.data, core.DTYPES["uint8"], (array.nbytes,), _HOST)
        verb, site = core.VERBS["broadcast"], call_site()
        works.append(core.submit(verb, f"{name}.{number}", [tensor], root=root_rank, site=site, keep=array))
    for work in works:
        work.wait()


def broadcast_bytes(payload: bytes | None, root_rank: int, name: str, process_set: int = 0) -> bytes:
    """The root's payload on every rank of the set; other ranks pass None. root_rank is a global rank. Blocks."""
    length = bytearray((0 if payload is None else len(payload)).to_bytes(8, "little"))
    _broadcast_in_place(length, root_rank, f"{name}.sz", process_set)
    size = int.from_bytes(length, "little")
    block = bytearray(payload) if payload is not None else bytearray(size)
    if size:
        _broadcast_in_place(block, root_rank, f"{name}.t", process_set)
    return bytes(block)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: int = 0) -> Any:
    """A copy of the root's object on every other rank; the root gets its own object back."""
    import cloudpickle

    payload = cloudpickle.dumps(obj) if core.rank() == root_rank else None
    received = broadcast_bytes(payload, root_rank, f"broadcast.{name or 'object'}", process_set)
    return obj if payload is not None else cloudpickle.loads(received)


def allgather_object(obj: Any, name: str | None = None, process_set: int = 0) -> list[Any]:
    """The objects of all ranks of the set, in the order of ranks within the set."""
    import cloudpickle

    parts = allgather_bytes(cloudpickle.dumps(obj), f"allgather.{name or 'object'}", process_set)
    return [cloudpickle.loads(part) for part in parts]
