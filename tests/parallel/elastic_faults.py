"""A program for an elastic job in which ranks kill themselves, at places chosen by a seed. Arguments: SEED CHANGES.

Each step sums the gradients of its examples in the order of the examples, so that the result does not depend on the
number of ranks. The program ends after CHANGES changes of the ranks. It prints its last step and its weights.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time

EXAMPLES = 12  # of a step, on all ranks together
_WEIGHTS = 5
_IN_STEPS = ("computing", "updating", "saving", "saved", "agreeing")
_IN_CHANGES = ("leaving", "joining", "receiving", "received")
_PATIENCE = 60  # steps after which the ranks do not wait for a change any more


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


def main(seed: str, changes: int) -> None:
    from sirtaki import exchange, runtime
    from sirtaki.elastic.run import run_fn
    from sirtaki.elastic.state import ObjectState

    class State(ObjectState):
        def save(self) -> None:
            die("saving")
            super().save()
            die("saved")

        def check_host_updates(self) -> None:
            die("agreeing")
            super().check_host_updates()

        def _receive(self, source: int) -> None:
            die("receiving")
            super()._receive(source)
            die("received")

    def die(place: str) -> None:
        """In each set of ranks one dies. By the seed and the number of the change, all know which one, and where."""
        if runtime.is_initialized():
            own["rank"], own["size"] = runtime.rank(), runtime.size()
        chosen = random.Random(f"{seed} {state.changes}")
        victim, times = chosen.randrange(own["size"]), chosen.randrange(1, 6)
        where = chosen.choice(_IN_STEPS + (_IN_CHANGES if state.changes else ()))
        if where in _IN_CHANGES and own["steps"] < _PATIENCE:
            times = 1
        elif where in _IN_CHANGES:
            where, times = "computing", 1
        key = state.changes, place
        own["visits"][key] = own["visits"].get(key, 0) + 1
        is_due = own["size"] > 1 and state.changes < changes and own["visits"][key] >= times
        if is_due and (victim, where) == (own["rank"], place):
            os.kill(os.getpid(), signal.SIGKILL)

    def reset() -> None:
        die("leaving")
        runtime.shutdown()
        die("joining")
        runtime.init()

    def changed() -> None:
        state.changes += 1
        own["steps"] = 0

    def train(state: State) -> None:
        while state.changes < changes or runtime.size() < 2:
            die("computing")
            time.sleep(0.005)
            first = state.step * EXAMPLES
            examples = range(first + runtime.rank(), first + EXAMPLES, runtime.size())
            parts = exchange.allgather_object([(each, gradient(state.weights, each)) for each in examples], "gradients")
            die("updating")
            state.weights = updated(state.weights, [g for _, g in sorted(pair for part in parts for pair in part)])
            state.step += 1
            own["steps"] += 1
            state.commit()

    own: dict = {"rank": 0, "size": 1, "steps": 0, "visits": {}}
    runtime.init()
    state = ObjectState.__new__(State)
    state.changes = -1  # while the state is made
    State.__init__(state, exchange.broadcast_object, runtime.rank, weights=[0.5] * _WEIGHTS, step=0, changes=0)
    state.register_reset_callbacks([changed])
    run_fn(train, reset)(state)
    print("RESULT", json.dumps([state.step, state.weights]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
