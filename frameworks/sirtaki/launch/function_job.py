"""`sirtaki.run`: runs one function on every rank, and returns the results by rank."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from sirtaki.job.protocol import channel
from sirtaki.job.remote import addresses
from sirtaki.launch.command_line import host_list
from sirtaki.rendezvous import launcher
from sirtaki.starters import slurm_hosts

VARIABLE = "SIRTAKI_FUNCTION"  # environment variable: where a rank gets its function, as JSON
_OPTIONS = (
    "--hosts",
    "--hostfile",
    "--start-timeout",
    "--ssh-port",
    "--ssh-identity-file",
    "--output-filename",
    "--mpi-args",
    "--network-interfaces",
    "--min-np",
    "--max-np",
    "--slots-per-host",
    "--reset-limit",
    "--host-discovery-script",
)
_WRONG_COMMAND_LINE = 2
_PROOF_SECONDS = 10.0
_MOST_LINES = 10  # of sirtakirun, in an error
_LAST_WORDS = 2.0  # seconds for them to arrive after its end


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Starts a job of `num_proc` ranks with sirtakirun, and returns func(*args, **kwargs) of each, in rank order.

    Returns once all have ended. Function, arguments and results are pickled by cloudpickle. executable: the ranks'
    Python, by default this one. hosts, hostfile, start_timeout, ssh_port, ssh_identity_file, output_filename, mpi_args,
    network_interfaces: as the options of sirtakirun; verbose: not 0 for its --verbose. use_gloo: without MPI. use_mpi,
    disable_cache: ignored; Horovod's programs pass them. np, min_np, max_np and network_interface are old names, with a
    DeprecationWarning.

    min_num_proc, max_num_proc or host_discovery_script make the job elastic; they, slots, reset_limit and
    cooldown_range (two numbers of seconds) are as the options --min-np, --max-np, --host-discovery-script,
    --slots-per-host, --reset-limit and --blacklist-cooldown-range. Then the results are those of the ranks that have
    finished.

    ValueError for wrong arguments. RuntimeError if the job fails, with the first rank's traceback if the function
    failed; the other ranks are ended.
    """
    _refuse_both(use_gloo=use_gloo, use_mpi=use_mpi)
    _refuse_both(hosts=hosts, hostfile=hostfile)
    _check_function(func)
    ranks = _checked_ranks(_renamed("np", np, "num_proc", num_proc))
    least = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    most = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    nics = _renamed("network_interface", network_interface, "network_interfaces", network_interfaces)
    joined_nics = nics if nics is None or isinstance(nics, str) else ",".join(nics)
    values = (hosts, hostfile, start_timeout, ssh_port, ssh_identity_file, output_filename, mpi_args, joined_nics)
    elastic = (least, most, slots, reset_limit, host_discovery_script)
    words = _words(ranks, (*values, *elastic)) + ["--verbose"] * bool(verbose) + ["--gloo"] * bool(use_gloo)
    if cooldown_range is not None:
        words += ["--blacklist-cooldown-range", *map(str, cooldown_range)]
    others = None if host_discovery_script else _others(hosts, hostfile)
    changes = any(value is not None for value in (least, most, host_discovery_script))
    with _Exchange(ranks, func, tuple(args), kwargs or {}, others, changes) as exchange:
        program = [executable or sys.executable, "-m", "sirtaki.launch.function_rank"]
        code, lines = _run_job([*words, *program], exchange)
    return exchange.results(code, lines)


def _refuse_both(**arguments: Any) -> None:
    if all(arguments.values()):
        raise ValueError(f"{' and '.join(arguments)} exclude each other")


def _check_function(func: Any) -> None:
    if not callable(func):
        raise ValueError(f"func must be a function, got {type(func).__name__} {func!r:.80}")


def _checked_ranks(ranks: Any) -> int:
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"num_proc must be a positive integer, got {ranks!r}")
    return ranks


def _words(ranks: int, values: Sequence[Any]) -> list[str]:
    """The command line of sirtakirun. values: those of _OPTIONS, in their order."""
    given = [(option, str(value)) for option, value in zip(_OPTIONS, values, strict=True) if value is not None]
    return ["-np", str(ranks), *(word for pair in given for word in pair)]


def _renamed(old: str, value: Any, new: str, new_value: Any) -> Any:
    if value is None:
        return new_value
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
    return value


def _others(names: str | None, file: str | None) -> list[str]:
    """The hosts that ranks may run on, as far as known. ValueError for malformed names."""
    if names is not None:
        return [host.name for host in host_list.from_list(names)]
    if file is not None:
        return [host.name for host in host_list.from_file(file)]
    return slurm_hosts.hosts(os.environ)


def _run_job(words: list[str], exchange: _Exchange) -> tuple[int, str]:
    """Runs sirtakirun. (its exit code, its last lines). An exception during the wait first ends the job."""
    folder = str(Path(__file__).parents[2])
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: exchange.description()}
    command = [sys.executable, "-m", "sirtaki.launch", *words]
    job = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    lines = collections.deque[str](maxlen=_MOST_LINES)
    copying = threading.Thread(target=_copy, args=(job.stderr, lines), daemon=True)
    copying.start()
    try:
        code = job.wait()
    except BaseException:
        job.terminate()  # sirtakirun ends its ranks
        job.wait()
        raise
    finally:
        copying.join(_LAST_WORDS)
    return code, "\n".join(lines)


def _copy(source: IO[bytes], lines: collections.deque[str]) -> None:
    """Shows the stderr of sirtakirun, and keeps the lines of sirtakirun itself."""
    with source:
        for line in source:
            with contextlib.suppress(OSError):
                os.write(2, line)
            if line.startswith(b"sirtakirun: "):
                lines.append(line.decode(errors="replace").removeprefix("sirtakirun: ").rstrip())


class _Exchange:
    """Sends the function to every rank, and receives its result. Ranks of this host connect to a socket in a private
    directory. Others connect by TCP, and prove like the launcher's workers that they belong to the job. others: the
    hosts; None if they are not known yet. changes: the ranks of the job may change.
    """

    def __init__(
        self, ranks: int, func: Any, args: Any, kwargs: Any, others: Collection[str] | None, changes: bool = False
    ) -> None:
        import cloudpickle

        self._ranks = ranks
        self._changes_ranks = changes
        self._call = cloudpickle.dumps((func, args, kwargs))
        self._token = secrets.token_bytes(32)
        self._results: dict[int, bytes] = {}
        self._failures: list[tuple[int, str]] = []
        self._changes = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="sirtaki-function-")
        self._listeners = list(self._listen(others))

    def _listen(self, others: Collection[str] | None) -> Iterator[socket.socket]:
        local = socket.socket(socket.AF_UNIX)
        local.bind(os.path.join(self._folder.name, "s"))
        local.listen(1024)
        yield local
        if others is not None and all(addresses.is_own(name) for name in others):
            return
        for address in addresses.toward(others or ()):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            yield socket.create_server((address, 0), family=family, backlog=1024)

    def description(self) -> str:
        """The value of VARIABLE: a path, and for ranks of other hosts the addresses and the secret."""
        local, *others = [listener.getsockname() for listener in self._listeners]
        remote = {"endpoints": [name[:2] for name in others], "token": self._token.hex()} if others else {}
        return json.dumps({"path": local, **remote})

    def __enter__(self) -> _Exchange:
        for listener in self._listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes its thread
            listener.close()
        self._folder.cleanup()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, connected: socket.socket) -> None:
        """Serves one rank until its result arrives. If the rank ends early, sirtakirun reports it."""
        with contextlib.suppress(EOFError, OSError, ValueError), connected:
            if connected.family != socket.AF_UNIX:
                self._prove(connected)
            self._exchange(Connection(connected.detach()))

    def _prove(self, connected: socket.socket) -> None:
        """ValueError or OSError if the peer is not part of the job."""
        connected.settimeout(_PROOF_SECONDS)
        nonce = os.urandom(channel.NONCE_BYTES)
        connected.sendall(nonce)
        with connected.makefile("rb") as answers:
            answer = answers.read(channel.ANSWER_BYTES)
        connected.sendall(channel.proof_for(self._token, nonce, answer))
        connected.settimeout(None)

    def _exchange(self, rank: Connection) -> None:
        with rank:
            rank.send((sys.path, self._call))
            number, result, failure = rank.recv()
            with self._changes:
                if failure:
                    self._failures.append((number, failure))
                else:
                    self._results[number] = result
            rank.send("taken")

    def results(self, code: int, lines: str) -> list[Any]:
        """The results by rank, once the job has ended with this exit code and these last lines of sirtakirun."""
        import cloudpickle

        if code == _WRONG_COMMAND_LINE and not self._failures:
            raise ValueError(f"sirtakirun refuses these arguments: {lines}")
        if self._failures and code:  # with exit code 0, a later start of the job has succeeded
            rank, failure = self._failures[0]
            raise RuntimeError(f"the function failed on rank {rank} of {self._ranks}:\n{failure}")
        missing = [rank for rank in range(self._ranks) if rank not in self._results]
        if self._changes_ranks and self._results:
            missing = []
        if code != 0 or missing:
            what = f"; no result came from ranks {missing}" if missing else ""
            raise RuntimeError(f"the job of {self._ranks} ranks ended with exit code {code}{what}\n{lines}".rstrip())
        return [cloudpickle.loads(result) for _, result in sorted(self._results.items())]


def serve_rank(rank: int) -> int:
    """Runs on a rank: gets the function, calls it, sends the result. Returns the exit code."""
    with _connected(json.loads(os.environ.pop(VARIABLE))) as caller:
        sys.path[:], call = caller.recv()
        result, failure = _called(call)
        newest = launcher.newest_rank()
        caller.send((rank if newest is None else newest, result, failure))
        caller.recv()
    if failure:
        print(failure, file=sys.stderr, end="", flush=True)
    return 1 if failure else 0


def _connected(found: dict[str, Any]) -> Connection:
    if "endpoints" not in found or os.path.exists(found["path"]):
        return Connection(channel.connect_local(found["path"]).detach())
    endpoints = [(address, port) for address, port in found["endpoints"]]
    return Connection(channel.connect_remote(endpoints, bytes.fromhex(found["token"])).detach())


def _called(call: bytes) -> tuple[bytes, str]:
    import cloudpickle

    try:
        func, args, kwargs = cloudpickle.loads(call)
        return cloudpickle.dumps(func(*args, **kwargs)), ""
    except Exception:
        return b"", traceback.format_exc()
