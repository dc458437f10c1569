"""`sirtaki.run`: a function on several ranks."""

import json
import os
import socket
import sys

import pytest

import sirtaki
from sirtaki.launch import function_job


def ranks_and(one, other=0):
    """What a rank sees; must be importable nowhere but here, so that it has to travel."""
    import sirtaki

    sirtaki.init()
    seen = (sirtaki.rank(), sirtaki.size(), one + other, function_job.VARIABLE in os.environ)
    sirtaki.shutdown()
    return seen


@pytest.mark.parametrize("count", [2, 3])
def test_results_by_rank(count):
    found = sirtaki.run(ranks_and, ("a",), {"other": "b"}, num_proc=count)
    assert found == [(rank, count, "ab", False) for rank in range(count)]


def test_old_name_and_own_interpreter(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nOWN=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with pytest.warns(DeprecationWarning, match="np is deprecated; use num_proc"):
        found = sirtaki.run(lambda: os.environ["OWN"], np=2, executable=str(python), use_mpi=True)
    assert found == ["1", "1"]


def test_failure_has_rank_and_traceback():
    def fail():
        import sirtaki

        sirtaki.init()
        if sirtaki.rank() == 1:
            raise KeyError("nothing there")
        sirtaki.native.core.submit(sirtaki.native.core.VERBS["barrier"], "", []).wait()

    with pytest.raises(RuntimeError, match=r"failed on rank 1 of 2:\nTraceback(.|\n)*in fail(.|\n)*nothing there"):
        sirtaki.run(fail, num_proc=2)
    with pytest.raises(
        RuntimeError, match=r"exit code 7; no result came from ranks \[0, 1\]\n(.*\n)*rank . on host .* exit"
    ):
        sirtaki.run(lambda: os._exit(7), num_proc=2)
    with pytest.raises(RuntimeError, match="pickle"):
        sirtaki.run(lambda: sys._getframe(), num_proc=1)


WRONG = {
    "elastic": ({"min_num_proc": 2}, ValueError, "sirtakirun refuses"),
    "not elastic": ({"reset_limit": 2}, ValueError, "refuses these arguments: --reset-limit 2 is for elastic"),
    "gloo and MPI": ({"use_gloo": True, "use_mpi": True}, ValueError, "exclude each other"),
    "hosts twice": ({"hosts": "a:1", "hostfile": "b"}, ValueError, "hosts and hostfile exclude"),
    "hosts": ({"hosts": "a"}, ValueError, "'a' is not of the form"),
    "count": ({"num_proc": 0}, ValueError, "num_proc must be a positive integer, got 0"),
    "flag": ({"start_timeout": -1}, ValueError, "sirtakirun refuses"),
}


def test_an_elastic_job_returns_the_results_of_the_ranks_that_have_finished():
    def train():
        import os
        import signal

        import sirtaki as hvd
        from sirtaki import exchange

        hvd.init()
        if os.environ["HOROVOD_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            exchange.allgather_bytes(b"", "step")
        except hvd.SirtakiInternalError:
            hvd.shutdown()
            hvd.init()
        exchange.allgather_bytes(b"", "last")
        hvd.shutdown()
        return os.environ["HOROVOD_RANK"]

    # The slot of the lost process rests for longer than the job takes.
    assert sirtaki.run(train, num_proc=3, min_num_proc=2, cooldown_range=(60, 60)) == ["1", "2"]


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments(what):
    arguments, kind, text = WRONG[what]
    with pytest.raises(kind, match=text):
        sirtaki.run(len, ("ab",), **arguments)
    with pytest.raises(ValueError, match="func must be a function, got str 'f'"):
        sirtaki.run("f")


def test_ranks_of_other_hosts_prove_that_they_belong_to_the_job(monkeypatch):
    """By TCP. A stranger is neither served nor believed, and holds nobody up."""
    monkeypatch.setattr(function_job.addresses, "toward", lambda names: ["127.0.0.1"])
    with function_job._Exchange(1, len, ("abc",), {}, ["elsewhere.invalid"]) as exchange:
        found = json.loads(exchange.description())
        found["path"] = "/nowhere"
        with socket.create_connection(found["endpoints"][0]):  # says nothing
            monkeypatch.setenv(function_job.VARIABLE, json.dumps({**found, "token": "00" * 32}))
            with pytest.raises(OSError, match="cannot reach the launcher"):
                function_job.serve_rank(0)
            monkeypatch.setenv(function_job.VARIABLE, json.dumps(found))
            assert function_job.serve_rank(0) == 0
        assert exchange.results(0, "") == [3]
