"""Sockets beside MPI, both over TCP on the loopback interface, in one run: ratios of sockets to the best MPI.

    python benchmarks/sockets.py [rounds]

Two ranks with different host names, so that no memory is shared. In each round every way runs once, in turns, and each
figure is the least of all rounds: microseconds of a call. Ratios below 1: sockets are faster. MPICH is started with its
two network modules, and without its own shared memory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable

_RANKS = 2
_OFI = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}
_UCX = {"MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "tcp,self"}
_WAYS = {"sockets": {"SIRTAKI_CONTROL": "sockets"}, "MPI ofi": _OFI, "MPI ucx": _UCX}
_FLOATS = {"64 B": 16, "1 MiB": 1 << 18, "64 MiB": 1 << 24}
_SECONDS = 0.5  # of each figure


def least(call: Callable[[], object]) -> float:
    """Seconds of the fastest call; both ranks make the same number of calls."""
    import torch

    import sirtaki.torch as hvd

    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    count = int(hvd.allreduce(torch.tensor([_SECONDS / max(first, 1e-4)]), name="count").item()) + 5
    best = first
    for _ in range(count):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def measure() -> None:
    """One way, on one rank; rank 0 prints its figures."""
    import torch

    import sirtaki.torch as hvd

    hvd.init()
    peer = 1 - hvd.rank()
    small = torch.zeros(_FLOATS["64 B"])

    def exchange() -> None:
        if hvd.rank() == 0:
            hvd.send(small, peer)
            hvd.recv(small, peer)
        else:
            hvd.recv(small, peer)
            hvd.send(small, peer)

    found = {"64 B there and back": least(exchange)}
    for title, floats in _FLOATS.items():
        data = torch.zeros(floats)
        found[f"allreduce {title}"] = least(lambda data=data, title=title: hvd.allreduce_(data, name=title))
    if hvd.rank() == 0:
        print(json.dumps(found), flush=True)
    hvd.shutdown()


def run(way: str) -> dict[str, float]:
    environ = os.environ | _WAYS[way] | {"OMP_NUM_THREADS": "1", "MPIR_CVAR_NOLOCAL": "1"}
    command = [sys.executable, __file__, "--measure"]
    if way == "sockets":
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(_RANKS)}
        started = [command] * _RANKS
    else:
        mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or "mpiexec"
        inner = ["sh", "-c", 'SIRTAKI_HOSTNAME=host$PMI_RANK exec "$@"', "sh", *command]
        started = [[mpiexec, "-n", str(_RANKS), *inner]]
    ranks = [
        subprocess.Popen(
            words,
            env=environ | ({"RANK": str(n), "SIRTAKI_HOSTNAME": f"host{n}"} if way == "sockets" else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for n, words in enumerate(started)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{way}: exit codes {[rank.returncode for rank in ranks]}")
    return json.loads(outputs[0])


def main(rounds: int) -> None:
    best: dict[str, dict[str, float]] = {way: {} for way in _WAYS}
    for _ in range(rounds):
        for way in _WAYS:
            for title, seconds in run(way).items():
                best[way][title] = min(seconds, best[way].get(title, seconds))
    print(f"{'microseconds':24}" + "".join(f"{way:>12}" for way in _WAYS) + f"{'ratio':>8}")
    for title, own in best["sockets"].items():
        others = min(figures[title] for way, figures in best.items() if way != "sockets")
        shown = "".join(f"{figures[title] * 1e6:12.1f}" for figures in best.values())
        print(f"{title:24}{shown}{own / others:8.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
