"""Ranks on other hosts: stand-ins for ssh, with an empty environment, and for srun start them here."""

import json
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest
from launching import MPIS, program, run, running

from sirtaki.starters import slurm_hosts

SSH = """#!{python} -S
import os, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(repr(words) + "\\n")
while words[0].startswith("-"):
    del words[: 2 if words[0] in ("-p", "-i", "-o", "-l") else 1]
environ = {{"PATH": os.environ["PATH"], "HOME": "/", "TEST_HOST": words[0], {mark}}}
os.execve("/bin/sh", ["/bin/sh", "-c", " ".join(words[1:])], environ)
"""
# Runs `srun -n N [options] program ...`, as Slurm would on a node.
SRUN = """#!{python} -S
import os, subprocess, sys
if sys.argv[1] == "--mpi=list":
    print("MPI plugin types are...\\n\\tnone\\n\\tpmi2"); sys.exit()
with open({log!r}, "w") as log:
    log.write(repr(sys.argv[1:]))
words = sys.argv[1:]
ranks = int(words[1])
while words[0] != {python!r}:
    del words[0]
extra = {{"SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}}
extra |= {{"SLURM_NTASKS": str(ranks), "SLURM_STEP_TASKS_PER_NODE": str(ranks)}}
tasks = [subprocess.Popen(words, env={{**os.environ, **extra, "SLURM_PROCID": str(r)}}) for r in range(ranks)]
sys.exit(max(task.wait() for task in tasks))
"""


def script(path: Path, text: str, **values: str) -> str:
    path.write_text(text.format(python=sys.executable, **values))
    path.chmod(0o755)
    return str(path)


def remote(mpi: str, tmp_path: Path) -> list[str]:
    """Flags that run ranks 0 and 1 on host n1 and rank 2 on n2."""
    mark = "'SIRTAKI_TEST_JOB': os.environ.get('SIRTAKI_TEST_JOB', '')"
    ssh = script(tmp_path / "fake-ssh", SSH, log=str(tmp_path / "log"), mark=mark)
    # Open MPI would look the names up; its two daemons on one host share a session directory.
    arguments = (
        f"--mca plm_rsh_agent {ssh} --mca orte_keep_fqdn_hostnames 1" if mpi else f"-launcher ssh -launcher-exec {ssh}"
    )
    # On the loopback network, so that nobody is asked for the addresses of these hosts.
    return ["-np", "3", "-H", "n1:2,n2:1", "--network-interfaces", "lo", "--mpi-args", arguments]


def test_arguments_and_environment_arrive_byte_equal(tmp_path: Path) -> None:
    code = """
import json
environ = {n.decode("latin-1"): v.decode("latin-1") for n, v in os.environb.items()}
with open(sys.argv[1] + "/" + str(rank), "w") as file:
    json.dump([[os.fsencode(word).decode("latin-1") for word in sys.argv[2:]], environ, os.getcwd()], file)
"""
    words = ["a b", "$HOME", "it's", "*", "", "two\nlines", "ünïcödé ☃", '"', os.fsdecode(b"\xff\xfe")]
    extra = {f"T_{number}": word for number, word in enumerate(words)} | {"T_LARGE": os.urandom(90_000).hex()[:120_000]}
    done = run(*remote("", tmp_path), *program(code, str(tmp_path), *words), **extra)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        arrived, environ, cwd = json.loads((tmp_path / str(rank)).read_text())
        assert [word.encode("latin-1") for word in arrived] == [os.fsencode(word) for word in words]
        environ = {n.encode("latin-1"): v.encode("latin-1") for n, v in environ.items()}
        assert {os.fsencode(n): os.fsencode(v) for n, v in extra.items()}.items() <= environ.items()
        assert not any(name.startswith(b"SIRTAKI_LAUNCH") for name in environ)
        assert environ[b"HOME"] == os.environb[b"HOME"] and b"TEST_HOST" not in environ
        assert cwd == os.getcwd()


@pytest.mark.parametrize("mpi", MPIS)
def test_output_and_exit_code_of_a_remote_rank(mpi: str, tmp_path: Path) -> None:
    code = "for i in range(100): print(rank, i, str(rank) * 3000)\nif rank == 2: time.sleep(1); sys.exit(6)\n"
    code += "time.sleep(60)"
    done = run(*remote(mpi, tmp_path), *program(code), mpi=mpi)
    assert done.returncode == 6, done.stderr
    lines = [f"[{r}] {r} {i} {str(r) * 3000}" for r in range(3) for i in range(100)]
    assert sorted(done.stdout.decode().splitlines()) == sorted(lines)
    assert done.stderr.decode().splitlines()[-1].startswith("sirtakirun: rank 2 on host ")


def test_hosts_port_and_key_reach_ssh(tmp_path: Path) -> None:
    done = run(*remote("", tmp_path), "-p", "2222", "-i", "/the/key", *program("print(rank)"))
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "log").read_text()
    assert log.count("'-p', '2222', '-i', '/the/key'") == 2
    assert "'n1'" in log and "'n2'" in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_on_any_host(number: signal.Signals, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    code = (
        "import signal, subprocess\nsignal.signal(2, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '300'])\n"
        "open(sys.argv[1] + '/' + str(rank), 'w').close()\ntime.sleep(300)"
    )
    with running(tmp_path, *remote("", tmp_path), *program(code, str(here))) as job:
        job.wait_for(here, 3)
        job.process.send_signal(number)
        job.process.wait(20)
        job.assert_nothing_left()


def test_hosts_that_are_this_one_need_no_ssh(tmp_path: Path) -> None:
    flags = remote("", tmp_path)
    flags[flags.index("-H") + 1] = f"localhost:2,{socket.gethostname()}:1"
    done = run(*flags[:4], *program("print(rank)"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "log").exists()


def test_ssh_that_fails_is_quoted(tmp_path: Path) -> None:
    ssh = script(tmp_path / "fake-ssh", "#!/bin/sh\necho 'n1: name does not resolve' >&2; exit 255\n")
    arguments = f"-launcher ssh -launcher-exec {ssh}"
    flags = ["-np", "2", "-H", "n1:2", "--network-interfaces", "lo", "--start-timeout", "5", "--mpi-args", arguments]
    done = run(*flags, *program("print(rank)"))
    assert done.returncode != 0
    assert b"n1: name does not resolve" in done.stderr


@pytest.mark.parametrize("allocation", [True, False])
def test_srun_inside_an_allocation_or_when_asked_for(allocation: bool, tmp_path: Path) -> None:
    script(tmp_path / "srun", SRUN, log=str(tmp_path / "log"))
    extra = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({"SLURM_JOB_ID": "7"} if allocation else {})
    flags = [] if allocation else ["--launcher", "srun"]
    code = "print(os.environ['SLURM_PROCID'], os.environ['SLURM_NTASKS'], sys.argv[1:])"
    done = run("-np", "2", *flags, *program(code, "a b", ""), **extra)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.decode().splitlines()) == ["[0] 0 2 ['a b', '']", "[1] 1 2 ['a b', '']"]
    log = (tmp_path / "log").read_text()
    assert "'--mpi=pmi2'" in log and "'--cpu-bind=none'" in log


def test_srun_is_left_alone_when_mpiexec_is_asked_for(tmp_path: Path) -> None:
    script(tmp_path / "srun", SRUN, log=str(tmp_path / "log"))
    extra = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "5", "SLURM_PROCID": "0"}
    done = run("-np", "2", "--launcher", "mpiexec", *program("print(rank)"), **extra)
    assert sorted(done.stdout.splitlines()) == [b"[0] 0", b"[1] 1"]
    assert not (tmp_path / "log").exists()


def test_hosts_of_an_allocation() -> None:
    assert slurm_hosts.expanded("n[1-3,07],m,a[09-10]-ib") == ["n1", "n2", "n3", "n07", "m", "a09-ib", "a10-ib"]
    assert slurm_hosts.hosts({"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    assert slurm_hosts.hosts({}) == [] and slurm_hosts.hosts({"SLURM_JOB_NODELIST": "n[1-"}) == []
    for text in ("n[1-", "n[x]", "n[1-9999999999]", ",", "n[]"):
        with pytest.raises(ValueError):
            slurm_hosts.expanded(text)


def test_srun_listens_for_the_allocation_only(tmp_path: Path) -> None:
    """All of it is this host."""
    script(tmp_path / "srun", SRUN, log=str(tmp_path / "log"))
    extra = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": socket.gethostname(),
    }
    done = run("-np", "2", "--dry-run", "true", **extra)
    assert done.returncode == 0, done.stderr
    assert b"other hosts connect to: 127.0.0.1 port " in done.stdout
    assert b"hosts: as Slurm places the ranks" in done.stdout
    assert b"starter: " + os.fsencode(tmp_path / "srun") in done.stdout and not (tmp_path / "log").exists()


def test_srun_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(shutil.which("python3") or sys.executable)
    done = run("-np", "2", "--launcher", "srun", "true", PATH=str(tmp_path))
    assert done.returncode == 2 and b"there is no srun in PATH" in done.stderr
