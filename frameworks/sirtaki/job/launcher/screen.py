"""Shows the output of many ranks on one screen: whole lines, each with its rank in front.

Progress bars of rank 0 stay alive: text after a carriage return is shown before its line is complete. If another line
must be shown in between, the bar's line ends, and the bar is drawn again at its next change.
"""

import os
import select
import time

from sirtaki.job.protocol.channel import ERR, OUT

_PIECE = 4096  # a pipe that poll() calls writable takes this much without blocking
_LONGEST_LINE = 1 << 23  # longer lines are cut, to limit memory
_LONGEST_BAR = 1 << 16

_Source = tuple[int, int]  # rank, OUT or ERR


class _Sink:
    """One output: stdout or stderr. `bar`: the source whose unfinished line is on it now."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.waiting = bytearray()
        self.bar: _Source | None = None
        self.error: OSError | None = None

    def write(self) -> None:
        """Writes as much as possible without blocking."""
        while self.waiting and select.select((), (self.descriptor,), (), 0)[1]:
            try:
                del self.waiting[: os.write(self.descriptor, self.waiting[:_PIECE])]
            except BlockingIOError:
                return
            except OSError as error:
                self.error = error
                self.waiting.clear()


class _Line:
    """The unfinished line of one source. `shown`: how much of it is already on the screen."""

    def __init__(self) -> None:
        self.text = bytearray()
        self.shown = 0


class Screen:
    """ranks: number of ranks; the output of a single rank passes unchanged. timestamps: the time in front of each line.

    Nothing here blocks: `waiting` returns the number of unwritten bytes, and `write` writes them.
    """

    def __init__(self, ranks: int, timestamps: bool = False, out: int = 1, err: int = 2) -> None:
        self._plain = ranks == 1 and not timestamps
        self._single = ranks == 1
        self._timestamps = timestamps
        first = _Sink(out)
        self._sinks = {OUT: first, ERR: first if _same_file(out, err) else _Sink(err)}
        self._lines: dict[_Source, _Line] = {}

    def feed(self, rank: int, kind: int, data: bytes) -> None:
        """Takes bytes that a rank wrote to its stdout (OUT) or stderr (ERR)."""
        if self._plain:
            self._sinks[kind].waiting += data
        else:
            self._feed_lines((rank, kind), data)
        self.write()

    def finish(self, rank: int) -> None:
        """The rank writes no more: shows its last lines, even without a newline."""
        for kind in (OUT, ERR):
            line = self._lines.pop((rank, kind), None)
            if line is not None and line.text:
                self._complete((rank, kind), line, bytes(line.text))

    def show_for_rank(self, rank: int, text: str) -> None:
        """Shows lines for a rank, which has left them to the launcher."""
        for line in text.splitlines():
            prefix = self._prefix((rank, ERR))
            self.note_raw(prefix + line.encode(errors="surrogateescape") + b"\n")

    def note(self, text: str) -> None:
        """Shows a line of the launcher itself, on stderr."""
        self.note_raw(f"sirtakirun: {text}\n".encode(errors="surrogateescape"))

    def note_raw(self, data: bytes) -> None:
        sink = self._sinks[ERR]
        self._close_bar(sink)
        sink.waiting += data
        self.write()

    def write(self) -> None:
        for sink in self.sinks():
            sink.write()

    def sinks(self) -> list[_Sink]:
        return list(dict.fromkeys(self._sinks.values()))

    def waiting(self) -> int:
        """Number of bytes that could not be written yet."""
        return sum(len(sink.waiting) for sink in self.sinks())

    def broken(self) -> OSError | None:
        """Why stdout can no longer be written; BrokenPipeError if its reader has closed it."""
        return self._sinks[OUT].error

    def _feed_lines(self, source: _Source, data: bytes) -> None:
        line = self._lines.setdefault(source, _Line())
        line.text += data
        end = line.text.rfind(b"\n") + 1
        if end:
            whole, rest = bytes(line.text[:end]), line.text[end:]
            for text in whole[:-1].split(b"\n"):
                self._complete(source, line, text)
                line.shown = 0
            line.text = rest
        if source[0] == 0 and b"\r" in line.text:
            self._show_bar(source, line)
        elif len(line.text) > _LONGEST_BAR and b"\r" in line.text[1:]:
            del line.text[: line.text.rfind(b"\r")]
        if len(line.text) > _LONGEST_LINE:
            self._complete(source, line, bytes(line.text))
            line.text.clear()
            line.shown = 0

    def _complete(self, source: _Source, line: _Line, text: bytes) -> None:
        sink = self._sinks[source[1]]
        if line.shown and sink.bar == source:
            text = text[line.shown :]
            sink.bar = None
            sink.waiting += self._decorate(source, text) + b"\n"
            return
        if line.shown:  # its bar was interrupted: shows its final state again
            text = text[max(0, text.rstrip(b"\r").rfind(b"\r")) :].lstrip(b"\r")
        self._close_bar(sink)
        sink.waiting += self._prefix(source) + self._decorate(source, text) + b"\n"

    def _show_bar(self, source: _Source, line: _Line) -> None:
        visible = line.text[:-1] if line.text.endswith(b"\r") else line.text  # may be the begin of "\r\n"
        sink = self._sinks[source[1]]
        if len(visible) <= line.shown:
            return
        if sink.bar == source:
            sink.waiting += self._decorate(source, bytes(visible[line.shown :]))
        else:
            self._close_bar(sink)
            text = bytes(visible[max(0, visible.rfind(b"\r")) :]).lstrip(b"\r") if line.shown else bytes(visible)
            sink.waiting += self._prefix(source) + self._decorate(source, text)
            sink.bar = source
        start = max(0, visible.rfind(b"\r"))
        line.shown = len(visible) - start
        del line.text[:start]

    def _close_bar(self, sink: _Sink) -> None:
        if sink.bar is not None:
            sink.waiting += b"\n"
            sink.bar = None

    def _prefix(self, source: _Source) -> bytes:
        rank = b"" if self._single else b"[%d] " % source[0]
        if not self._timestamps:
            return rank
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03d} "
        return stamp.encode() + rank

    def _decorate(self, source: _Source, text: bytes) -> bytes:
        """Repeats the prefix after a carriage return. A carriage return at the end belongs to the newline."""
        body = text[:-1] if text.endswith(b"\r") else text
        return body.replace(b"\r", b"\r" + self._prefix(source)) + text[len(body) :]


def _same_file(first: int, second: int) -> bool:
    try:
        return os.path.sameopenfile(first, second)
    except OSError:
        return False
