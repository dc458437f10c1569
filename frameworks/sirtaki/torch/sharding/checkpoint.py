"""The state of pieces as torch.distributed.checkpoint reads and writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sirtaki.torch.sharding.pieces import Piece
from sirtaki.torch.sharding.state import MASTER, is_divided


class ShardTensor(torch.Tensor):
    """A flat tensor with all elements of a parameter, in the order of its memory, of which this rank has some.

    It has the three methods by which torch.distributed.checkpoint finds the parts of a tensor, and no operations.
    """

    local: torch.Tensor
    start: int

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, piece: Piece, local: torch.Tensor) -> ShardTensor:
        shape = (piece.parameter.numel(),)
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=local.dtype, device=local.device)
        made.local, made.start = local, piece.start
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"ShardTensor({len(self.local)} of {self.shape[0]} elements, from {self.start})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise RuntimeError(f"{function} needs all elements, but this rank has only a part; use .local")

    def _chunk(self) -> Any:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return ChunkStorageMetadata(torch.Size([self.start]), torch.Size([len(self.local)]))

    def __create_chunk_list__(self) -> list[Any]:
        return [self._chunk()] if len(self.local) else []

    def __create_write_items__(self, name: str, _: Any) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.local)
        data = TensorWriteData(self._chunk(), properties, torch.Size(self.shape))
        index = MetadataIndex(name, torch.Size([self.start]))
        return [WriteItem(index, WriteItemType.SHARD, tensor_data=data)] if len(self.local) else []

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        if index.offset is not None and tuple(index.offset) != (self.start,):
            raise ValueError(f"{index.fqn}: this rank's part begins at {self.start}, not at {tuple(index.offset)}")
        return self.local


def sharded(groups: Sequence[dict[str, Any]], pieces: dict[str, Piece], states: Any) -> dict[str, Any]:
    """The state by the parameters' names, and the groups by their numbers."""
    found: dict[str, Any] = {}
    for name, piece in pieces.items():
        held = states.get(piece.tensor, {})
        if piece.has_master:
            held = {**held, MASTER: piece.tensor.detach()}
        if held and piece.is_updated:
            found[name] = {key: _part(piece, key, value) for key, value in held.items()}
    listed = enumerate(groups)
    options = {str(n): {key: value for key, value in group.items() if key != "params"} for n, group in listed}
    return {"state": found, "param_groups": options}


def _part(piece: Piece, key: str, value: Any) -> Any:
    return ShardTensor.of(piece, value) if is_divided(key, value, piece.tensor) and len(piece) else value
