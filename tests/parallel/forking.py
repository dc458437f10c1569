"""What a process says that a rank forks."""

import os
from collections.abc import Callable


def in_forked_child(body: Callable[[], object]) -> str:
    """What `body()` returns in a forked child, as text; "" if the child came to nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(body()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def refusal_of(call: Callable[[], object]) -> str:
    """The words of the RuntimeError that the call raises."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "was not refused"
