"""The collectives of a torch group, each as one request to the engine."""

from __future__ import annotations

import functools
from typing import Any

import torch

from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.reduce_ops import Sum
from sirtaki.torch.ops.streams import current_stream
from sirtaki.torch.ops.tensors import HOST, Descriptor, check_reducible, describe
from sirtaki.torch.process_group.call_names import CallNames
from sirtaki.torch.process_group.completion import Completion, in_callback
from sirtaki.torch.process_group.memory import (
    LastStep,
    Tensors,
    apart,
    as_list,
    check_sizes,
    copy_rows,
    dense_memory,
    no_rows,
)
from sirtaki.torch.process_group.operations import bitwise, bitwise_number, reduction
from sirtaki.torch.process_group.work import Work

_ALLREDUCE, _ALLGATHER, _REDUCESCATTER, _BROADCAST, _ALLTOALL, _BARRIER = (
    core.VERBS[verb] for verb in ("allreduce", "allgather", "reducescatter", "broadcast", "alltoall", "barrier")
)
_NO_TENSOR: Descriptor = (0, 0, 0, (), HOST)


class Collectives:
    """torch's names and arguments. `opts` may be torch's options, or the one option that a short form takes."""

    def _open(self, name: str, members: list[int], process_set: int) -> None:
        """members: global ranks, in the order of their ranks in the group."""
        self._members = members
        self._size = len(members)
        self._rank = members.index(core.rank())
        self._process_set = process_set
        self._names = CallNames(f"torch.{name}")
        # Functions that waited for a future run beside the program, but in the same order on all ranks.
        self._names_of_callbacks = CallNames(f"torch.{name}.callback")
        self._completion = Completion(name)
        self._is_open = True

    def _close(self) -> None:
        self._completion.stop()
        self._is_open = False

    def _require_open(self) -> None:
        if not self._is_open:
            raise ValueError("destroy_process_group() has destroyed this group; it takes no more calls")

    def allreduce(self, tensors: Tensors, opts: Any = None, root: int = -1) -> Work:
        """root: of a reduce, as its place in the group; the ranks compare it."""
        tensors = as_list(tensors)
        op, factor = reduction(opts)
        if op < 0:
            return self._allreduce_by_gathering(tensors, bitwise(opts), opts)
        dense, step = dense_memory(tensors)
        described = list(map(describe, dense, dense))
        for tensor in dense:
            check_reducible(tensor, op)
        return self._start(_ALLREDUCE, described, dense, tensors, step, opts, op=op, prescale=factor, root=root)

    allreduce_coalesced = allreduce

    def _allreduce_by_gathering(self, tensors: Tensors, function: Any, opts: Any) -> Work:
        """Each rank combines the values of all ranks: the core has no such operation."""
        values = [self._rows_of_all(tensor) for tensor in tensors]

        def combine(_: Any) -> None:
            for tensor, rows in zip(tensors, values, strict=True):
                tensor.copy_(functools.reduce(function, rows.unbind()).view(tensor.shape))

        return self._gather(values, tensors, tensors, combine, opts, bitwise_number(opts))

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        tensors = as_list(tensors)
        dense, step = dense_memory(tensors)
        described = list(map(describe, dense, dense))
        return self._start(_BROADCAST, described, dense, tensors, step, opts, root=self._root(opts))

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        """Only the root's tensors change."""
        tensors = as_list(tensors)
        root = self._root(opts)
        own = tensors if root == core.rank() else [tensor.clone() for tensor in tensors]
        return self.allreduce(own, opts, self._members.index(root))

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        for output, tensor in zip(outputs, tensors, strict=True):
            check_sizes("all_gather", "output", output, tensor, "input", self._size)
        dense, step = dense_memory(outputs)
        return self._gather(dense, tensors, outputs, step, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        """outputs: for each tensor, a list with one of the same size for each rank."""
        if isinstance(tensors, torch.Tensor):
            outputs, tensors = [outputs], [tensors]  # the short form
        self._check_lists("all_gather", outputs, tensors)
        gathered = [self._rows_of_all(tensor) for tensor in tensors]

        def split(_: Any) -> None:
            for places, rows in zip(outputs, gathered, strict=True):
                copy_rows(places, rows)

        return self._gather(gathered, tensors, [place for places in outputs for place in places], split, opts)

    def allgather_coalesced(self, outputs: list[Tensors], tensors: Tensors, opts: Any = None) -> Work:
        """outputs: for each rank, a list with one for each tensor."""
        return self.allgather([list(places) for places in zip(*outputs, strict=True)], tensors, opts)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        op, factor = reduction(opts)
        if op < 0:
            raise NotImplementedError("reduce_scatter has no bitwise operations in Sirtaki; all_reduce has them")
        dense, step = dense_memory(outputs)
        described, kept = [], []
        for output, tensor in zip(dense, tensors, strict=True):
            check_sizes("reduce_scatter", "input", tensor, output, "output", self._size)
            check_reducible(tensor, op)
            kept.append(apart(tensor, output))
            described.append(describe(kept[-1].view(self._size, output.numel()), output))
        rooms = [output.nbytes for output in dense]
        keep = (kept, dense)
        return self._start(_REDUCESCATTER, described, keep, outputs, step, opts, op=op, prescale=factor, rooms=rooms)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, tensors: list[Tensors], opts: Any = None) -> Work:
        """tensors: for each output, a list with one of the same size for each rank."""
        if isinstance(outputs, torch.Tensor):
            outputs, tensors = [outputs], [tensors]  # the short form
        self._check_lists("reduce_scatter", tensors, outputs)
        joined = [torch.cat([tensor.reshape(-1) for tensor in parts]) for parts in tensors]
        return self.reduce_scatter_single_coalesced(outputs, joined, opts)

    def all_to_all_single(
        self, output: torch.Tensor, tensor: torch.Tensor, received: list[int], sent: list[int], opts: Any = None
    ) -> Work:
        """received, sent: rows along dimension 0 from and to each rank; [] for equal parts."""
        rows = [self._splits(received, output, "output"), self._splits(sent, tensor, "input")]
        (dense,), step = dense_memory([output])
        source = apart(tensor, dense)
        described = [describe(source.reshape(len(source), -1) if source.numel() else no_rows(source), dense)]
        return self._exchange(described, rows[1], rows[0], (source, dense), [output], step, opts)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, tensors: Tensors, opts: Any = None) -> Work:
        """Tensor i goes to rank i; output i comes from rank i. Their sizes may differ."""
        if len(outputs) != self._size or len(tensors) != self._size:
            raise ValueError(f"all_to_all takes {self._size} outputs and inputs, got {len(outputs)} and {len(tensors)}")
        source = torch.cat([tensor.reshape(-1) for tensor in tensors])
        place = torch.empty(sum(output.numel() for output in outputs), dtype=source.dtype, device=source.device)

        def split(_: Any) -> None:
            parts = place.split([output.numel() for output in outputs])
            for output, part in zip(outputs, parts, strict=True):
                output.copy_(part.view(output.shape))

        sent, received = ([tensor.numel() for tensor in part] for part in (tensors, outputs))
        described = [describe(source.view(-1, 1), place)]
        return self._exchange(described, sent, received, (source, place), outputs, split, opts)

    def gather(self, outputs: list[Tensors], tensors: Tensors, opts: Any) -> Work:
        """outputs: on the root as for allgather, [] elsewhere."""
        if isinstance(tensors, torch.Tensor):
            outputs, tensors = ([outputs] if outputs else []), [tensors]  # the short form
        (tensor,) = tensors
        root = self._members.index(self._root(opts))
        is_root = root == self._rank
        if is_root:
            self._check_lists("gather", outputs, tensors)
        source = tensor.contiguous().view(1, -1)
        rows = tensor.new_empty((self._size if is_root else 0, tensor.numel()))
        sent = [int(rank == root) for rank in range(self._size)]
        received = [int(is_root)] * self._size
        split = (lambda _: copy_rows(outputs[0], rows)) if is_root else None
        results = outputs[0] if is_root else []
        return self._exchange([describe(source, rows)], sent, received, (source, rows), results, split, opts, root)

    def scatter(self, outputs: Tensors, tensors: list[Tensors], opts: Any) -> Work:
        """tensors: on the root [[one for each rank]], [] elsewhere."""
        if isinstance(outputs, torch.Tensor):
            outputs, tensors = [outputs], ([tensors] if tensors else [])  # the short form
        (output,) = outputs
        root = self._members.index(self._root(opts))
        if root == self._rank:
            self._check_lists("scatter", tensors, outputs)
            source = torch.stack([tensor.reshape(-1) for tensor in tensors[0]])
        else:
            source = output.new_empty((0, output.numel()))
        (dense,), step = dense_memory([output])
        sent = [int(root == self._rank)] * self._size
        received = [int(rank == root) for rank in range(self._size)]
        return self._exchange([describe(source, dense)], sent, received, (source, dense), [output], step, opts, root)

    def barrier(self, opts: Any = None) -> Work:
        return self._start(_BARRIER, [], None, [], None, opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """timeout: a timedelta or options that have one. All late ranks are named, also without wait_all_ranks."""
        self.barrier().wait(getattr(timeout, "timeout", timeout))

    def _root(self, opts: Any) -> int:
        """The global rank of the root."""
        root = getattr(opts, "rootRank", opts)
        if not 0 <= root < self._size:
            raise ValueError(f"the root must be a rank of the group, 0 to {self._size - 1}, got {root!r}")
        return self._members[root]

    def _rows_of_all(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty((self._size, tensor.numel()), dtype=tensor.dtype, device=tensor.device)

    def _check_lists(self, verb: str, lists: list[Tensors], tensors: Tensors) -> None:
        """Each list has one tensor for each rank, of the size of its tensor."""
        for number, (parts, tensor) in enumerate(zip(lists, tensors, strict=True)):
            sizes = [(part.numel(), part.dtype) for part in parts]
            if sizes != [(tensor.numel(), tensor.dtype)] * self._size:
                raise ValueError(
                    f"{verb}: list {number} must have {self._size} tensors of {tensor.numel()} elements of "
                    f"{tensor.dtype}, got {[f'{count} of {dtype}' for count, dtype in sizes]}"
                )

    def _splits(self, splits: list[int], tensor: torch.Tensor, what: str) -> list[int]:
        rows = len(tensor) if tensor.dim() else -1
        whole = list(splits) or [rows // self._size] * self._size
        if rows < 0 or len(whole) != self._size or min(whole) < 0 or sum(whole) != rows:
            raise ValueError(
                f"all_to_all: the {what} of shape {tuple(tensor.shape)} cannot be split by "
                f"{list(splits) or 'equal parts'} among {self._size} ranks"
            )
        return whole

    def _gather(
        self, outputs: Tensors, tensors: Tensors, results: Tensors, last_step: LastStep, opts: Any, op: int = int(Sum)
    ) -> Work:
        """Each row of a contiguous output gets the tensor of one rank. op: a number that the ranks compare."""
        sources = [apart(tensor, output) for tensor, output in zip(tensors, outputs, strict=True)]
        rows = zip(sources, outputs, strict=True)
        described = [describe(source.view(1, -1), output) for source, output in rows]
        rooms = [output.nbytes for output in outputs]
        return self._start(_ALLGATHER, described, (sources, outputs), results, last_step, opts, rooms=rooms, op=op)

    def _exchange(
        self,
        described: list[Descriptor],
        sent: list[int],
        received: list[int],
        keep: tuple[torch.Tensor, torch.Tensor],
        results: Tensors,
        last_step: LastStep,
        opts: Any,
        root: int = -1,
    ) -> Work:
        def check(work: Any) -> None:
            if work.received_splits() != received:
                raise ValueError(f"expected {received} rows from the ranks, got {work.received_splits()}")
            if last_step is not None:
                last_step(work)

        kind = hash((_ALLTOALL, described[0][2]))  # sizes differ by rank
        options = {"splits": sent, "rooms": [keep[1].nbytes], "root": root}
        return self._start(_ALLTOALL, described, keep, results, check, opts, kind, **options)

    def _start(
        self,
        verb: int,
        described: list[Descriptor],
        keep: Any,
        results: Tensors,
        last_step: LastStep,
        opts: Any,
        kind: int | None = None,
        **options: Any,
    ) -> Work:
        _, _, dtype, shape, device = described[0] if described else _NO_TENSOR
        if device != HOST:
            options["stream"] = current_stream(device)
        self._require_open()
        names = self._names_of_callbacks if in_callback() else self._names
        work = core.submit(
            verb,
            names.next(),
            described,
            process_set=self._process_set,
            site=call_site(),
            awaited=not getattr(opts, "asyncOp", True),
            keep=keep,
            **options,
        )
        if kind is None:
            kind = hash((verb, options.get("op", 0), options.get("root", 0), dtype, shape, len(described)))
        names.submitted(work, kind)
        return Work(work, device, results, last_step, self._completion, names.restart)
