"""A group of torch.distributed: its place in torch and in the engine. Its calls are in the class Transfers."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import Backend, ProcessGroup

from sirtaki.native import core
from sirtaki.process_sets import GLOBAL_ID, add_process_set, require_id
from sirtaki.torch.process_group.rendezvous import start_engine
from sirtaki.torch.process_group.transfers import Transfers


def _base() -> type:
    """c10d's Backend where Python may derive from it: each device of a torch group may then have another backend. Else
    ProcessGroup, which torch takes as the whole group, for all devices.
    """

    class Probe(Backend):
        pass

    try:
        Probe(0, 1)
    except TypeError:
        return ProcessGroup
    return Backend


_BASE: Any = _base()


class Group(Transfers, _BASE):
    def __init__(self, options: Any) -> None:
        """options: torch's _DistributedBackendOptions. ValueError if torch numbers the ranks in another way."""
        start_engine(options.timeout, options.store, options.group_rank, options.group_size)
        members = list(options.global_ranks_in_group) or list(range(options.group_size))
        _check_ranks(members, options.group_rank, options.group_size)
        _BASE.__init__(self, options.group_rank, options.group_size)
        self._name = self._description = str(options.group_id)
        self._open(self._name, members, _process_set(options.global_ranks_in_group))

    # C++ looks these up in the instance, by its own names.
    def getBackendName(self) -> str:  # noqa: N802
        return "sirtaki"

    _get_backend_name = name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _get_backend(self, device: Any) -> Any:
        return self

    supports_coalescing = supports_splitting = supports_time_estimate = False

    def _set_sequence_number_for_group(self) -> None:
        pass  # the calls are counted from 0 on every rank

    def _get_sequence_number_for_group(self) -> int:
        return self._names.count

    def shutdown(self) -> None:
        """destroy_process_group() calls it. The engine goes on: `hvd` and other groups may use it."""
        self._close()

    abort = shutdown


def _process_set(members: list[int]) -> int:
    """The engine's number for these ranks; the default group, which lists none, has all. Each other group has one of
    its own, which lives until the job ends: a send of one group never meets a recv of another.
    """
    if not members:
        return GLOBAL_ID
    return require_id(add_process_set(members, members_only=True))


def _check_ranks(members: list[int], rank: int, size: int) -> None:
    own = core.rank()
    if members != sorted(members):
        raise ValueError(f"Sirtaki orders the ranks of a group by their numbers, got {members}: pass sort_ranks=True")
    if len(members) != size or max(members) >= core.size() or members[rank] != own:
        raise ValueError(
            f"torch.distributed has this process as rank {rank} of {size} (global ranks {members}), but it is rank "
            f"{own} of {core.size()} in Sirtaki's job. Leave rank and world_size out of init_process_group(), or give "
            "these; under torchrun, call it before hvd.init()."
        )
