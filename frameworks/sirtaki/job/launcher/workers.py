"""The launcher's connections to the workers of its job: which have arrived, and messages from and to them."""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from sirtaki.job.protocol import channel

_READ_BYTES = 1 << 16
_PEER = struct.Struct("3i")  # process, user and group at the other end of a Unix socket
_LONGEST_TEXT = 4096  # characters of a cause: a socket takes so many at once
_MOST_STRANGERS = 64  # unproven connections beyond the job's own; beyond this number the oldest is closed


class Worker:
    """One connection. rank: -1 until the worker has sent it, and for agents and remote shells of other hosts. reported:
    it has sent how its program ended. lost: the error that ended the connection. leaves: an agent or remote shell that
    has finished.
    """

    def __init__(self, connection: socket.socket, nonce: bytes | None) -> None:
        self.connection = connection
        self.frames = channel.Frames()
        self.nonce = nonce  # until the worker has answered it
        self.answer = b""
        self.rank = -1
        self.host = ""
        self.reported = False
        self.lost = ""
        self.leaves = True
        self.unsent = bytearray()


class Workers:
    """All connections of a job, in the selector of the job's loop.

    listeners: sockets that workers connect to; workers that connect by TCP must have the token. The callbacks:
    on_output(rank, OUT or ERR, bytes), on_arrival(worker), on_exit(worker, message), on_loss(worker), on_host(message),
    on_joined(worker, limit), on_over(worker, well), on_cause(worker, message), on_status(worker, text),
    on_times(worker, report), on_numbers(worker, text), on_unhandled(worker, signal),
    on_warned(worker, signal), on_table(worker, request). on_host returns whether to keep the
    connection. lost_after: seconds of silence until a connection counts as lost.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listeners: Sequence[socket.socket],
        token: bytes,
        *,
        on_output: Callable[[int, int, bytes], None],
        on_arrival: Callable[[Worker], None],
        on_exit: Callable[[Worker, dict[str, Any]], None],
        on_loss: Callable[[Worker], None],
        on_joined: Callable[[Worker, float], None] = lambda worker, limit: None,
        on_over: Callable[[Worker, bool], None] = lambda worker, well: None,
        on_cause: Callable[[Worker, dict[str, Any]], None] = lambda worker, message: None,
        on_status: Callable[[Worker, str], None] = lambda worker, text: None,
        on_times: Callable[[Worker, dict[str, Any]], None] = lambda worker, report: None,
        on_numbers: Callable[[Worker, str], None] = lambda worker, text: None,
        on_unhandled: Callable[[Worker, int], None] = lambda worker, number: None,
        on_warned: Callable[[Worker, int], None] = lambda worker, number: None,
        on_table: Callable[[Worker, dict[str, Any]], None] = lambda worker, message: None,
        on_host: Callable[[dict[str, Any]], bool] = lambda message: False,
        ranks: int = 1,
        lost_after: float = 0,
    ) -> None:
        self.arrived: set[int] = set()  # ranks, including those that have left
        self._hosts: dict[int, str] = {}  # of these
        self._selector = selector
        self._token = token
        self.ranks = ranks
        self._on_output = on_output
        self._on_arrival = on_arrival
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._on_host = on_host
        self._lost_after = lost_after
        self._on_joined = on_joined
        self._on_over = on_over
        self._on_cause = on_cause
        self._on_status = on_status
        self._on_times = on_times
        self._on_numbers = on_numbers
        self._on_unhandled = on_unhandled
        self._on_warned = on_warned
        self._on_table = on_table
        self._connected: dict[socket.socket, Worker] = {}
        for listener in listeners:
            listener.setblocking(False)
            selector.register(listener, selectors.EVENT_READ, self._accept)

    def __bool__(self) -> bool:
        """Whether any worker is connected. Connections that have not proven the token do not count."""
        return any(worker.nonce is None for worker in self._connected.values())

    def send(self, worker: Worker, kind: int, message: dict[str, Any]) -> None:
        self._send(worker, channel.frame(kind, json.dumps(message).encode()))

    def _send(self, worker: Worker, frame: bytes) -> None:
        """What a socket does not take at once, such as a table of many ranks, is sent later."""
        worker.unsent += frame
        self._flush(worker)

    def _flush(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            while worker.unsent:
                del worker.unsent[: worker.connection.send(worker.unsent)]
        if worker.connection in self._selector.get_map():
            self._selector.modify(worker.connection, _events(worker), self._receive)

    def end_program(self, worker: Worker, number: int) -> None:
        """Asks the worker to end its program with this signal."""
        self._send(worker, channel.frame(channel.END, bytes([number])))

    def end_all(self, number: int) -> None:
        for worker in self._connected.values():
            self.end_program(worker, number)

    def send_cause(self, cause: dict[str, Any]) -> None:
        """Sends the failure cause to all ranks."""
        message = channel.frame(channel.FAIL, json.dumps({**cause, "text": cause["text"][:_LONGEST_TEXT]}).encode())
        for worker in self._of_ranks():
            self._send(worker, message)

    def ask_all(self, kind: int = channel.ASK) -> set[int]:
        """Asks all ranks for their status, or their NUMBERS. Returns the ranks that were asked."""
        asked = set()
        for worker in self._of_ranks():
            self._send(worker, channel.frame(kind))
            asked.add(worker.rank)
        return asked

    def pass_on(self, number: int) -> bool:
        """Passes a signal on to programs that handle it; the others answer. False if no program runs yet."""
        workers = self._of_ranks()
        for worker in workers:
            self._send(worker, channel.frame(channel.SIGNAL, bytes([number])))
        return bool(workers)

    def ask_late(self, ranks: set[int], text: str) -> None:
        """Asks these ranks to answer, by a cause that begins with the text, if their process is seen to be stopped."""
        for worker in self._of_ranks():
            if worker.rank in ranks:
                self._send(worker, channel.frame(channel.LATE, text.encode()))

    def give_up(self, worker: Worker, why: str) -> None:
        """Counts a worker that does not answer as lost. On this host its supervisor is killed, and what it has started
        ends with it.
        """
        if worker.connection.family == socket.AF_UNIX:
            peer = worker.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            with contextlib.suppress(OSError):
                os.kill(_PEER.unpack(peer)[0], signal.SIGKILL)
        worker.lost = why
        self._lose(worker)

    def find(self, rank: int) -> Worker | None:
        return next((worker for worker in self._of_ranks() if worker.rank == rank), None)

    def host_of(self, rank: int) -> str:
        """The rank's host, as its worker has sent it; "?" if unknown."""
        return self._hosts.get(rank, "?")

    def _of_ranks(self) -> list[Worker]:
        return [worker for worker in self._connected.values() if worker.rank >= 0]

    def all_ended(self) -> bool:
        """Whether the programs of all connected workers have ended."""
        return all(worker.reported for worker in self._of_ranks())

    def receive_messages(self, wanted: bool) -> None:
        """Whether to read messages of the workers. While they are not read, the programs wait."""
        for connection, worker in self._connected.items():
            registered = connection in self._selector.get_map()
            if wanted and not registered:
                self._selector.register(connection, _events(worker), self._receive)
            elif registered and not wanted:
                self._selector.unregister(connection)

    def _accept(self, listener: socket.socket, events: int) -> None:
        """Accepts all waiting connections; even a worker that has ended meanwhile has sent its program's output."""
        with contextlib.suppress(OSError):
            while True:
                self._add(listener.accept()[0], listener.family)

    def _add(self, connection: socket.socket, family: int) -> None:
        nonce = None
        try:
            connection.setblocking(False)
            if family != socket.AF_UNIX:
                nonce = secrets.token_bytes(channel.NONCE_BYTES)
                connection.send(nonce)
                channel.notice_loss(connection, self._lost_after)
        except OSError:
            connection.close()
            return
        self._limit_strangers()
        self._connected[connection] = Worker(connection, nonce)
        self._selector.register(connection, selectors.EVENT_READ, self._receive)

    def _limit_strangers(self) -> None:
        strangers = [worker for worker in self._connected.values() if worker.nonce is not None]
        if len(strangers) > 2 * self.ranks + _MOST_STRANGERS:  # a rank and, at most, a host each
            self._lose(strangers[0])

    def _receive(self, connection: socket.socket, events: int) -> None:
        worker = self._connected.get(connection)
        if worker is None:  # lost after this event was reported
            return
        if events & selectors.EVENT_WRITE:
            self._flush(worker)
        if not events & selectors.EVENT_READ:
            return
        try:
            data = connection.recv(_READ_BYTES)
            alive = bool(data)
        except BlockingIOError:
            return
        except OSError as error:
            alive, data, worker.lost = False, b"", error.strerror or str(error)
        try:
            for kind, payload in worker.frames.feed(self._proven(worker, data)):
                self._on_frame(worker, kind, payload)
        except (ValueError, KeyError, TypeError, OSError):  # not part of the job, or another protocol
            alive = False
        if not alive:
            self._lose(worker)

    def _proven(self, worker: Worker, data: bytes) -> bytes:
        """The data after the worker's proof of the token. ValueError for a wrong proof."""
        if worker.nonce is None:
            return data
        worker.answer += data
        if len(worker.answer) < channel.ANSWER_BYTES:
            return b""
        answer, rest = worker.answer[: channel.ANSWER_BYTES], worker.answer[channel.ANSWER_BYTES :]
        worker.connection.send(channel.proof_for(self._token, worker.nonce, answer))
        worker.nonce, worker.answer = None, b""
        return rest

    def _on_frame(self, worker: Worker, kind: int, payload: bytes) -> None:
        if kind in (channel.OUT, channel.ERR):
            self._on_output(worker.rank, kind, payload)
        elif kind == channel.HELLO:
            message = json.loads(payload)
            worker.rank, worker.host = message["rank"], message["host"]
            self.arrived.add(worker.rank)
            self._hosts[worker.rank] = worker.host
            self._on_arrival(worker)
        elif kind == channel.JOINED:
            self._on_joined(worker, float(json.loads(payload)["limit"]))
        elif kind == channel.OVER:
            self._on_over(worker, bool(json.loads(payload)["well"]))
        elif kind == channel.TABLE:
            self._on_table(worker, json.loads(payload))
        elif kind == channel.STATUS:
            self._on_status(worker, payload.decode(errors="replace"))
        elif kind == channel.TIMES:
            self._on_times(worker, json.loads(payload))
        elif kind == channel.NUMBERS:
            self._on_numbers(worker, payload.decode(errors="replace"))
        elif kind == channel.UNHANDLED:
            self._on_unhandled(worker, payload[0])
        elif kind == channel.WARNED:
            self._on_warned(worker, payload[0])
        elif kind == channel.CAUSE:
            self._on_cause(worker, json.loads(payload))
        elif kind == channel.EXIT:
            worker.reported = True
            self._on_exit(worker, json.loads(payload))
        elif kind == channel.HOST:
            message = json.loads(payload)
            worker.reported = True  # it has no rank
            if not self._on_host(message):
                raise ValueError("not wanted any more")
            worker.host, worker.leaves = message["host"], "arrived" not in message

    def _lose(self, worker: Worker) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._connected[worker.connection]
        if worker.rank >= 0:
            self._on_loss(worker)
        elif not worker.leaves:
            self._on_host({"host": worker.host, "lost": worker.lost or "what watches its ranks there is gone"})


def _events(worker: Worker) -> int:
    return selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
