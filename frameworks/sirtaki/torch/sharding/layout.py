"""How a bucket's parameters lie in memory that is reduced and scattered, or gathered: one row for each rank, with its
pieces one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.native import core
from sirtaki.torch.ops.tensors import empty_memory
from sirtaki.torch.sharding.pieces import Piece


def copy_all(places: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Tiny parameters may have no elements on a rank."""
    if places:
        torch._foreach_copy_(places, values)


class Layout:
    """Equal on all ranks. width: elements of a row."""

    def __init__(self, pieces: Sequence[Piece], ranks: int, rank: int) -> None:
        self.pieces = pieces
        self.ranks = ranks
        self.rank = rank
        self.width = 0
        self._starts: list[int] = []
        self._splits: list[int] = []  # of this rank's row: each piece, and the rest of its chunk
        for piece in pieces:
            self._starts.append(self.width)
            self._splits += [len(piece), piece.chunk - len(piece)]
            self.width += piece.chunk
        self.digest = core.layout_checksum([piece.parameter for piece in pieces])

    @property
    def elements(self) -> int:
        return self.ranks * self.width

    def own_row(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.rank * self.width : (self.rank + 1) * self.width]

    def own_pieces(self, row: torch.Tensor) -> list[torch.Tensor]:
        """This rank's piece of each parameter, as a part of its row."""
        return list(row.split_with_sizes(self._splits)[::2])

    def places(self, memory: torch.Tensor) -> list[list[torch.Tensor]]:
        """Where each parameter lies: full chunks, and the rest of a chunk."""
        rows = memory.view(self.ranks, self.width)
        return [self._place(rows, piece, start) for piece, start in zip(self.pieces, self._starts, strict=True)]

    def _place(self, rows: torch.Tensor, piece: Piece, start: int) -> list[torch.Tensor]:
        count = piece.parameter.numel()
        if not count:
            return []
        full, rest = divmod(count, piece.chunk)
        found = [rows[:full, start : start + piece.chunk]] if full else []
        return [*found, rows[full, start : start + rest]] if rest else found

    def parts(self, elements: torch.Tensor, number: int) -> list[torch.Tensor]:
        """The same parts of a parameter or gradient, whose memory has no holes and the order of the parameter's."""
        chunk = self.pieces[number].chunk
        count, start = elements.numel(), elements.storage_offset()
        if not count:
            return []
        full, rest = divmod(count, chunk)
        found = [elements.as_strided((full, chunk), (chunk, 1), start)] if full else []
        return [*found, elements.as_strided((rest,), (1,), start + full * chunk)] if rest else found

    def others(self, found: list[torch.Tensor]) -> list[torch.Tensor]:
        """Without this rank's chunk. found: of one parameter; full chunks are rows, the rest is flat."""
        kept = []
        first = 0  # the rank of the first chunk
        for part in found:
            if part.dim() == 2:
                kept += [part[: self.rank], part[self.rank + 1 :]]
                first = len(part)
            elif first != self.rank:
                kept.append(part)
        return [part for part in kept if part.numel()]


class Rows:
    """Memory for the rows of all ranks, with views of it. They are made once: that takes longer than their use.

    places: of each parameter, as Layout.places().
    """

    def __init__(self, layout: Layout, dtype: torch.dtype, device: torch.device) -> None:
        self.memory = empty_memory((layout.elements,), dtype, device)
        self.places = layout.places(self.memory)
        self._layout = layout
        self._copies: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # into parameters, from here
        self._addresses: list[int] = []  # of the parameters for which these were made

    def unpack(self) -> None:
        """Writes the rows of the other ranks into the parameters; this rank's elements are there."""
        layout = self._layout
        addresses = [piece.parameter.data_ptr() for piece in layout.pieces]
        if addresses != self._addresses:
            places = [place for found in self.places for place in layout.others(found)]
            wholes = [piece.parameter.detach() for piece in layout.pieces]
            parts = [part for n, whole in enumerate(wholes) for part in layout.others(layout.parts(whole, n))]
            self._copies, self._addresses = (parts, places), addresses
        copy_all(*self._copies)
