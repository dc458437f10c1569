"""What the launcher and ranks read from others, files and the environment may be anything: it is understood or refused.

SIRTAKI_FUZZ_SECONDS: for how long each is fed; a moment without.
"""

import json
import os
import random
import socket
import time
from pathlib import Path

import pytest

from sirtaki.job.protocol import channel
from sirtaki.launch.command_line import config_file, host_list
from sirtaki.rendezvous import master

_SECONDS = float(os.environ.get("SIRTAKI_FUZZ_SECONDS", "0.5"))

HOSTS = [
    b"node1 slots=4\nnode2:2 # two\n\n[::1]:2\nnode3\n",
    b"a slots = 2 max_slots=4\nb\nb\n10.0.0.1:1\n",
    b"name.of.host slots=1\r\n",
]
LISTS = ["h1:2,h2:1", "[::1]:2,localhost:3", "node-1:1,node_2:8", "a:1"]
CONFIGS = [
    b"params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 3.5\nstall_check:\n  enabled: true\n",
    b"controller: mpi\nlogging: {level: info, with_timestamp: false}\ntimeline:\n  filename: 'a b'\n",
    b"autotune: null\nlibrary_options:\n  thread_affinity: 3\n",
]
FRAMES = [
    channel.frame(channel.HELLO, json.dumps({"rank": 1, "host": "a", "pid": 5}).encode()),
    channel.frame(channel.OUT, b"text\n") + channel.frame(channel.ERR) + channel.frame(channel.EXIT, b'{"code": 0}'),
]
PIECES = [b":", b"=", b"\n", b"#", b"[", b"]", b"{", b"&a", b"*a", b"-1", b"99999"]


def damaged(seeds: list[bytes], chooser: random.Random) -> bytes:
    data = bytearray(chooser.choice(seeds))
    for _ in range(chooser.randint(1, 6)):
        place = chooser.randint(0, len(data))
        match chooser.randrange(5):
            case 0:
                data[place : place + 1] = bytes([chooser.randrange(256)])
            case 1:
                data[place:place] = chooser.choice(PIECES)
            case 2:
                del data[place : place + chooser.randint(1, 8)]
            case 3:
                other = chooser.choice(seeds)
                begin = chooser.randint(0, len(other))
                data[place:place] = other[begin : begin + chooser.randint(0, 20)]
            case _:
                del data[place:]
    return bytes(data)


def read_config(data: bytes, folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_bytes(data)
    config_file.read(str(path))


def read_frames(data: bytes, folder: Path) -> None:
    frames = channel.Frames()
    for begin in range(0, len(data), 7):
        list(frames.feed(data[begin : begin + 7]))


def of_rendezvous(message: dict[str, object]) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        master.Line(ours, b"key").send(message)
        return theirs.recv(1 << 16)


def read_rendezvous(data: bytes, folder: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        try:
            master.Line(ours, b"key").receive()
        except ConnectionResetError as error:  # the message was cut off
            raise ValueError(str(error)) from None


MESSAGES = [of_rendezvous({"rank": 1, "size": 2, "host": "::1", "port": 5}), of_rendezvous({})]
READERS = {
    "rendezvous": (MESSAGES, read_rendezvous),
    "host file": (HOSTS, lambda data, folder: host_list.from_text(data, "hosts")),
    "host list": ([text.encode() for text in LISTS], lambda data, folder: host_list.from_list(data.decode("latin-1"))),
    "config file": (CONFIGS, read_config),
    "frames": (FRAMES, read_frames),
}


@pytest.mark.parametrize("name", READERS)
def test_anything_is_understood_or_refused(name, tmp_path):
    seeds, read = READERS[name]
    understood = 0
    for seed in seeds:
        read(seed, tmp_path)
    chooser = random.Random(1)
    end = time.monotonic() + _SECONDS
    count = 0
    while time.monotonic() < end:
        count += 1
        data = damaged(seeds, chooser)
        try:
            read(data, tmp_path)
            understood += 1
        except ValueError as error:
            assert str(error), data
        except Exception as error:
            raise AssertionError(f"{name}: {data!r} ended in {error!r}") from error
    print(f"{name}: {count} inputs, {understood} understood")
    assert understood
