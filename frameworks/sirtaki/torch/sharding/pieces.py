"""Which elements of a parameter a rank updates: its piece. The same rule for every parameter, so that no state moves
when parameters are frozen, added or sent in other buckets.
"""

from __future__ import annotations

from typing import Any

import torch

from sirtaki.torch.sharding.guard import GuardedGradient

# Pieces begin at multiples of so many elements: loops over vectors then treat the same elements as in the whole
# parameter, so that results are equal in all bits.
ALIGNMENT = 16
_MASTER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
DTYPES = (*_MASTER, torch.float32, torch.float64)


def chunk_of(elements: int, ranks: int) -> int:
    """Elements of each rank's piece; the last pieces may be shorter or empty."""
    return -(-elements // (ranks * ALIGNMENT)) * ALIGNMENT


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the order of memory, without a copy."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def has_no_holes(tensor: torch.Tensor) -> bool:
    """Whether each element of the memory belongs to exactly one element of the tensor."""
    return tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def laid_out_like(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy, with its elements in the order of the parameter's memory."""
    if tensor.stride() == parameter.stride():
        return tensor
    return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


class Piece:
    """This rank's elements [start, stop) of a parameter, in the order of its memory.

    own: these elements in the parameter's memory, 1-D. tensor: what the user's optimizer updates: `own`, or for
    parameters of 16 bits a float32 copy, the master weights. gradient: the reduced one, 1-D, of the parameter's dtype;
    None if no rank has one. guard: takes the place of the parameter's gradient.
    """

    def __init__(self, parameter: torch.Tensor, ranks: int, rank: int) -> None:
        count = parameter.numel()
        self.parameter = parameter
        self.chunk = chunk_of(count, ranks)
        self.start = min(rank * self.chunk, count)
        self.stop = min(self.start + self.chunk, count)
        self.has_master = parameter.dtype in _MASTER
        self.own = self._found()
        self.tensor = self.own.to(_MASTER[parameter.dtype]) if self.has_master else self.own
        self.gradient: torch.Tensor | None = None
        self.guard = GuardedGradient.of(self)

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def is_updated(self) -> bool:
        """Whether this rank's optimizer has it: not if other ranks have all elements."""
        return len(self) > 0 or self.parameter.numel() == 0

    def _found(self) -> torch.Tensor:
        self._address = self.parameter.data_ptr()
        return flat(self.parameter)[self.start : self.stop]

    def find_memory(self) -> None:
        """The program may have given the parameter other memory."""
        if self.parameter.data_ptr() != self._address:
            self.own.data = self._found()  # the same tensor, since the optimizer's state may belong to it

    def follow_parameter(self) -> None:
        """Before a step: takes over what the program has written into the parameter, or its new memory."""
        self.find_memory()
        if self.has_master:
            follow(self.tensor, self.own)

    def store(self) -> None:
        """Writes the master weights into the parameter's own elements."""
        if self.has_master:
            self.own.copy_(self.tensor)

    def give_gradient(self) -> None:
        """To the optimizer, for a step."""
        gradient = self.gradient
        self.tensor.grad = gradient if gradient is None else gradient.to(self.tensor.dtype)

    def drop_gradient(self) -> None:
        self.tensor.grad = self.gradient = None


def follow(masters: torch.Tensor, values: torch.Tensor) -> None:
    """Takes over the values that master weights do not round to: the program has written them.

    They are compared each time. No count of writes shows those through `.data` or by a collective.
    """
    kept = masters.to(values.dtype) == values
    masters.copy_(torch.where(kept, masters, values.to(masters.dtype)))


class Pieces:
    """Those of one optimizer on this rank, made when they are first needed."""

    def __init__(self, process_set: Any, ranks: int, rank: int) -> None:
        self.process_set = process_set
        self.ranks = ranks
        self.rank = rank
        self._by_parameter: dict[int, Piece] = {}

    def of(self, parameter: torch.Tensor, name: str = "") -> Piece:
        """ValueError if the parameter cannot be divided."""
        piece = self._by_parameter.get(id(parameter))
        if piece is None or piece.parameter is not parameter:
            check_divisible(parameter, name)
            piece = self._by_parameter[id(parameter)] = Piece(parameter, self.ranks, self.rank)
            piece.guard.pieces = self
        return piece

    def all(self) -> list[Piece]:
        return list(self._by_parameter.values())

    def keep_only(self, parameters: list[torch.Tensor]) -> list[Piece]:
        """Drops and returns the pieces of other parameters."""
        if len(parameters) == len(self._by_parameter):
            return []
        kept = {id(parameter) for parameter in parameters}
        return [self._by_parameter.pop(key) for key in list(self._by_parameter) if key not in kept]


def check_divisible(parameter: torch.Tensor, name: str) -> None:
    """ValueError, with what the parameter is, unless it can be divided among ranks."""
    if parameter.dtype not in DTYPES:
        what = str(parameter.dtype)
    elif not has_no_holes(parameter):
        what = f"a tensor of shape {tuple(parameter.shape)} with strides {parameter.stride()}"
    else:
        return
    raise ValueError(
        f"shard_optimizer_state divides dense parameters of float16, bfloat16, float32 or float64, whose memory has no "
        f"holes; {name or 'a parameter'} is {what}"
    )
