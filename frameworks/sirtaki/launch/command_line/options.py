"""The command line of sirtakirun: all flags of horovodrun, with the same names and types.

A flag of a missing feature is refused by name. A flag that asks for the present behaviour (--no-autotune) is accepted.
"""

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from sirtaki.job.protocol.spec import GRACE, LOST_AFTER
from sirtaki.job.protocol.time_limits import LOST_AFTER_IF_ELASTIC
from sirtaki.launch.command_line import config_file, elastic_options, tuning
from sirtaki.starters import STARTERS

LOST_HOST_VARIABLE = "SIRTAKI_LOST_HOST_SECONDS"
GRACE_VARIABLE = "SIRTAKI_GRACE_SECONDS"
RESTARTS_VARIABLE = "SIRTAKI_RESTARTS"
_LAUNCHERS = ("auto", "mpiexec", *(starter.called for starter in STARTERS if starter.places_ranks))
_LONGEST = 1e6  # seconds

_EPILOG = """\
Everything after the options is the program and its arguments; each rank gets them unchanged. The stdin of all ranks is
/dev/null. The exit code is that of the first rank that failed, or 128 + n if signal n ended that rank.
SIRTAKI_MPI chooses another MPI: a libmpi*.so file, a prefix directory, or one of the words openmpi and mpich.
`sirtakirun status` prints the status of your running job, `sirtakirun top` its speed. `sirtakirun timeline` works on
the files of --timeline-filename. Each has a --help of its own.
"""


class _Parser(argparse.ArgumentParser):
    """`words`: number of words that follow each option."""

    words: dict[str, int]

    def add(self, group: Any, *names: str, **details: Any) -> None:
        action = group.add_argument(*names, **details)
        nargs = 1 if action.nargs is None else int(action.nargs)
        self.words.update(dict.fromkeys(action.option_strings, nargs))

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"sirtakirun: {message}\n(sirtakirun --help lists the options)\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Reads flags and config file. Exits with code 2 and a message on an error.

    In the result, `command` is the list of words after the options, and `environ` has the variables of tuning flags.
    """
    parser = _parser()
    count = _words_of_options(parser, argv)
    options = parser.parse_args(argv[:count])
    options.command = list(argv[count:])
    if options.command[:1] == ["--"]:
        del options.command[0]
    try:
        if options.config_file:
            _add_config_file(options)
        tuning.refuse_missing(options)
        tuning.check(options)
        elastic_options.check(options)
        options.environ = tuning.environment(options)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return options


def _add_config_file(options: argparse.Namespace) -> None:
    for name, value in config_file.read(options.config_file).items():
        decided = options.use_mpi if name == "use_gloo" else getattr(options, name)
        if decided is None:
            setattr(options, name, value)


def ranks(options: argparse.Namespace) -> int:
    """The requested number of ranks. Exits with code 2 without a number or a command."""
    if options.num_proc is None:
        _parser().error("the number of ranks is missing: give -np N, for example: sirtakirun -np 2 python train.py")
    if not options.command:
        _parser().error(f"the command is missing, for example: sirtakirun -np {options.num_proc} python train.py")
    return int(options.num_proc)


def _words_of_options(parser: _Parser, argv: Sequence[str]) -> int:
    """How many words at the beginning are options. The rest is the user's command, which argparse must not parse."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "--":
        at += 1 + parser.words.get(argv[at], 0)
    return min(at, len(argv))


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return number


def _number(text: str) -> int:
    return 0 if text == "0" else positive(text)


def _port(text: str) -> int:
    number = positive(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: at most 65535")
    return number


def seconds_of(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _words(text: str) -> str:
    """Checks a text that is split into words later."""
    try:
        shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    return text


class _Interfaces(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        names = [name.strip() for name in str(values).split(",") if name.strip()]
        if not names:
            parser.error(f"{option_string} {values!r} names no interface")
        setattr(namespace, self.dest, sorted({*(getattr(namespace, self.dest) or ()), *names}))


def _parser() -> _Parser:
    parser = _Parser(
        prog="sirtakirun",
        description="Runs a program as N ranks of one job, through the mpiexec of the MPI in use.",
        usage="sirtakirun -np N [-H h1:n,h2:n] [options] command [argument ...]",
        epilog=_EPILOG,
        allow_abbrev=False,
        add_help=False,
    )
    parser.words = {}
    _add_main(parser)
    _add_hosts(parser)
    _add_mpi(parser)
    elastic_options.add_flags(parser, parser.add, positive, _number)
    tuning.add_flags(parser, parser.add)
    return parser


def _add_main(parser: _Parser) -> None:
    add, switch = parser.add, "store_true"
    add(parser, "-h", "--help", action="help", help="print this text")
    add(parser, "-v", "--version", action=switch, help="print the version")
    add(parser, "-np", "--num-proc", type=positive, metavar="N", help="number of ranks")
    add(
        parser,
        "-cb",
        "--check-build",
        "--check",
        action=switch,
        dest="check_build",
        help="list the parts that are found or missing",
    )
    add(parser, "--verbose", action=switch, help="print the command line and the output of mpiexec")
    add(parser, "--disable-cache", action=switch, help="accepted, without effect: nothing about hosts is cached")
    words = "seconds until all ranks must have started (SIRTAKI_START_TIMEOUT, else 30)"
    add(parser, "--start-timeout", type=positive, metavar="S", help=words)
    words = f"seconds from SIGTERM, Ctrl-C or a failure until SIGKILL ({GRACE_VARIABLE}, else {GRACE:g})"
    add(parser, "--grace-seconds", type=seconds_of, metavar="S", help=words)
    words = f"after a failure start the job anew, at most N times ({RESTARTS_VARIABLE}, else 0)"
    add(parser, "--restarts", type=_number, metavar="N", help=words)
    add(parser, "--config-file", metavar="FILE", help="YAML file with options; flags on the command line override it")
    words = "print the hosts and commands of the job, and start nothing"
    add(parser, "--dry-run", action=switch, help=words)
    words = "serve the ranks' numbers for Prometheus at http://127.0.0.1:N/metrics"
    add(parser, "--metrics-port", type=_port, metavar="N", help=words)
    add(parser, "--metrics-file", metavar="FILE", help="write them into this file every 15 seconds")
    words = "also write DIR/rank.N/stdout and stderr, on the rank's host"
    add(parser, "--output-filename", metavar="DIR", help=words)


def _add_hosts(parser: _Parser) -> None:
    add = parser.add
    where = parser.add_argument_group("hosts (without these options all ranks run on this host)")
    which = where.add_mutually_exclusive_group()
    add(which, "-H", "--hosts", metavar="h1:n,h2:n", help="hosts and their slots")
    add(which, "-hostfile", "--hostfile", metavar="FILE", help="file with lines 'host slots=n', 'host:n' or 'host'")
    words = "prints one host, or host:slots, a line; called every second; makes the job elastic"
    add(which, "--host-discovery-script", metavar="SCRIPT", help=words)
    add(where, "-p", "--ssh-port", type=_port, metavar="N", help="port of sshd on the hosts")
    add(where, "-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    words = "a command to use in place of ssh, with the same arguments: host, command (SIRTAKI_LAUNCH_AGENT)"
    add(where, "--launch-agent", type=_words, metavar="WORDS", help=words)
    names = ("--network-interfaces", "--network-interface")
    add(where, *names, dest="nics", action=_Interfaces, metavar="a,b", help="network interfaces to use between hosts")


def _add_mpi(parser: _Parser) -> None:
    add, switch = parser.add, {"action": "store_true", "default": None}
    group = parser.add_argument_group("MPI")
    which = group.add_mutually_exclusive_group()
    add(which, "--mpi", dest="use_mpi", help="start the ranks by MPI, the default where an MPI is installed", **switch)
    add(which, "--gloo", dest="use_gloo", help="start the ranks without MPI: they connect by TCP", **switch)
    add(which, "--jsrun", dest="use_jsrun", help=argparse.SUPPRESS, **switch)
    words = "auto: srun inside a Slurm allocation, else the mpiexec of the MPI in use"
    add(group, "--launcher", choices=_LAUNCHERS, default="auto", help=words)
    add(group, "--mpi-args", type=_words, metavar="ARGS", help="further arguments for mpiexec or srun, as one word")
    add(
        group,
        "--binding-args",
        type=_words,
        metavar="ARGS",
        help="arguments of mpiexec that bind ranks to cores; by default it binds none",
    )
    add(group, "--tcp", dest="tcp_flag", help=argparse.SUPPRESS, **switch)


def start_timeout(options: argparse.Namespace) -> float:
    """Seconds from the flag, SIRTAKI_START_TIMEOUT or HOROVOD_START_TIMEOUT, by default 30. Raises ValueError."""
    if options.start_timeout is not None:
        return float(options.start_timeout)
    for name in ("SIRTAKI_START_TIMEOUT", "HOROVOD_START_TIMEOUT"):
        if os.environ.get(name):
            return _from_environment(name, or_never=False)
    return 30.0


def grace(options: argparse.Namespace) -> float:
    """Seconds for programs to end after a request to end. Raises ValueError."""
    if options.grace_seconds is not None:
        return float(options.grace_seconds)
    if not os.environ.get(GRACE_VARIABLE):
        return GRACE
    try:
        return seconds_of(os.environ[GRACE_VARIABLE])
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{GRACE_VARIABLE}={error}") from None


def restarts(options: argparse.Namespace) -> int:
    """How often the job may be started anew. Raises ValueError."""
    if options.restarts is not None or not os.environ.get(RESTARTS_VARIABLE):
        return options.restarts or 0
    try:
        return _number(os.environ[RESTARTS_VARIABLE])
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{RESTARTS_VARIABLE}={error}") from None


def lost_after(options: argparse.Namespace) -> float:
    """Seconds of silence until another host counts as lost, 0 for never. Raises ValueError."""
    if os.environ.get(LOST_HOST_VARIABLE):
        return _from_environment(LOST_HOST_VARIABLE, or_never=True)
    return LOST_AFTER_IF_ELASTIC if elastic_options.is_elastic(options) else LOST_AFTER


def _from_environment(name: str, or_never: bool) -> float:
    text = os.environ[name]
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < _LONGEST or (seconds == 0 and not or_never):
        kind = "number of seconds, or 0 for never" if or_never else "positive number of seconds"
        raise ValueError(f"{name}={text!r} is not a {kind}")
    return seconds
