"""How a bucket's parameters lie in memory that is reduced and scattered, or gathered: one row for each rank, with its
pieces one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sirtaki.native import core
from sirtaki.torch.sharding.pieces import Piece, flat


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
        for piece in pieces:
            self._starts.append(self.width)
            self.width += piece.chunk
        self.digest = core.layout_checksum([piece.parameter for piece in pieces])

    @property
    def elements(self) -> int:
        return self.ranks * self.width

    def own_row(self, memory: torch.Tensor) -> torch.Tensor:
        return memory[self.rank * self.width : (self.rank + 1) * self.width]

    def own_pieces(self, row: torch.Tensor) -> list[torch.Tensor]:
        """This rank's piece of each parameter, as a part of its row."""
        pairs = zip(self.pieces, self._starts, strict=True)
        return [row[start : start + len(piece)] for piece, start in pairs]

    def places(self, memory: torch.Tensor, number: int) -> list[torch.Tensor]:
        """Where one parameter lies: full chunks, and the rest of a chunk."""
        piece, start = self.pieces[number], self._starts[number]
        count = piece.parameter.numel()
        if not count:
            return []
        rows = memory.view(self.ranks, self.width)
        full, rest = divmod(count, piece.chunk)
        found = [rows[:full, start : start + piece.chunk]] if full else []
        return [*found, rows[full, start : start + rest]] if rest else found

    def parts(self, elements: torch.Tensor, number: int) -> list[torch.Tensor]:
        """The same parts of a parameter or gradient. elements: all, in the order of the parameter's memory."""
        chunk = self.pieces[number].chunk
        if not len(elements):
            return []
        full, rest = divmod(len(elements), chunk)
        found = [elements[: full * chunk].view(full, chunk)] if full else []
        return [*found, elements[full * chunk :]] if rest else found

    def unpack(self, memory: torch.Tensor) -> None:
        """Writes the rows of the other ranks into the parameters; this rank's elements are there."""
        numbers = range(len(self.pieces))
        places = [place for n in numbers for place in self._others(self.places(memory, n))]
        parts = [part for n in numbers for part in self._others(self.parts(flat(self.pieces[n].parameter), n))]
        copy_all(parts, places)

    def _others(self, found: list[torch.Tensor]) -> list[torch.Tensor]:
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
