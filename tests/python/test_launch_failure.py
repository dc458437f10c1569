"""However a rank fails: its cause is printed last and once, the others learn of it as an exception and say how they end
in one line each, and its exit code is the job's.
"""

import itertools
import os
import re
import selectors
import signal
import socket
import sys
from pathlib import Path

import pytest
from launching import JOINED, run, running, written

from sirtaki.job.launcher import failure
from sirtaki.job.launcher.starting import Starting
from sirtaki.job.supervisor import rank_link

QUICK = {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "1", "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "2"}


def test_the_first_cause_is_last(tmp_path: Path) -> None:
    """C45: in the last ten lines rank, host and traceback; a line for each consequence; the rank's own file has it."""
    body = """
def backward():
    raise ValueError("boom")
if rank == 3:
    backward()
meet("second")
"""
    done = run("-np", "4", "--output-filename", str(tmp_path / "out"), *written(tmp_path, body))
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    end = "\n".join(lines[-10:])
    assert "[3] Traceback (most recent call last):" in end and "[3] ValueError: boom" in end
    assert "in backward" in end
    assert (
        lines[-1].startswith("sirtakirun: rank 3 on host ")
        and "failed first: ValueError: boom (program.py:" in lines[-1]
    )
    assert sum("failed first" in line for line in lines) == 1
    for rank in range(3):
        (line,) = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert "ended in program.py:" in line and "because rank 3 on host " in line and "ValueError: boom" in line
    assert "ValueError: boom" in (tmp_path / "out" / "rank.3" / "stderr").read_text()


def test_a_rank_that_has_ended_before_it_is_looked_at(tmp_path: Path) -> None:
    """All that it left is there at once; its file has the traceback all the same."""
    body = """
import subprocess
words = f"sleep 1; kill -CONT {os.getppid()}"
subprocess.Popen(["sh", "-c", words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
os.kill(os.getppid(), signal.SIGSTOP)
raise ValueError("boom")
"""
    done = run("-np", "1", "--output-filename", str(tmp_path / "out"), *written(tmp_path, body))
    assert done.returncode == 1 and b"ValueError: boom" in done.stderr
    assert "ValueError: boom" in (tmp_path / "out" / "rank.0" / "stderr").read_text()


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("os._exit(3)", 3, "exit code 3"),
        ("os._exit(0)", 1, "left early: exit code 0 without shutdown()"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by signal 9, SIGKILL"),
        (
            "os.kill(os.getpid(), signal.SIGBUS)",
            135,
            "killed by signal 7, SIGBUS (/dev/shm or a mapped file's disk full?)",
        ),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_a_death_is_an_exception_on_the_other_ranks(how: str, code: int, words: str, tmp_path: Path) -> None:
    """C15: rank 1 waits in a collective, rank 2 computes on; the job is gone soon, with the first rank's exit code."""
    body = f"""
if rank == 0:
    time.sleep(0.3)  # the others are there by then
    {how}
if rank == 2:
    while True: pass
try:
    meet("second")
except hvd.SirtakiInternalError as error:
    print("caught", error)
    raise
"""
    with running(tmp_path, "-np", "3", *written(tmp_path, body)) as job:
        output, error = job.process.communicate(timeout=30)
        assert job.process.returncode == code, error
        assert b"[1] caught rank 0 on host " in output and words.encode() in output
        last = error.decode().splitlines()[-1]
        assert last.startswith("sirtakirun: rank 0 on host ") and f"failed first: {words}" in last
        job.assert_nothing_left()


def test_a_death_ends_a_receive_from_the_dead_rank(tmp_path: Path) -> None:
    body = """
from sirtaki.exchange import start_transfer
assert type(os._exit).__name__ == "builtin_function_or_method", os._exit
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    start_transfer("receive", bytearray(4), 1, 0).wait()
except hvd.SirtakiInternalError as error:
    print("caught", error)
    raise
"""
    done = run("-np", "2", *written(tmp_path, body))
    assert done.returncode == 137, done.stderr
    assert b"[0] caught rank 1 on host " in done.stdout, done.stdout


def test_a_process_that_goes_while_its_program_lives(tmp_path: Path) -> None:
    """A script around the rank's process hides its exit code, not its death."""
    program = written(tmp_path, "if rank == 1: os._exit(0)\nmeet('second')\n")
    done = run("-np", "2", "sh", "-c", '"$@"; sleep 60', "sh", *program)
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1 and "rank 1 on host" in last
    # The other rank may notice it before the rank's supervisor does.
    assert "is gone without shutdown()" in last or "rank 1 has died, while rank 0 waited for it" in last


def test_a_stall_names_who_is_missing(tmp_path: Path) -> None:
    """C16: the whole report once, at the end; C12: and who has left, if that is why."""
    done = run("-np", "3", *written(tmp_path, "if rank == 1: time.sleep(50)\nmeet('lonely')\n"), **QUICK)
    text = done.stderr.decode()
    assert done.returncode == 1 and text.count("waits for 'lonely' from program.py:") == 2
    last, _, place = text.splitlines()[-1].rpartition(" (")
    assert (
        "rank 1 on host" in last
        and "missing first: " in last
        and re.search(r"from program\.py:\d+ lacks rank 1\.", last)
    )
    assert "program.py" not in place  # where the others wait is not where the missing rank is
    assert "time.sleep(50)" in text
    done = run("-np", "2", *written(tmp_path, "if rank == 1: sys.exit(0)\nmeet('lonely')\n"), **QUICK)
    assert done.returncode == 1 and b"rank 1 left early" in done.stderr.splitlines()[-1]
    done = run("-np", "2", *written(tmp_path, "if rank == 1: sys.exit(7)\nmeet('lonely')\n"), **QUICK)
    assert done.returncode == 7 and b"rank 1 left early" in done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"sirtakirun: rank 1 on host ")


def test_a_failure_that_the_program_catches(tmp_path: Path) -> None:
    """It ends in order, but the job is no success, unless the ranks begin anew."""
    body = """
again = sys.argv[1] == "again"
try:
    if again: core.fail("exception", "ValueError: boom")
    meet("first")
    meet(f"own {rank}")
except hvd.SirtakiInternalError as error:
    print("caught")
if again:
    hvd.shutdown()
    hvd.init()
    meet("second")
"""
    program = written(tmp_path, body, JOINED.replace('meet("first")\n', ""))
    done = run("-np", "2", *program, "end", **QUICK)
    text = done.stderr.decode()
    assert done.returncode == 1 and done.stdout.count(b"caught") == 2 and "BAD TERMINATION" not in text, text
    assert text.count("ended after the job had failed, because rank ") == 2 and "(missing: rank 1)" in text, text
    assert re.match(r"sirtakirun: rank [01] on host .* missing first: Stalled: ", text.splitlines()[-1]), text
    done = run("-np", "2", *program, "again")
    assert done.returncode == 0 and done.stdout.count(b"caught") == 2 and b"ended" not in done.stderr, done.stderr


def test_an_exception_within_init(tmp_path: Path) -> None:
    """Before the core is there; within it, on one rank while the other waits; of one that was caught nobody hears."""
    program = written(tmp_path, "")
    wrong = "ValueError: SIRTAKI_FUSION_THRESHOLD='abc': expected a number from 0 to "
    done = run("-np", "2", *program, SIRTAKI_FUSION_THRESHOLD="abc")
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1 and f" failed first: {wrong}" in last and " (program.py:5, " in last, done.stderr
    within = """
def broken(*_): raise hvd.SirtakiInternalError("rank 0 was awaited in vain")
working = core.init
if os.environ["PMI_RANK"] == "1": core.init = broken
try:
    hvd.init()
except hvd.SirtakiInternalError:
    if len(sys.argv) > 1: raise
    core.init = working
    hvd.init()
"""
    program = written(tmp_path, "", JOINED.replace("hvd.init()\n", within))
    done = run("-np", "2", *program, "raise")
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("sirtakirun: rank 1 on host "), done.stderr
    assert " failed first: SirtakiInternalError: rank 0 was awaited in vain (program.py:" in last, last
    done = run("-np", "2", *program)
    assert done.returncode == 0 and b"awaited" not in done.stderr, done.stderr


@pytest.mark.long
def test_a_rank_that_is_stopped_while_the_others_leave(tmp_path: Path) -> None:
    """Rank 0, whose sign of life they await; only they can tell, at the end of the program or after a shutdown()."""
    body = "if rank == 1: hvd.shutdown()\nif rank == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
    done = run("-np", "3", *written(tmp_path, body), **{**QUICK, "SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "1"})
    last = done.stderr.decode().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("sirtakirun: rank 0 on host "), done.stderr
    assert "which coordinates, has not answered rank " in last, last


def test_a_rank_that_does_not_call_init(tmp_path: Path) -> None:
    """C63."""
    start = JOINED.replace("hvd.init()", "if os.environ['PMI_RANK'] == '1': time.sleep(60)\nhvd.init()")
    done = run("-np", "2", *written(tmp_path, "", start), SIRTAKI_START_TIMEOUT="2")
    assert done.returncode == 1
    assert b"1 of 2 ranks arrived within 2 s (SIRTAKI_START_TIMEOUT), missing: rank 1" in done.stderr.splitlines()[-1]


def test_a_rank_that_ends_before_init(tmp_path: Path) -> None:
    """The launcher has seen its end, so that the others need not wait for the limit."""
    start = (
        "import os, sys\nif int(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']) == 1: sys.exit(0)\n"
    )
    done = run("-np", "3", *written(tmp_path, "", start + JOINED), SIRTAKI_START_TIMEOUT="1000")
    assert done.returncode == 1
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("sirtakirun: rank 1 on host ") and " host ? " not in last
    assert "rank 1 ended with exit code 0 without calling init(), in which other ranks wait" in last, last


def test_a_rank_that_is_stopped_within_init(tmp_path: Path) -> None:
    """The others are in MPI_Init, which waits without a limit."""
    stop = "if os.environ['PMI_RANK'] == '1': core.init = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)\nhvd.init()"
    program = written(tmp_path, "", JOINED.replace("hvd.init()", stop))
    with running(tmp_path, "-np", "2", *program, SIRTAKI_START_TIMEOUT="3") as job:
        last = job.process.communicate(timeout=30)[1].splitlines()[-1]
        assert job.process.returncode == 1 and last.startswith(b"sirtakirun: rank 1 on host "), last
        assert b"all 2 ranks have called init(), but it did not end within 3 s (SIRTAKI_START_TIMEOUT)" in last
        assert re.search(rb": rank 1, process \d+, is stopped", last), last
        job.assert_nothing_left()


def test_who_is_missing_in_a_start() -> None:
    """Of the first init() and of later ones; whose init() failed may call it again."""
    starting = Starting(3)
    assert starting.due == float("inf")
    for rank in (0, 1):
        starting.on_call(rank, 7)
        starting.on_over(rank, rank == 1)
    starting.on_call(0, 9)
    assert starting.due < float("inf") and starting.ask() == (set(), "")
    rank, text = starting.missing()
    assert rank == 2 and "2 of 3 ranks arrived within 7 s (SIRTAKI_START_TIMEOUT), missing: rank 2" in text
    starting.on_call(2, 9)
    assert starting.ask()[0] == {0, 2} and starting.ask() == (set(), "")
    assert starting.missing() == (
        0,
        "all 3 ranks have called init(), but it did not end within 7 s (SIRTAKI_START_TIMEOUT), on ranks 0, 2",
    )
    starting.on_over(2, False)
    assert starting.missing()[0] == 2 and "it has failed on rank 2" in starting.missing()[1]
    starting.on_over(0, True)
    starting.on_call(2, 7)
    starting.on_over(2, True)
    assert starting.due == float("inf")
    starting.on_call(1, 7)
    assert starting.due < float("inf") and starting.ask() == (set(), "")
    assert "1 of 3 ranks arrived again within 7 s" in starting.missing()[1] and starting.missing()[0] == 0


def test_exit_code_of_a_rank_that_leaves_slowly(tmp_path: Path) -> None:
    """Libraries are taken down after it has left the job; the others' deaths do not end it meanwhile."""
    start = f"import atexit, time; atexit.register(time.sleep, 1.7)\n{JOINED}"
    done = run("-np", "3", *written(tmp_path, "if rank == 1: sys.exit(7)\nmeet('second')\n", start))
    assert done.returncode == 7, done.stderr
    assert done.stderr.splitlines()[-1].startswith(b"sirtakirun: rank 1 on host ")


def test_a_long_text_of_a_cause_is_cut(tmp_path: Path) -> None:
    done = run("-np", "2", *written(tmp_path, "if rank == 1: raise ValueError('\u6c49' * 60000)\nmeet('second')\n"))
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("sirtakirun: rank 1 on host ") and "failed first: ValueError: \u6c49" in last
    assert len(last) < 2000


def test_a_signals_handler_that_raises_while_the_cause_is_told(tmp_path: Path) -> None:
    """As torch's does when a data loader's worker is killed. The program's own line is told, not the library's."""
    body = """
import json, multiprocessing.util
def on_signal(number, frame):
    raise RuntimeError("a worker was killed")
signal.signal(signal.SIGUSR2, on_signal)
class Bad(Exception):
    def __str__(self):
        if signal.getsignal(signal.SIGUSR2) is on_signal:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(1)
        return "bad"
def hook(pairs):
    raise Bad
multiprocessing.util.get_temp_dir()
if rank == 1:
    json.loads("{}", object_pairs_hook=hook) if how == "raise" else json.loads("{")
meet("second")
"""
    with running(tmp_path, "-np", "2", *written(tmp_path, "how = 'raise'" + body)) as job:
        error = job.process.communicate(timeout=30)[1].decode()
        assert job.process.returncode == 1 and "[1] RuntimeError: a worker was killed" in error, error
        assert "in hook" in error and "excepthook" not in error
        assert error.splitlines()[-1].startswith("sirtakirun: rank 1 on host ")
        job.assert_nothing_left()
    done = run("-np", "2", *written(tmp_path, "how = 'library'" + body))
    assert b"JSONDecodeError" in done.stderr and b" (program.py:" in done.stderr.splitlines()[-1]


def test_events_of_a_rank_whose_socket_was_drained() -> None:
    """One look finds both that the rank's line has ended and that its process has: the line is read for the latter."""
    lost: list[int] = []
    selector = selectors.PollSelector()
    line = rank_link.RankLink(selector, lambda kind, content: None, lost.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
        rank.connect("\0" + line.name)
        rank.send(rank_link.JOINS + b'{"process": 17}')
        for key, events in selector.select(5):
            key.data(key.fileobj, events)
    news = selector.select(5)
    line.drain()
    for key, events in news:
        key.data(key.fileobj, events)
    assert news and lost == [17]


def test_a_rank_that_left_and_comes_again_before_it_is_looked_at() -> None:
    kinds: list[bytes] = []
    selector = selectors.PollSelector()
    line = rank_link.RankLink(selector, lambda kind, content: kinds.append(kind), lambda process: None)

    def look_until(count: int) -> None:
        for key, events in itertools.chain.from_iterable(selector.select(1) for _ in range(5) if len(kinds) < count):
            key.data(key.fileobj, events)

    def connected() -> socket.socket:
        rank = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        rank.connect("\0" + line.name)
        rank.send(rank_link.JOINS + b'{"process": 17}')
        return rank

    with connected() as rank:
        look_until(1)
        rank.send(rank_link.LEAVES)
    with connected():
        look_until(3)
        assert kinds == [rank_link.JOINS, rank_link.LEAVES, rank_link.JOINS] and line.joined()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            "Exception('Other MPI error, error stack:\\na(1): x failed\\nb(2): readv failed')",
            "error stack: b(2): readv failed (",
        ),
        (
            "ValueError('Graph execution error:\\n\\nDetected at node x\\n  File y\\nbad shape [2]\\n\\t [[{{x}}]]')",
            "ValueError: Graph execution error: bad shape [2] (",
        ),
        (
            "ValueError('in user code:\\n\\n    File y, line 6\\n        f(x)\\n\\n    ValueError: no shape fits')",
            "ValueError: in user code: ValueError: no shape fits (",
        ),
        (
            "ValueError('G:\\n2 root error(s) found.\\n  (0) UNKNOWN: boom\\n  (1) UNKNOWN: bam')",
            "G: (0) UNKNOWN: boom (",
        ),
        ("ValueError('to do:')", "failed first: ValueError: to do: ("),
        ("FileNotFoundError(os.fsdecode(b'part-\\xff'))", r"FileNotFoundError: part-\udcff ("),
    ],
)
def test_the_last_line_says_what_happened(error: str, expected: str, tmp_path: Path) -> None:
    """Where a text begins with a heading, and where it is not UTF-8."""
    done = run("-np", "2", *written(tmp_path, f"if rank == 1: raise {error}\nmeet('x')\n"))
    assert done.returncode == 1 and expected in done.stderr.decode(errors="replace").splitlines()[-1], done.stderr
    assert b"TypeError" not in done.stderr


@pytest.mark.parametrize("accepted", [False, True])
def test_the_last_messages_of_a_rank_that_has_ended(accepted: bool) -> None:
    """Its supervisor may have had no core to accept the connection; or the rank left a message unread, for which the
    kernel reports a reset connection first.
    """
    kinds: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        line = rank_link.RankLink(selector, lambda kind, content: kinds.append(kind), lambda process: None)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
            rank.connect("\0" + line.name)
            rank.send(rank_link.JOINS + b'{"process": 17}')
            if accepted:
                line.drain()
                assert line.update(b"")
            rank.send(rank_link.CAUSE + b"{}")
        line.drain()
    assert kinds == [rank_link.JOINS, rank_link.CAUSE] and line.was_lost()


def test_little_shared_memory_is_named_with_what_cures_it() -> None:
    text = str(failure.of_exit(1, "n1", -signal.SIGBUS))
    assert "killed by signal 7, SIGBUS (/dev/shm or " in text and "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS=8" in text


def test_a_script_whose_name_is_not_utf8(tmp_path: Path) -> None:
    script = os.fsencode(tmp_path) + b"/train-\xff.py"
    Path(os.fsdecode(script)).write_text(JOINED + "if rank == 1: raise ValueError('boom')\nmeet('x')\n")
    done = run("-np", "2", sys.executable, os.fsdecode(script))
    assert done.returncode == 1 and rb"ValueError: boom (train-\udcff.py:8" in done.stderr.splitlines()[-1], done.stderr


def test_errors_have_one_name(tmp_path: Path) -> None:
    """In the docs, in tracebacks and in the last line."""
    done = run("-np", "2", *written(tmp_path, "raise hvd.SirtakiInternalError('boom')\n"))
    assert b"sirtaki.SirtakiInternalError: boom" in done.stderr and b"_core" not in done.stderr, done.stderr
    import pickle

    import sirtaki

    error = pickle.loads(pickle.dumps(sirtaki.SirtakiInternalError("boom")))
    assert type(error) is sirtaki.HorovodInternalError and str(error) == "boom"
