"""The launcher's socket for other hosts: who is let in, and what a stranger can do there."""

import contextlib
import json
import os
import selectors
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import launching  # noqa: F401  # makes the sources importable where they are not installed
import pytest

from sirtaki.job.launcher.workers import Workers
from sirtaki.job.protocol import channel, spec
from sirtaki.job.remote import addresses, agent, remote_hosts

TOKEN = b"t" * 32
HELLO = channel.frame(channel.HELLO, b'{"rank": 0, "host": "x"}')


class Launcher:
    """The launcher's end, with what it has heard."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.selector = selectors.PollSelector()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = ("127.0.0.1", self.listener.getsockname()[1])
        self.workers = Workers(
            self.selector,
            [self.listener],
            TOKEN,
            on_output=lambda *piece: self.heard.append(piece),
            on_arrival=self.heard.append,
            on_exit=lambda *message: self.heard.append(message),
            on_loss=self.heard.append,
            on_host=self._on_host,
            lost_after=30,
        )

    def _on_host(self, message: dict[str, object]) -> bool:
        self.heard.append(message)
        return True

    def turn(self, seconds: float = 5) -> None:
        for key, events in self.selector.select(seconds):
            key.data(key.fileobj, events)

    def connect(self) -> socket.socket:
        stranger = socket.create_connection(self.endpoint, timeout=5)
        self.turn()
        return stranger


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    made = Launcher()
    yield made
    made.listener.close()
    made.selector.close()


def test_stranger_without_the_token_is_dropped(launcher: Launcher) -> None:
    with launcher.connect() as stranger:
        nonce = stranger.recv(channel.NONCE_BYTES)
        stranger.sendall(channel.answer(b"wrong", nonce)[0] + HELLO)
        launcher.turn()
        assert stranger.recv(1) == b"" and not launcher.workers and launcher.heard == []


def test_answer_of_another_connection_is_refused(launcher: Launcher) -> None:
    with launcher.connect() as first, launcher.connect() as second:
        answer, _ = channel.answer(TOKEN, first.recv(channel.NONCE_BYTES))
        second.recv(channel.NONCE_BYTES)
        second.sendall(answer + HELLO)
        launcher.turn()
        assert second.recv(1) == b"" and launcher.heard == []


def test_worker_and_launcher_prove_themselves_to_each_other(launcher: Launcher) -> None:
    with launcher.connect() as member:
        answer, expected = channel.answer(TOKEN, member.recv(channel.NONCE_BYTES))
        member.sendall(answer + HELLO)
        launcher.turn()
        assert launcher.workers.arrived == {0} and len(launcher.heard) == 1
        assert member.recv(channel.PROOF_BYTES) == expected


def test_more_than_a_socket_takes_at_once_arrives_whole_and_in_order(launcher: Launcher) -> None:
    """The table of a very large job, and a request to end right after it; also while messages are not read."""
    with launcher.connect() as member:
        answer, _ = channel.answer(TOKEN, member.recv(channel.NONCE_BYTES))
        member.sendall(answer + HELLO)
        launcher.turn()
        member.recv(channel.PROOF_BYTES)
        worker = launcher.workers.find(0)
        assert worker is not None
        worker.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        table = {"addresses": [["198.51.100.77", number] for number in range(20_000)]}
        launcher.workers.send(worker, channel.TABLE, table)
        launcher.workers.receive_messages(False)
        launcher.workers.end_program(worker, 15)
        launcher.workers.receive_messages(True)
        assert worker.unsent
        frames = channel.Frames()
        received: list[tuple[int, bytes]] = []
        member.setblocking(False)
        while len(received) < 2:
            launcher.turn(0.1)
            with contextlib.suppress(BlockingIOError):
                received += frames.feed(member.recv(1 << 20))
        assert (received[0][0], json.loads(received[0][1])) == (channel.TABLE, table)
        assert received[1] == (channel.END, bytes([15])) and not worker.unsent


def test_strangers_neither_keep_the_job_alive_nor_pile_up(launcher: Launcher) -> None:
    strangers = [launcher.connect() for _ in range(90)]
    assert not launcher.workers
    closed = 0
    for stranger in strangers:
        stranger.recv(channel.NONCE_BYTES)
        stranger.settimeout(0.01)
        try:
            closed += stranger.recv(1) == b""
        except TimeoutError:
            continue
    assert closed >= 20
    with launcher.connect() as member:
        member.sendall(channel.answer(TOKEN, member.recv(channel.NONCE_BYTES))[0] + HELLO)
        launcher.turn()
        assert launcher.workers.arrived == {0}
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize(
    "garbage",
    [struct.pack(">BI", channel.OUT, 1 << 30), channel.frame(channel.HELLO, b"{}"), channel.frame(channel.HELLO, b"[")],
    ids=["length", "no rank", "no JSON"],
)
def test_worker_with_malformed_frames_is_dropped(garbage: bytes, launcher: Launcher) -> None:
    with launcher.connect() as member:
        member.sendall(channel.answer(TOKEN, member.recv(channel.NONCE_BYTES))[0] + garbage)
        launcher.turn()
        member.recv(channel.PROOF_BYTES)
        assert member.recv(1) == b"" and launcher.heard == []


def test_launcher_that_cannot_be_reached_is_named(launcher: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(OSError, match=rf"127.0.0.1 port {port}: .*refused.*--network-interfaces"):
        channel.connect_remote([("127.0.0.1", port)], TOKEN)


def test_wrong_program_in_place_of_the_launcher_is_detected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def pretend() -> None:
            connection, _ = server.accept()
            connection.sendall(b"n" * channel.NONCE_BYTES)
            connection.recv(channel.ANSWER_BYTES)
            connection.sendall(b"p" * channel.PROOF_BYTES)
            connection.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(OSError, match="not the launcher of this job"):
            channel.connect_remote([server.getsockname()], TOKEN)
        thread.join()


def test_connection_is_watched_by_the_kernel(launcher: Launcher) -> None:
    with socket.create_connection(launcher.endpoint) as connection:
        channel.notice_loss(connection, 8)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        step = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        count = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + step * count == 8
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 8000


def test_interfaces_and_loopback_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"--network-interfaces nope0: not on this host, which has .*lo"):
        addresses.toward([], ["nope0"])
    assert addresses.toward(["n1"], ["lo"]) == ["127.0.0.1"]
    assert addresses.toward([socket.gethostname(), "localhost"]) == ["127.0.0.1"]
    assert addresses.is_own("localhost") and addresses.is_own("127.0.0.1") and addresses.is_own(socket.gethostname())
    assert not addresses.is_own("198.51.100.77")
    with pytest.raises(ValueError, match=r"host localhost is the local host on every host; .* for example "):
        addresses.refuse_loopback("localhost", ["localhost", "198.51.100.77"])
    monkeypatch.setattr(addresses, "_resolved", lambda name: (socket.AF_INET, ("127.0.1.1", 0)))
    with pytest.raises(ValueError, match=r"host n1 is 127\.0\.1\.1 here, a loopback address.*/etc/hosts"):
        addresses.toward(["n1"])


def test_toward_unknown_hosts_the_default_route_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"lo": ["127.0.0.1"], "bridge0": ["172.17.0.1"], "eth0": ["10.0.0.5", "fd00::5"]}
    monkeypatch.setattr(addresses.interfaces, "addresses", lambda: present)
    monkeypatch.setattr(addresses, "_by_default_route", lambda: "10.0.0.5")
    assert addresses.toward([]) == ["10.0.0.5", "172.17.0.1"]


def test_order_to_an_agent_limits_its_length_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(descriptor: int, count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    monkeypatch.setattr(agent.os, "read", read)
    with pytest.raises(ValueError, match="stdin holds data that sirtakirun did not send"):
        agent._read_order()
    assert asked == [8]


def test_agent_stays_with_a_daemon_that_goes_into_the_background(launcher: Launcher, tmp_path: Path) -> None:
    """As Open MPI's does; and it ends with the agent's stdin."""
    job = spec.Spec(size=1, command=[], environ=dict(os.environb), cwd=b"/")
    job.token, job.endpoints, job.grace = TOKEN, [launcher.endpoint], 0.0
    here = shlex.quote(str(tmp_path / "late"))
    command = f"setsid sh -c 'sleep 2; echo > {here}; exec sleep 300' & exit 0"
    words = [sys.executable, "-IS", str(Path(agent.__file__).with_name("start_agent.py"))]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(agent.order("x", command, job.to_bytes()))
    process.stdin.flush()
    deadline = time.monotonic() + 20
    while not (tmp_path / "late").exists():
        launcher.turn(0.05)
        assert process.poll() is None and time.monotonic() < deadline
    process.stdin.close()
    process.wait(20)
    launcher.turn(0.05)
    assert {"host": "x", "arrived": True} in launcher.heard
    assert any("lost" in message for message in launcher.heard if isinstance(message, dict))


def test_settings_of_mpis_for_the_remote_start_are_taken_over() -> None:
    assert remote_hosts.agent_words("a 'b c'", {"SIRTAKI_LAUNCH_AGENT": "other"}) == ["a", "b c"]
    assert remote_hosts.agent_words(None, {"SIRTAKI_LAUNCH_AGENT": "own", "HYDRA_LAUNCHER_EXEC": "other"}) == ["own"]
    assert remote_hosts.agent_words(None, {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}) == ["/etc/mpi/kubexec.sh"]
    assert (
        remote_hosts.agent_words(None, {"OMPI_MCA_plm_rsh_agent": "ssh : rsh"})
        == remote_hosts.agent_words(None, {})
        == []
    )
    with pytest.raises(ValueError, match=r"SIRTAKI_LAUNCH_AGENT=\"'\": No closing quotation"):
        remote_hosts.agent_words(None, {"SIRTAKI_LAUNCH_AGENT": "'"})
    environ = {"HYDRA_LAUNCHER_EXTRA_ARGS": "-o X=y", "HYDRA_LAUNCHER": "rsh", "HYDRA_DEBUG": "1", "SECRET": "s"}
    shell = remote_hosts.Shell(arguments=remote_hosts.ssh_arguments(environ), port=5)
    assert shell.words("h")[-5:] == ["-p", "5", "-o", "X=y", "h"] and "BatchMode=yes" in shell.words("h")
    assert remote_hosts.environment_for_mpiexec(environ) == {"HYDRA_DEBUG": "1"}


def test_spec_survives_encoding() -> None:
    sent = spec.Spec(size=2, command=[b"a b", b"\xff"], environ={b"N": b"\n"}, cwd=b"/")
    sent.endpoints, sent.token = [("fd00::1", 5), ("10.0.0.1", 6)], bytes(range(32))
    received = spec.Spec.from_bytes(sent.to_bytes())
    assert vars(received) == {**vars(sent), "endpoints": [["fd00::1", 5], ["10.0.0.1", 6]]}


def test_stranger_that_is_closed_while_its_bytes_wait(launcher: Launcher) -> None:
    """The oldest stranger has to go for the newest, and one look finds both."""
    strangers = [launcher.connect() for _ in range(67)]
    strangers.append(socket.create_connection(launcher.endpoint, timeout=5))
    strangers[0].sendall(b"x")
    launcher.turn()
    assert not launcher.workers and strangers[0].recv(channel.NONCE_BYTES + 1)[channel.NONCE_BYTES :] == b""
    for stranger in strangers:
        stranger.close()
