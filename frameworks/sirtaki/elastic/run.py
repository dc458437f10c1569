"""The loop around a training function: after a failure or a change of the ranks it is called again."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any

from sirtaki import elastic
from sirtaki.elastic import membership
from sirtaki.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from sirtaki.native import core

_MOST_ATTEMPTS = 10
_NOT_RETURNED = (
    "sirtaki: {}() was ended by sys.exit(0) on rank {}, while the others train. In an elastic job this is a failure: "
    "return from the function on all ranks to end the job"
)
_log = logging.getLogger("sirtaki")


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """func(state, ...) with the state synchronized before, called again after a failure or a change of the ranks.

    HorovodInternalError: the state is restored. HostsUpdatedInterrupt: it stays as it is. Then reset() joins the new
    ranks, and the state's reset callbacks are called. Other exceptions are raised. An elastic job always synchronizes,
    since a rank may be new; elsewhere HostsUpdatedInterrupt.skip_sync is respected.
    """

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        skip_sync, again = False, False
        attempts = 0  # to join the other ranks, in a row
        refused = -1  # progress at the last error that was no failure of the job
        while True:
            attempts += 1
            try:
                if again:
                    reset()
                    state.on_reset()
                attempts = 0
                if not skip_sync or membership.is_elastic():
                    state.sync()
                return func(state, *args, **kwargs)
            except SystemExit as error:
                if membership.is_shared() and not error.code and attempts == 0:
                    raise SystemExit(_NOT_RETURNED.format(func.__name__, core.rank())) from error
                raise
            except HorovodInternalError as error:
                if attempts == _MOST_ATTEMPTS:
                    raise
                if membership.is_shared() and not _is_failure_of_job(error):
                    if refused == elastic.progress:
                        raise  # the same program would fail in the same way for ever
                    refused = elastic.progress
                _log.info("an elastic job goes on from its last commit, because %s", error)
                _release(error)
                skip_sync = False
                if attempts == 0:  # otherwise nothing has changed since
                    state.restore()
            except HostsUpdatedInterrupt as interrupt:
                _release(interrupt)
                skip_sync = interrupt.skip_sync
            again = True

    return wrapper


def _is_failure_of_job(error: BaseException) -> bool:
    """Whether the job has failed by this, on all ranks. Otherwise the ranks disagree about a call, and each has this
    error. The job may have failed since, because another rank has ended by the same error.
    """
    cause = core.failure().partition("\n")[0]
    return bool(cause) and cause in str(error)


def _release(error: BaseException) -> None:
    """Frees what the interrupted calls held, such as an optimizer that the next call makes anew."""
    following: BaseException | None = error
    while following is not None:
        traceback.clear_frames(following.__traceback__)
        following = following.__cause__ or following.__context__


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """run_fn() for a rank of an elastic job. In another job func is called once, and its errors are raised."""
    looped = run_fn(func, membership.reset)

    @functools.wraps(func)
    def wrapper(state: Any, *args: Any, **kwargs: Any) -> Any:
        if membership.is_elastic():
            return looped(state, *args, **kwargs)
        state.sync()
        return func(state, *args, **kwargs)

    return wrapper
