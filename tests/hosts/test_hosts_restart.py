"""A job on three hosts that starts anew, and a signal to one of its ranks."""

from simulated import Hosts, report

TWO_LIVES = """
meet("second")
if os.environ["SIRTAKI_RESTART_COUNT"] == "0":
    if rank == 2: os.kill(os.getpid(), signal.SIGKILL)
    meet("third")
for step in range(1000):
    meet("step")
    time.sleep(0.01 * rank)
    if step == 5 and rank == 1: os.kill(os.getpid(), signal.SIGUSR1)
    if hvd.preempted():
        print("stopped after", step, flush=True)
        sys.exit(os.EX_TEMPFAIL)
"""


def test_a_job_starts_anew_and_stops_on_all_hosts(hosts: Hosts) -> None:
    program = hosts.program(TWO_LIVES)
    done = hosts.run("--restarts", "1", *hosts.flags("n1:1,n2:1,n3:1", 3), *program)
    assert done.returncode == 75, report(done)
    said = [line.split(maxsplit=1)[1] for line in done.stdout.decode().splitlines()]
    assert len(said) == 3 and len(set(said)) == 1 and said[0].startswith("stopped after "), report(done)
    notes = [line for line in done.stderr.decode().splitlines() if line.startswith("sirtakirun: ")]
    assert "sirtakirun: restart 1 of 1 in 1 s: rank 2 failed (killed by signal 9, SIGKILL (out of memory?))" in notes
    assert notes[-1] == "sirtakirun: the job has stopped after SIGUSR1, to be started again (exit code 75)"
