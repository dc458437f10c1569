"""horovod.common.util: what programs import of it. Its other functions served Horovod's own build."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import sirtaki
from sirtaki import check_extension
from sirtaki.exceptions import get_version_mismatch_message

__all__ = [
    "ccl_built",
    "check_extension",
    "ddl_built",
    "env",
    "extension_available",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "split_list",
]


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the adapter ("torch", "tensorflow" or "keras") can be imported. verbose: True prints why not."""
    try:
        check_extension(f"sirtaki.{ext_base_name}", "", "")
    except ImportError as error:
        if verbose:
            print(error)
        return False
    return True


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether "torch" or "tensorflow" has a GPU in this process. ValueError for another name."""
    if ext_base_name not in ("torch", "tensorflow"):
        raise ValueError(f"gpu_available is for 'torch' and 'tensorflow', got {ext_base_name!r}")
    if not extension_available(ext_base_name, verbose):
        return False
    framework = importlib.import_module(ext_base_name)
    return bool(
        framework.cuda.is_available() if ext_base_name == "torch" else framework.config.list_physical_devices("GPU")
    )


def mpi_built(verbose: bool = False) -> bool:
    return sirtaki.mpi_built()


def gloo_built(verbose: bool = False) -> bool:
    return sirtaki.gloo_built()


def nccl_built(verbose: bool = False) -> bool:
    return bool(sirtaki.nccl_built())


def ddl_built(verbose: bool = False) -> bool:
    return sirtaki.ddl_built()


def ccl_built(verbose: bool = False) -> bool:
    return sirtaki.ccl_built()


@contextmanager
def env(**values: str | None) -> Iterator[None]:
    """Sets environment variables for the body; None removes one. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    _assign(values)
    try:
        yield
    finally:
        _assign(before)


def _assign(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(items: list[Any], count: int) -> list[list[Any]]:
    """`items` in `count` consecutive parts whose lengths differ by at most one, the longer ones first."""
    length, longer = divmod(len(items), count)
    ends = [length * part + min(part, longer) for part in range(count + 1)]
    return [items[first:last] for first, last in itertools.pairwise(ends)]


def is_iterable(x: Any) -> bool:
    return isinstance(x, Iterable)
