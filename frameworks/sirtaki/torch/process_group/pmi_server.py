"""Starts MPI without mpiexec, where torchrun or the like has started the ranks.

MPICH asks its starter for the other ranks by PMI-1, lines of words over an inherited socket. Here each rank answers
itself, on a thread of its own. The values that ranks exchange are in torch's store.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from datetime import timedelta
from typing import Any

from sirtaki import starters
from sirtaki.libraries import mpi_library
from sirtaki.starters import inherited_socket
from sirtaki.starters.hydra import Hydra

_KEPT = "sirtaki.pmi"
_LONGEST = timedelta(days=1)  # the limits of the start are elsewhere


class PmiServer:
    """Of one rank. Make it before the engine starts, and call `started()` afterwards."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """RuntimeError if the MPI in use is no MPICH."""
        _require_mpich()
        self._store, self._size = store, size
        self._barriers = 0
        self._leaving = False
        self._own, ranks_end = socket.socketpair()
        descriptor = ranks_end.detach()
        inherited_socket.made_here(descriptor)
        os.environ.update(PMI_FD=str(descriptor), PMI_RANK=str(rank), PMI_SIZE=str(size))
        # MPI says goodbye when Python's threads have ended. So the answer is sent once MPI is finalised: hooks at exit
        # run in reverse order, so this one after the hook of the engine, which started() precedes.
        atexit.register(self._send, "finalize_ack rc=0")
        threading.Thread(target=self._serve, name="sirtaki PMI", daemon=True).start()

    def started(self) -> None:
        """The engine runs. At exit its shutdown brings all ranks together; they need no store for that."""
        atexit.register(self._leave)

    def _leave(self) -> None:
        self._leaving = True

    def _send(self, answer: str) -> None:
        self._own.sendall(f"cmd={answer}\n".encode())

    def _serve(self) -> None:
        with self._own.makefile("r") as lines:
            for line in lines:
                words = dict(word.split("=", 1) for word in line.split() if "=" in word)
                self._send(self._answer(words))

    def _answer(self, words: dict[str, str]) -> str:
        command = words.get("cmd", "")
        if command == "put":
            self._store.set(f"{_KEPT}.{words['key']}", words["value"])
            return "put_result rc=0 msg=success"
        if command == "get":
            return self._get(f"{_KEPT}.{words['key']}")
        if command == "barrier_in":
            self._barrier()
            return "barrier_out rc=0"
        return {
            "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": "maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
            "get_appnum": "appnum appnum=0",
            "get_universe_size": f"universe_size size={self._size}",
            "get_my_kvsname": "my_kvsname kvsname=torch",
        }.get(command, f"{command} rc=-1")

    def _get(self, key: str) -> str:
        if not self._store.check([key]):
            return "get_result rc=-1 msg=not_found value=unknown"
        return f"get_result rc=0 msg=success value={self._store.get(key).decode()}"

    def _barrier(self) -> None:
        if self._leaving:
            return
        self._barriers += 1
        key = f"{_KEPT}.barrier.{self._barriers}"
        if self._store.add(key, 1) == self._size:
            self._store.set(f"{key}.done", "1")
        self._store.wait([f"{key}.done"], _LONGEST)


def _require_mpich() -> None:
    library = mpi_library.find()
    if not any(isinstance(starter, Hydra) for starter in starters.of_library(library.path)):
        raise RuntimeError(
            f"Sirtaki can start under torchrun with MPICH only, but the MPI in use is {library.path} "
            f"({library.reason}). Install MPICH by `pip install mpich`, or start the program with sirtakirun or this "
            "MPI's mpiexec"
        )
