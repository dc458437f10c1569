"""The two exchanges of a bucket in a step: gradients are reduced and scattered, updated pieces are gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sirtaki.torch.compression import CastCompressor
from sirtaki.torch.gradients import direct
from sirtaki.torch.gradients.optimizer_options import Options
from sirtaki.torch.gradients.packing import gradient_of
from sirtaki.torch.gradients.slots import SPARSE, Bucket
from sirtaki.torch.ops import verbs
from sirtaki.torch.ops.tensors import describe, empty_memory
from sirtaki.torch.sharding.layout import Layout, Rows, copy_all
from sirtaki.torch.sharding.pieces import Pieces, follow, laid_out_like

GATHERS = 2  # buckets that are gathered while the next one is updated; each needs memory of its size
_PACKED = 3  # freed gradients: of so many buckets the packed gradients wait for each other, if ranks are fast enough


class BucketShard:
    """What a bucket keeps from step to step. packed: the gradients of all rows, if these are kept. reduced: this rank's
    row of the reduced gradients; a part of `packed` where the dtype and the options allow that. masters: the row in
    which the pieces' master weights lie, so that one call treats all of them; None for parameters without.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.masters = _in_one_row(layout) if layout.pieces[0].has_master else None
        self.packed: Rows | None = None
        self.reduced: torch.Tensor | None = None
        self.present = False  # in this step some rank has a gradient

    def follow_parameters(self) -> None:
        """As Piece.follow_parameter() of all pieces."""
        for piece in self.layout.pieces:
            piece.find_memory()
        if self.masters is not None:
            values = torch.empty_like(self.masters, dtype=self.layout.pieces[0].own.dtype)
            copy_all(self.layout.own_pieces(values), [piece.own for piece in self.layout.pieces])
            follow(self.masters, values)

    def give_gradients(self) -> None:
        """To the optimizer, for a step."""
        assert self.reduced is not None
        reduced = self.reduced if self.masters is None else self.reduced.to(self.masters.dtype)
        for piece, gradient in zip(self.layout.pieces, self.layout.own_pieces(reduced), strict=True):
            piece.tensor.grad = None if piece.gradient is None else gradient

    def updated(self) -> torch.Tensor:
        """The row of this rank's updated pieces, of the parameters' dtype, which it also writes into the parameters."""
        pieces = self.layout.pieces
        own = [piece.own for piece in pieces]
        if self.masters is not None:
            row = self.masters.to(own[0].dtype)
            copy_all(own, self.layout.own_pieces(row))
            return row
        row = empty_memory((self.layout.width,), own[0].dtype, own[0].device)
        copy_all(self.layout.own_pieces(row), own)
        return row


def _in_one_row(layout: Layout) -> torch.Tensor:
    """The memory to which it moves the pieces' tensors."""
    tensors = [piece.tensor for piece in layout.pieces]
    row = torch.zeros(layout.width, dtype=tensors[0].dtype, device=tensors[0].device)
    places = layout.own_pieces(row)
    copy_all(places, tensors)
    for tensor, place in zip(tensors, places, strict=True):
        tensor.data = place
    return row


class ShardExchange:
    """For one optimizer. Takes the place of what sends buckets whole."""

    def __init__(self, pieces: Pieces, options: Options) -> None:
        self.pieces = pieces
        self._options = options
        self._sent: list[Transfer] = []

    def send(self, bucket: Bucket) -> None:
        """Packs and submits the bucket's gradients, and puts the guards into their place. Waits for nothing."""
        if direct.active is not None and self._options.group != 0:
            raise RuntimeError("a step can be captured only if its gradients are reduced over all ranks")
        if bucket.slots[0].kind == SPARSE:
            raise RuntimeError(
                f"shard_optimizer_state cannot reduce the sparse gradient of {bucket.slots[0].name}; give "
                "sparse_as_dense=True"
            )
        self._finish_early()
        transfer = Transfer(bucket, self.shard_of(bucket), self._options)
        self._sent.append(transfer)
        bucket.note_sent(transfer, transfer)

    def _finish_early(self) -> None:
        """Frees packed gradients. Never waits: another rank may be about to wait for this one in its backward."""
        self._sent = [transfer for transfer in self._sent if not transfer.finished]
        if self._options.free_gradients:
            while len(self._sent) >= _PACKED and self._sent[0].request.done():
                self._sent.pop(0).finish()

    def shard_of(self, bucket: Bucket) -> BucketShard:
        """Made anew if the bucket has other parameters than before."""
        shard = bucket.shard
        pieces = [self.pieces.of(slot.parameter, slot.name) for slot in bucket.slots]
        if shard is None or shard.layout.pieces != pieces:
            shard = bucket.shard = BucketShard(Layout(pieces, self.pieces.ranks, self.pieces.rank))
        return shard

    def to_gather(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Those with gradients in this step; the same on all ranks. The first layers come last in the list of buckets;
        the next forward needs them first.
        """
        return [bucket for bucket in reversed(buckets) if bucket.shard is not None and bucket.shard.present]

    def first_gathers(self, buckets: Sequence[Bucket]) -> list[str]:
        """The names of the requests that a rank submits in step() before it waits for one."""
        return [f"allgather.{_name_of(bucket)}" for bucket in self.to_gather(buckets)[: GATHERS + 1]]

    def gather(self, bucket: Bucket) -> Callable[[], None]:
        """Submits the updated pieces. The function that it returns waits, and writes those of all ranks."""
        layout = bucket.shard.layout
        like = layout.pieces[0].parameter
        rows = bucket.shard.packed  # the gradients in it have been used
        if rows is None or rows.memory.dtype != like.dtype:
            rows = Rows(layout, like.dtype, like.device)
        request = self._submit_gather(bucket.shard.updated(), rows.memory, _name_of(bucket))

        def finish() -> None:
            request.wait()
            rows.unpack()

        return finish

    def _submit_gather(self, row: torch.Tensor, rows: torch.Tensor, name: str) -> Any:
        described = describe(rows, rows)
        if direct.active is not None:
            return direct.active.allgather(f"allgather.{name}", (row.data_ptr(), *described[1:]))
        if direct.observed is not None:
            direct.observed.append(direct.call_text(f"allgather.{name}", [described], direct.NOTHING))
        return verbs.submit_allgather([row], name, self._options.group, [rows])

    def end_step(self) -> None:
        self._sent.clear()
        for piece in self.pieces.all():
            piece.drop_gradient()


def _name_of(bucket: Bucket) -> str:
    return bucket.name.removeprefix("reducescatter.")


class Transfer:
    """A bucket on its way; takes the place of a Work, and of what was packed."""

    def __init__(self, bucket: Bucket, shard: BucketShard, options: Options) -> None:
        self.finished = False
        self._shard = shard
        self._keeps = not options.free_gradients
        layout = shard.layout
        like = layout.pieces[0].parameter
        compression = options.compression
        wire = compression.wire if issubclass(compression, CastCompressor) else like.dtype
        gradients = [slot.parameter.grad for slot in bucket.slots]
        self._all_here = all(gradient is not None for gradient in gradients)
        if shard.packed is None or shard.packed.memory.dtype != wire:
            shard.packed = Rows(layout, wire, like.device)
        self._packed = shard.packed
        if not self._keeps:
            shard.packed = None
        self._pack([None if slot.parameter.grad is None else gradient_of(slot) for slot in bucket.slots])
        self._row = empty_memory((layout.width,), wire, like.device)
        self._presence: torch.Tensor | None = None
        self.request = self._submit(bucket.call_name(), gradients, options)
        for piece, gradient, slot in zip(layout.pieces, gradients, bucket.slots, strict=True):
            if gradient is not None:
                slot.parameter.grad = piece.guard

    def _submit(self, name: str, gradients: list[Any], options: Options) -> Any:
        how, layout, described = options.reduction(), self._shard.layout, describe(self._packed.memory, self._row)
        if direct.active is not None:
            return direct.active.reducescatter(name, described, how)
        if direct.observed is not None:
            direct.observed.append(direct.call_text(name, [described], how))
        own = torch.ones(len(gradients), dtype=self._row.dtype, device=self._row.device)  # which ones this rank has
        if not self._all_here:
            own.copy_(torch.tensor([gradient is not None for gradient in gradients]))
        self._presence = torch.empty_like(own)
        inputs, outputs = [self._packed.memory, own.repeat(layout.ranks)], [self._row, self._presence]
        if any(not piece.parameter.is_contiguous() for piece in layout.pieces):
            # The ranks compare shapes. So another layout of a parameter's memory is an error on all ranks.
            inputs.append(own.new_empty((0, layout.digest)))
            outputs.append(own.new_empty((0, layout.digest)))
        name = name.removeprefix("reducescatter.")
        return verbs.submit_reducescatter(inputs, name, (*how, options.group), outputs)

    def _pack(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """One launch on a GPU casts and copies all of them."""
        layout = self._shard.layout
        places: list[torch.Tensor] = []
        parts: list[torch.Tensor] = []
        for number, gradient in enumerate(gradients):
            into = self._packed.places[number]
            if gradient is None:
                for place in into:
                    place.zero_()
                continue
            places += into
            parts += layout.parts(laid_out_like(gradient.detach(), layout.pieces[number].parameter), number)
        copy_all(places, parts)

    def wait(self, stream: int | None = None) -> None:
        """Until the pieces are reduced."""
        if not self.finished:
            self.finish()

    def finish(self) -> None:
        self.request.wait()
        shard, layout = self._shard, self._shard.layout
        dtype = layout.pieces[0].parameter.dtype
        if self._keeps and self._packed.memory.dtype == dtype:
            shard.reduced = layout.own_row(self._packed.memory)
            shard.reduced.copy_(self._row)
        elif shard.reduced is None or self._row.dtype != dtype:
            shard.reduced = self._row.to(dtype)
        else:
            shard.reduced.copy_(self._row)
        self.finished = True
        del self._packed, self._row, self.request  # the request keeps their memory

    def unpack(self, bucket: Bucket) -> None:
        """Gives each piece its gradient, unless no rank has one."""
        shard = self._shard
        # Ranks cannot exchange in a captured step which of them have a gradient. So every rank gets one.
        presence = None if self._all_here else self._presence
        present = [True] * len(bucket.slots) if presence is None else presence.bool().tolist()
        shard.present = any(present)
        parts = shard.layout.own_pieces(shard.reduced)
        for piece, slot, found, part in zip(shard.layout.pieces, bucket.slots, present, parts, strict=True):
            piece.gradient = part if found else None
            if found:
                slot.parameter.grad = slot.gradient = piece.guard
