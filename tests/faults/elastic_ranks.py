"""A program for an elastic job in which ranks go wrong, as chosen by a seed. Arguments: SEED CHANGES KIND,KIND...

Each step sums the gradients of its examples in the order of the examples, so that the result does not depend on the
number of ranks. The program ends after CHANGES changes of the ranks. It prints its last step and its weights.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

EXAMPLES = 12  # of a step, on all ranks together
_WEIGHTS = 5
_IN_STEPS = ("computing", "updating", "saving", "saved", "agreeing")
_IN_CHANGES = ("leaving", "joining", "forming", "receiving", "received")
_TWO = ("leaving", "joining", "forming", "nowhere")  # where a second rank may go wrong
_PATIENCE = 60  # steps after which the ranks do not wait for a change any more
_NOTHING_PASSES = b"\x06\x00\x00\x00\x00\x00\x00\x00"  # a socket filter of one instruction: drop the packet
_SO_ATTACH_FILTER = 26


def gradient(weights: list[float], example: int) -> list[float]:
    return [math.sin(example * 0.37 + place) * math.cos(weight) for place, weight in enumerate(weights)]


def updated(weights: list[float], gradients: list[list[float]]) -> list[float]:
    return [weight - 0.01 * sum(g[i] for g in gradients) for i, weight in enumerate(weights)]


def undisturbed(steps: int) -> list[float]:
    """The weights after so many steps of one process."""
    weights = [0.5] * _WEIGHTS
    for step in range(steps):
        examples = range(step * EXAMPLES, (step + 1) * EXAMPLES)
        weights = updated(weights, [gradient(weights, example) for example in examples])
    return weights


# ---- faults -------------------------------------------------------------------------------------------------------


def _killed(chosen: random.Random) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _killed_soon(chosen: random.Random) -> None:
    """While the engine does anything."""
    threading.Timer(chosen.random() * 0.03, _killed, [chosen]).start()


def _stopped(chosen: random.Random) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _paused(chosen: random.Random) -> None:
    """Goes on after the others have given it up."""
    subprocess.Popen(["/bin/sh", "-c", f"sleep {chosen.uniform(2.5, 6)}; kill -CONT $PPID"])
    os.kill(os.getpid(), signal.SIGSTOP)


def _frozen(chosen: random.Random) -> None:
    """With its supervisor, as in a container that is paused."""
    os.kill(os.getppid(), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)


def _half_open(chosen: random.Random) -> None:
    """One connection to another rank passes nothing any more, and neither end is notified."""
    filters = ctypes.create_string_buffer(_NOTHING_PASSES)
    program = ctypes.create_string_buffer(16)
    ctypes.memmove(program, (ctypes.c_uint64 * 2)(1, ctypes.addressof(filters)), 16)
    for connection in _some_connection(chosen):
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program.raw)


def _half_closed(chosen: random.Random) -> None:
    for connection in _some_connection(chosen):
        connection.shutdown(socket.SHUT_WR)


def _some_connection(chosen: random.Random) -> list[socket.socket]:
    """None if the ranks share a host, where they need no connection."""
    found = []
    for name in map(int, os.listdir("/proc/self/fd")):
        try:
            connection = socket.socket(fileno=os.dup(name))
            if connection.family == socket.AF_INET and connection.getpeername():
                found.append(connection)
        except OSError:
            continue
    return [chosen.choice(found)] if found else []


KINDS: dict[str, Callable[[random.Random], None]] = {
    "killed": _killed,
    "killed soon": _killed_soon,
    "stopped": _stopped,
    "paused": _paused,
    "frozen": _frozen,
    "half-open": _half_open,
    "half-closed": _half_closed,
}


# ---- training -----------------------------------------------------------------------------------------------------


def main(seed: str, changes: int, kinds: list[str]) -> None:
    from sirtaki import elastic, exchange, runtime
    from sirtaki.elastic.run import run_fn
    from sirtaki.elastic.state import ObjectState
    from sirtaki.rendezvous import launcher

    class State(ObjectState):
        def save(self) -> None:
            strike("saving")
            super().save()
            strike("saved")

        def check_host_updates(self) -> None:
            strike("agreeing")
            super().check_host_updates()

        def sync(self) -> None:
            counts = exchange.allgather_object(elastic.progress)
            newest = elastic.progress == max(counts)
            own["holders"] = counts.count(elastic.progress) if newest else runtime.size()
            super().sync()
            exchange.allgather_object("all have the state")
            own["holders"] = runtime.size()

        def _receive(self, source: int) -> None:
            strike("receiving")
            super()._receive(source)
            strike("received")

    def strike(place: str) -> None:
        """In each set of ranks one goes wrong, unless no other may have the state, and sometimes a second one while the
        ranks change. By the seed and the number of the change, all know which one, where and how. If the first changes
        nothing, it dies later.
        """
        if runtime.is_initialized():
            own["rank"], own["size"] = runtime.rank(), runtime.size()
        chosen = random.Random(f"{seed} {state.changes}")
        victim, times = chosen.randrange(own["size"]), chosen.randrange(1, 6)
        where = chosen.choice(_IN_STEPS + (_IN_CHANGES if state.changes else ()))
        kind = chosen.choice(kinds)
        second, second_place, second_kind = chosen.randrange(own["size"]), chosen.choice(_TWO), chosen.choice(kinds)
        if where in _IN_CHANGES and own["steps"] < _PATIENCE:
            times = 1
        elif where in _IN_CHANGES:
            where, times = "computing", 1
        if state.changes in own["struck"]:
            kind, where, times = "killed", "computing", own["struck"][state.changes]
        if place == second_place and second == own["rank"] != victim and state.changes not in own["struck"]:
            victim, where, times, kind = second, place, 1, second_kind
        key = state.changes, place
        own["visits"][key] = own["visits"].get(key, 0) + 1
        is_due = own["holders"] > 1 and state.changes < changes and own["visits"][key] >= times
        if where in _IN_CHANGES:  # otherwise each new process would go wrong at the same place
            is_due = is_due and random.Random(f"{seed} {os.environ['HOROVOD_RANK']} {place}").random() < 0.5
        if is_due and (victim, where) == (own["rank"], place):
            own["struck"][state.changes] = own["visits"].get((state.changes, "computing"), 0) + _PATIENCE
            with open(
                os.environ["ELASTIC_STRUCK"], "a"
            ) as file:  # a supervisor that is frozen, too, passes no output on
                file.write(f"{kind} in {place}\n")
            KINDS[kind](chosen)

    def reset() -> None:
        own["holders"] = own["size"] - 1  # another one may have died
        strike("leaving")
        runtime.shutdown()
        strike("joining")
        runtime.init()

    def changed() -> None:
        state.changes += 1
        own["steps"] = own["holders"] = 0

    def join(wait_for_table: Callable[[], Any] = launcher.join) -> Any:
        table = wait_for_table()
        if own["joined"]:
            own["holders"] = min(own["holders"], len(table.addresses))
            strike("forming")
        own["joined"] = True
        return table

    def train(state: State) -> None:
        while state.changes < changes or runtime.size() < 2:
            strike("computing")
            time.sleep(0.005)
            first = state.step * EXAMPLES
            examples = range(first + runtime.rank(), first + EXAMPLES, runtime.size())
            parts = exchange.allgather_object([(each, gradient(state.weights, each)) for each in examples], "gradients")
            strike("updating")
            state.weights = updated(state.weights, [g for _, g in sorted(pair for part in parts for pair in part)])
            state.step += 1
            own["steps"] += 1
            state.commit()

    own: dict = {"rank": 0, "size": 1, "holders": 0, "steps": 0, "visits": {}, "struck": {}, "joined": False}
    if int(os.environ.get("ELASTIC_HOSTS", "1")) > 1:  # so many hosts, as the ranks see it: connections between them
        os.environ["SIRTAKI_HOSTNAME"] = f"host{int(os.environ['HOROVOD_RANK']) % int(os.environ['ELASTIC_HOSTS'])}"
    launcher.join = join
    runtime.init()
    state = ObjectState.__new__(State)
    state.changes = -1  # while the state is made
    State.__init__(state, exchange.broadcast_object, runtime.rank, weights=[0.5] * _WEIGHTS, step=0, changes=0)
    state.register_reset_callbacks([changed])
    run_fn(train, reset)(state)
    print("RESULT", json.dumps([state.step, state.weights]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","))
