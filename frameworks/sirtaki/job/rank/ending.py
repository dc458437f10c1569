"""How this process leaves the job: with all other ranks if the program succeeded, at once if it failed.

A rank that dies of an exception must not wait for the others, since they may wait for it. So the whole job ends with
the same cause. The rank that failed first prints the whole error, every other rank one line.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from sirtaki.checkpoints import saving
from sirtaki.checks.call_site import call_site, site_in
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.job.rank import children, supervisor_link
from sirtaki.native import core
from sirtaki.timing import failure_records

_FAILED = 1
_INTERRUPTED = 130
_GRACE = 1.0  # seconds for the other ranks to report how they end, before the job is aborted
_LONGEST = 240  # characters of one line
_NO_CAUSE = (" ", "\t", "Detected at node", "<stack traces unavailable>", "[[")  # in TensorFlow's stacks


class _Ending:
    """One for each process, made by the first init. Knows whether the program ended by an exception.

    shutdown: None until an init has succeeded.
    """

    def __init__(self) -> None:
        self.shutdown: Callable[[], None] | None = None
        self.process = os.getpid()  # a forked child inherits the handlers but is not in the job
        self._exit_code = 0
        self.left_with: dict[str, Any] | None = None  # the failure cause when shutdown() ended
        self._chained = sys.__excepthook__
        self._handling = False
        self._seen_before = getattr(sys, "last_value", None)
        atexit.register(self._at_exit)
        self._exit_process = os._exit

    def take_hook(self) -> None:
        """Installs our hook for uncaught exceptions; it calls the program's hook afterwards."""
        if sys.excepthook != self._uncaught:
            self._chained = sys.excepthook
            sys.excepthook = self._uncaught

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if self._handling:  # the program's hook has called ours, which it replaced
            return
        self._handling = True
        try:
            if os.getpid() == self.process and not _is_interactive():
                if not _is_in_job():
                    _report_outside_job(error)
                    if supervisor_link.has_announced(error) and self._chained is sys.__excepthook__:
                        _print_lines(_cut(f"ended in init() by {_text_of(error)}", _LONGEST))
                        return
                else:
                    self._fail(error)
                    if self._chained is sys.__excepthook__:
                        return
            self._chained(kind, error, trace)
        finally:
            self._handling = False

    def _fail(self, error: BaseException) -> None:
        try:
            self._report(error)
        except Exception as later:  # from a signal handler: torch's raises one when a data loader's worker has died
            later.__context__ = later.__context__ or error
            self._report(later)

    def _report(self, error: BaseException) -> None:
        self._exit_code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
        where = site_in(error.__traceback__)
        cause = core.fail(_kind_of(error), _text_of(error), where)
        failure_records.keep(cause)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        if cause["witness"] != core.rank() and (supervisor_link.is_there() or not _speaks_for_witness(cause)):
            supervisor_link.report(cause, "", self._exit_code)
            _print_lines(_consequence(error, where, cause))
            return
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()
        if not supervisor_link.report(cause, "\n".join(lines), self._exit_code):
            host = cause["host"] if cause["rank"] == core.rank() else socket.gethostname()
            lines.insert(0, f"uncaught exception on host {host}, process {os.getpid()}:")
            _print_lines(*lines)

    def _at_exit(self) -> None:
        if os.getpid() != self.process:
            return
        self._report_replaced_hook()
        if self.shutdown is None:  # no init() has succeeded
            return
        try:
            saving.finish()
        except OSError as error:
            if not self._exit_code and core.is_initialized():
                self._fail(error)
        if not self._exit_code or not core.is_initialized():
            _print_caught_failure()
            supervised = supervisor_link.is_there()
            self.shutdown()
            if self.left_with is not None:  # no other rank may know the cause, for example of a stopped rank
                supervisor_link.report_outside_job(self.left_with, 0)
            core.finalize(supervised)
            return
        _stop_children()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if supervisor_link.is_there():
            self._exit_process(self._exit_code)  # the launcher ends the other ranks
        self._abort()

    def _abort(self) -> None:
        cause = core.cause()
        is_first = cause is not None and cause["rank"] == core.rank()
        time.sleep(_GRACE if is_first else 2 * _GRACE)  # the first failed rank's exit code should become the job's
        core.abort(self._exit_code)

    def replace_exit(self) -> None:
        """Under plain mpiexec or srun. When a rank is gone, mpiexec kills the others before they can report, and takes
        the exit code of any of them: 0 after os._exit(0). Under `sirtakirun` the program keeps its os._exit().
        """
        if not supervisor_link.is_there():
            os._exit = self._exit  # type: ignore[assignment]  # it returns in a forked child only

    def _exit(self, status: int) -> None:
        code = operator.index(status)
        if os.getpid() == self.process and _is_in_job() and core.size() > 1:
            self._exit_code = code & 0xFF or _FAILED
            _print_exit(f"os._exit({code})", call_site())
            self._abort()
        self._exit_process(code)

    def _report_replaced_hook(self) -> None:
        """Python keeps the last uncaught exception, even if the program has replaced our hook by its own."""
        last = getattr(sys, "last_value", None)
        replaced = sys.excepthook != self._uncaught
        unseen = last is not self._seen_before
        if last is not None and unseen and not self._exit_code and replaced and not _is_interactive():
            if _is_in_job():
                self._fail(last)
            elif self.shutdown is None:
                _report_outside_job(last)


def _is_in_job() -> bool:
    try:
        return core.is_initialized()
    except ImportError:
        return False


def _report_outside_job(error: BaseException) -> None:
    """For a program that has not completed init(), or has left the job. Python prints the traceback as usual."""
    if not children.is_rank():
        return
    code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
    where = site_in(error.__traceback__)
    cause = {"kind": _kind_of(error), "text": _text_of(error), "time": time.time(), "site": where}
    supervisor_link.report_outside_job(cause, code)


def _print_caught_failure() -> None:
    """The program ends normally although the job has failed. This is no success: its exit code must not be 0."""
    cause = core.cause() if core.is_initialized() else None
    if cause is None:
        return
    failure_records.keep(cause)
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    supervisor_link.report(cause, "", _FAILED)
    _print_lines(_cut(f"ended after the job had failed, because {_first_line(cause)}", _LONGEST))


def _first_line(cause: dict[str, Any]) -> str:
    first = cause["description"].partition("\n")[0]
    if cause["kind"] == "passed limit":
        return f"rank {cause['rank']} on host {cause['host']} was missing: {first}"
    return first


def _print_exit(what: str, where: str) -> None:
    cause = core.fail("early exit", f"left early: {what} without shutdown()", where)
    text = f"{what} without shutdown() on host {cause['host']}, process {os.getpid()}"
    if cause["rank"] != core.rank():
        text = f"{what}, because {_first_line(cause)}"
    _print_lines(_cut(f"ended{where and ' in '}{where} by {text}", _LONGEST))


def _speaks_for_witness(cause: dict[str, Any]) -> bool:
    """True on the lowest of the remaining ranks if the rank that found the cause is also the lost rank: its own program
    cannot report the cause.
    """
    missing = cause["rank"]
    return cause["kind"] == "passed limit" and cause["witness"] == missing and core.rank() == (0 if missing else 1)


def _is_interactive() -> bool:
    """True if the program continues after an exception."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _kind_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "signal"
    return "refused negotiation" if isinstance(error, SirtakiInternalError) else "exception"


def _text_of(error: BaseException) -> str:
    name = type(error).__name__
    text = str(error).encode(errors="backslashreplace").decode()  # file names may not be UTF-8
    return f"{name}: {_with_cause_first(text)}" if text else name


def _with_cause_first(text: str) -> str:
    """Texts of TensorFlow and of MPI begin with a heading. Adds the cause to that line."""
    heading, _, rest = text.partition("\n")
    lines = [line for line in rest.splitlines() if line.strip()]
    if not lines or not heading.rstrip().endswith(":"):
        return text
    if heading.rstrip().endswith("error stack:"):  # MPI's: the last line is the innermost call
        cause = lines[-1]
    else:  # TensorFlow's: (0) marks the first of several errors; stacks are indented, and there may be only a stack
        roots = [line for line in lines if line.lstrip().startswith("(0) ")]
        cause = (roots or [line for line in lines if not line.startswith(_NO_CAUSE)] or lines[-1:])[0]
    return f"{heading.rstrip()} {cause.strip()}\n{rest}"


def _consequence(error: BaseException, where: str, cause: dict[str, Any]) -> str:
    """The line of a rank that did not fail first: "... because <cause>" if its error follows from it, else "after"."""
    first = cause["description"].partition("\n")[0]
    how = _text_of(error).partition("\n")[0]
    follows = _follows_from(error, first)
    if first in str(error) or (follows and how in first):
        how = how.partition(":")[0]
    link = "because" if follows else "after"
    ending = f"ended{where and ' in '}{where} by {_cut(how, _LONGEST // 2)}, {link} {_first_line(cause)}"
    return _cut(ending, _LONGEST)


def _follows_from(error: BaseException | None, cause: str) -> bool:
    """Whether the exception, or an exception that caused it, reports the job's failure."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, SirtakiInternalError) or cause in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def _print_lines(*lines: str) -> None:
    """Writes to stderr with the rank in front of each line, unless the launcher adds it. One write for all lines, so
    that lines of different ranks do not mix.
    """
    prefix = "" if supervisor_link.is_there() else f"[rank {core.rank()}] "
    with contextlib.suppress(Exception):
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in lines))
        sys.stderr.flush()


def _stop_children() -> None:
    """Otherwise workers of multiprocessing (data loaders) outlive an abort for seconds, and its directory stays."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    with contextlib.suppress(Exception):
        for child in multiprocessing.active_children():
            child.terminate()
        folder = multiprocessing.process.current_process()._config.get("tempdir")
        if folder:  # an interpreter that ends normally removes it
            shutil.rmtree(folder, ignore_errors=True)


_installed: _Ending | None = None


def watch() -> None:
    """Registers the exit handlers, once in a process, and the hook for exceptions, before init() can raise one."""
    global _installed
    if _installed is None or _installed.process != os.getpid():
        _installed = _Ending()
    _installed.take_hook()


def install(shutdown: Callable[[], None]) -> None:
    """Called when init() has succeeded. A process that ends normally leaves the job by `shutdown`."""
    watch()
    assert _installed is not None
    _installed.shutdown, _installed.left_with = shutdown, None
    _installed.replace_exit()


def last_failure() -> dict[str, Any] | None:
    """The failure cause of the job that this process has left last."""
    return None if _installed is None else _installed.left_with


def note_end(cause: dict[str, Any] | None) -> None:
    """Called after shutdown(). cause: the failure cause if the job had failed. Holds until the next init()."""
    if _installed is not None:
        _installed.left_with = cause
