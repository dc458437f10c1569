"""send and receive between hosts: through the transport, where no ring in shared memory joins the ranks."""

from simulated import Hosts, last_line, report

TRANSFERS = """
from sirtaki.exchange import start_transfer
other = (rank + 1) % 2
if rank < 2:
    for size in (1, 16 << 10, (16 << 10) + 1, 3_000_000):
        into = bytearray(size)
        out = bytearray([rank + 1]) * size
        works = [start_transfer("receive", into, other, 5), start_transfer("send", out, other, 5)]
        for work in works:
            work.wait()
        assert into == bytearray([other + 1]) * size, size
    texts = {7: bytearray(b"first"), 8: bytearray(b"second")}
    later = [start_transfer("send", text, other, tag) for tag, text in texts.items()]
    second, first = bytearray(6), bytearray(5)
    start_transfer("receive", second, other, 8).wait()
    start_transfer("receive", first, other, 7).wait()
    for work in later:
        work.wait()
    assert (first, second) == (b"first", b"second"), (first, second)
"""
MISFIT = """
    try:
        start_transfer("send" if rank == 0 else "receive", bytearray(4 if rank == 0 else 8), other, 9).wait()
    except (core.InternalError, ValueError) as error:
        print("refused:", " ".join(str(error).split()), flush=True)
meet("end")
print("all arrived", flush=True)
"""
DEATH = """
from sirtaki.exchange import start_transfer
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    start_transfer("receive", bytearray(4), 1, 5).wait()
meet("end")
"""


def test_send_and_receive_between_hosts(hosts: Hosts) -> None:
    done = hosts.run_program(TRANSFERS + MISFIT)
    text = report(done)
    assert done.returncode == 0, text
    assert text.count("all arrived") == 3
    refused = [line.split("refused: ")[1] for line in text.splitlines() if "refused: " in line]
    assert len(refused) == 2 and refused[0] == refused[1], text
    assert "(4" in refused[0] and "(8" in refused[0], refused


def test_a_receive_from_a_rank_that_dies_on_another_host_ends(hosts: Hosts) -> None:
    done = hosts.run_program(DEATH)
    assert done.returncode not in (0, None), report(done)
    assert "rank 1" in last_line(done) and "SIGKILL" in last_line(done)
