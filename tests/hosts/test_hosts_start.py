"""Ranks on three hosts: where they run, what they get, what they print, and what nobody else can see."""

import base64
import json
import os
import re
import signal
import subprocess
from pathlib import Path

from simulated import PLAIN, Hosts, last_line, report

WORDS = ["a b", "$HOME", "it's", "*", "", "two\nlines", "ünïcödé ☃", '"', "\\", "--", os.fsdecode(b"\xff\xfe")]


def test_engine_arguments_and_environment(hosts: Hosts) -> None:
    """C56, and where the ranks are: two on n2, one on each other host."""
    body = """
import json, socket
from sirtaki.exchange import allgather_object
everywhere = allgather_object((hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()))
environ = {n.decode("latin-1"): v.decode("latin-1") for n, v in os.environb.items()}
words = [os.fsencode(word).decode("latin-1") for word in sys.argv[2:]]
name = os.environ.get("SIRTAKI_HOSTNAME") or socket.gethostname()
with open(f"{sys.argv[1]}/{rank}", "w") as file:
    json.dump([name, everywhere, words, environ, os.getcwd()], file)
"""
    extra = {f"T_{number}": word for number, word in enumerate(WORDS)} | {"T_LARGE": "x" * 120_000}
    done = hosts.run(*hosts.flags("n1:1,n2:2,n3:1", 4), *hosts.program(body), *WORDS, **extra)
    assert done.returncode == 0, report(done)
    for rank, host in enumerate(("n1", "n2", "n2", "n3")):
        name, everywhere, words, environ, cwd = json.loads((hosts.there / str(rank)).read_text())
        assert name == host and cwd == os.getcwd()
        assert everywhere == [[0, 1, 0, 3], [0, 2, 1, 3], [1, 2, 0, 1], [0, 1, 2, 3]]
        assert [word.encode("latin-1") for word in words] == [os.fsencode(word) for word in WORDS]
        arrived = {n.encode("latin-1"): v.encode("latin-1") for n, v in environ.items()}
        assert {os.fsencode(n): os.fsencode(v) for n, v in extra.items()}.items() <= arrived.items()
        assert arrived[b"HOME"] == os.environb[b"HOME"]
        assert not any(n.startswith((b"SIRTAKI_LAUNCH_SPEC", b"SSH_CONNECTION")) for n in arrived)


def test_sums_by_two_levels(hosts: Hosts) -> None:
    """Shared memory inside n2, MPI among the three."""
    body = """
import numpy
for step in range(3):
    for count in (1, 1000, 300_000):
        values = numpy.arange(count, dtype=numpy.int32) % 7
        mine, summed = values + rank * (step + 1), numpy.empty_like(values)
        tensor = (mine.ctypes.data, summed.ctypes.data, core.DTYPES["int32"], (count,), -1)
        core.submit(core.VERBS["allreduce"], f"t{count}", [tensor], op=core.OPS["sum"]).wait()
        assert (summed == 4 * values + 6 * (step + 1)).all(), (rank, step, count)
with open(f"{sys.argv[1]}/{rank}", "w") as file:
    print(*os.listdir("/dev/shm"), file=file)
"""
    done = hosts.run(*hosts.flags("n1:1,n2:2,n3:1", 4), *hosts.program(body), OMP_NUM_THREADS="1")
    assert done.returncode == 0, report(done)
    names = [path.read_text() for path in hosts.there.iterdir()]
    assert len(names) == 4
    if hosts.machine.kind == "namespaces":  # with a /dev/shm for this job alone
        assert not "".join(names).split(), names


def test_output(hosts: Hosts) -> None:
    """C59: whole lines, each with its rank; a progress bar; an end without newline; files of each rank."""
    body = """
print("first\\rbar", end="\\r" if rank == 0 else "\\n")
for i in range(1000): print(rank, i, str(rank) * 1000)
print("error", rank, file=sys.stderr)
print("no newline", rank, end="")
"""
    done = hosts.run_program(body, "--output-filename", str(hosts.folder / "files"), start=PLAIN)
    assert done.returncode == 0, report(done)
    lines = re.split(r"\r\n|\n", done.stdout.decode())
    assert {f"[{r}] {r} {i} {str(r) * 1000}" for r in (1, 2) for i in range(1000)} <= set(lines)
    assert {f"[{r}] no newline {r}" for r in range(3)} <= set(lines)
    assert re.search(r"\[0\] first\r\[0\] bar|\[0\] bar\r", done.stdout.decode())
    assert {f"[{r}] error {r}" for r in range(3)} <= set(done.stderr.decode().splitlines())
    for rank in range(3):
        written = (hosts.folder / "files" / f"rank.{rank}" / "stdout").read_text()
        assert written.endswith(f"{rank} 999 {str(rank) * 1000}\nno newline {rank}")


def test_secret_and_environment_are_on_no_command_line(hosts: Hosts) -> None:
    """Nor in the environment of anything but the program. The job's secret is in its private directory."""
    body = "open(f'{sys.argv[1]}/{rank}', 'w').close()\ntime.sleep(300)\n"
    with hosts.running(body, start=PLAIN, T_SECRET="open-sesame") as job:
        job.wait_for(hosts.there, 3)
        (directory,) = (path.parent for path in job.temporary.glob("sirtaki-*/spec"))
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in directory.iterdir() if path.is_file()} == {0o600}
        token = json.loads((directory / "spec").read_bytes())["token"].encode("latin-1")
        assert len(token) == 32
        token_forms = [token, token.hex().encode(), base64.b64encode(token)]
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            assert not any(form in words for form in (*token_forms, b"open-sesame")), words
            assert not any(form in environ for form in token_forms), words
            if b"hydra_pmi_proxy" in words or b"start_agent" in words.split(b"\0")[:1]:
                assert b"open-sesame" not in environ, words
        job.process.send_signal(signal.SIGTERM)
        job.process.communicate(timeout=20)
        job.assert_nothing_left()


def test_hosts_that_are_not_reached_are_named_with_what_to_try(hosts: Hosts) -> None:
    """Like C51: every one of them, at once, with a line that can be tried by hand."""
    flags = hosts.flags("n1:1,nowhere:1,never:1")
    done = hosts.run(*flags, "--start-timeout", "20", *hosts.program("", PLAIN))
    assert done.returncode == 1
    text = done.stderr.decode()
    for name in ("nowhere", "never"):
        assert f"host {name} was not reached: ssh: Could not resolve hostname {name}" in text, text
        assert re.search(rf"try by hand: ssh -x -T -o BatchMode=yes .* {name} '.*start_agent.py --check'", text), text
    assert "host n1" not in text and "host n2" not in text and "failed first" not in text
    done = hosts.run(*hosts.flags(), "-p", "23", "--start-timeout", "20", *hosts.program("", PLAIN))
    assert "host n2 was not reached: ssh: connect to host n2 port 23: Connection refused" in report(done), report(done)


def test_plan_and_its_command_by_hand(hosts: Hosts) -> None:
    """--dry-run starts nothing; the command that it shows works."""
    flags = hosts.flags("n1:1,n2:2,n3:4", 4)
    done = hosts.run(*flags, "--dry-run", *hosts.program("", PLAIN), "a b", T_SECRET="open-sesame")
    assert done.returncode == 0, report(done)
    text = done.stdout.decode()
    assert "host n1: rank 0" in text and "host n2: ranks 1-2" in text and "host n3: rank 3" in text
    assert "'a b'" in text and "T_SECRET" in text and "open-sesame" not in text
    assert re.search(r"starter: \S*mpiexec -n 4 -hosts n1:1,n2:2,n3:1 ", text), text
    (line,) = (line for line in text.splitlines() if " n3 '" in line)
    by_hand = line.partition("started by: ")[2].replace("start_agent.py", "start_agent.py --check")
    environ = {**os.environ, **hosts.machine.environment()}
    tried = subprocess.run(
        [*hosts.machine.enter("n1"), "/bin/sh", "-c", by_hand], env=environ, capture_output=True, text=True, timeout=20
    )
    assert tried.stdout.startswith("ranks can be started on n3: Python "), tried


def test_agent_of_the_site(hosts: Hosts) -> None:
    agent = hosts.folder / "own agent"
    agent.write_text('#!/bin/sh\necho "$1" >> "$(dirname "$0")/asked"\nexec ssh "$@"\n')
    agent.chmod(0o755)
    words = f"'{agent}'"
    done = hosts.run_program("print('there', rank)\n", start=PLAIN, SIRTAKI_LAUNCH_AGENT=words)
    assert done.returncode == 0, report(done)
    asked = sorted((hosts.folder / "asked").read_text().split())
    assert asked == [name for name in ("n1", "n2", "n3") if hosts.machine.kind == "stand-ins" or name != "n1"]
    agent.write_text("#!/bin/sh\necho kaputt >&2; exit 3\n")
    done = hosts.run_program("", "--launch-agent", words, start=PLAIN)
    assert last_line(done).startswith(f"sirtakirun:   try by hand: '{agent}' n3 "), report(done)
    assert "was not reached: kaputt" in report(done) and f"try by hand: '{agent}' n2 " in report(done), report(done)
    agent.write_text("#!/bin/sh\nexec sleep 100\n")
    done = hosts.run_program("", "--launch-agent", words, "--start-timeout", "1", start=PLAIN)
    assert "host n3 was not reached: no answer yet" in report(done), report(done)
    done = hosts.run_program("", "--launch-agent", "not-there", start=PLAIN)
    assert done.returncode == 2 and "there is no program 'not-there'" in report(done)


def test_addresses(networks: Hosts) -> None:
    """IPv6, own addresses, and names that mean another host elsewhere."""
    done = networks.run(*networks.flags("10.77.0.1:1,n2:1,[fd77::3]:1"), *networks.program("meet('a')\nprint(rank)"))
    assert done.returncode == 0, report(done)
    assert sorted(done.stdout.split(b"\n")) == [b"", b"[0] 0", b"[1] 1", b"[2] 2"]
    done = networks.run(*networks.flags("localhost:1,n2:2"), *networks.program(""))
    assert done.returncode == 2
    assert last_line(done).endswith("give its name as other hosts know it, for example 10.77.0.1"), report(done)


def test_name_that_resolves_to_this_host(networks: Hosts) -> None:
    enter, name = networks.machine.enter("n1"), "loop"
    subprocess.run([*enter, "/bin/sh", "-c", f"echo '127.0.1.1 {name}' >> /etc/hosts"], check=True)
    done = networks.run(*networks.flags(f"n1:1,{name}:2"), *networks.program(""))
    assert done.returncode == 2
    assert f"host {name} is 127.0.1.1 here, a loopback address" in last_line(done), report(done)
    assert "/etc/hosts" in last_line(done)


def test_listens_only_where_the_other_hosts_are(networks: Hosts) -> None:
    with networks.running("open(f'{sys.argv[1]}/{rank}', 'w').close()\ntime.sleep(300)\n", start=PLAIN) as job:
        job.wait_for(networks.there, 3)
        ours = _listening(job.process.pid)
        assert ours and all(address == "10.77.0.1" for address in ours), ours
        job.process.send_signal(signal.SIGINT)
        job.process.communicate(timeout=20)


def _listening(pid: int) -> list[str]:
    """The addresses on which a process takes connections."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        inodes |= {match[1]} if match else set()
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A" and words[9] in inodes:
            found.append(".".join(str(byte) for byte in bytes.fromhex(words[1][:8])[::-1]))
    return found
