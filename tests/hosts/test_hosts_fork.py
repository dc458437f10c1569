"""Processes that ranks on three hosts start, and lives of a job that end while work is pending (C22)."""

from simulated import Hosts, report

LIVES = """
import multiprocessing, subprocess
def told(process): return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
for life in range(2):
    if life: hvd.init()
    meet("begin")
    if not (left := os.fork()): sys.exit(5)
    if not (raised := os.fork()): raise RuntimeError("in a child")
    if not (killed := os.fork()): os.kill(os.getpid(), 9)
    if not (asked := os.fork()):
        assert (hvd.rank(), hvd.size()) == (rank, 3)
        try: meet("child's")
        except Exception as error: assert "was forked from a rank" in str(error), error
        else: os._exit(1)
        os._exit(7)
    assert [told(child) for child in (left, raised, killed, asked)] == [5, 1, -9, 7]
    for method in ("fork", "spawn")[: 2 - life]:
        process = multiprocessing.get_context(method).Process(target=print, args=("from a child",))
        process.start()
        process.join()
        assert process.exitcode == (1 if method == "spawn" else 0)  # that one runs this file too, and is refused
    assert subprocess.run(["true"]).returncode == 0
    meet("children")
    core.submit(core.VERBS["barrier"], "pending", [])
    if life == 0: hvd.shutdown()
print("good", flush=True)
core.submit(core.VERBS["barrier"], f"of {rank} alone", [])
"""


def test_two_lives_with_children(hosts: Hosts) -> None:
    """Children that end in any way disturb nobody; a life ends while work is pending, on all ranks or on one."""
    done = hosts.run_program(LIVES)
    text = report(done)
    assert done.returncode == 0, text
    assert done.stdout.count(b"good") == 3 and done.stdout.count(b"from a child") == 6, text
    assert text.count("RuntimeError: in a child") == 6 and "failed first" not in text, text
    assert text.count("has started and which is no rank itself") == 3, text
