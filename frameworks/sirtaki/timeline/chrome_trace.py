"""Chrome's trace format, as Horovod writes it: a JSON array with one event in each line. Microseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sirtaki.timeline.shared_file import Event

HEADER = "sirtaki_timeline"  # the name of the first event, which describes the file


def parse(content: bytes) -> Any:
    """The events of a trace. Its format allows that the closing bracket is missing. ValueError for other content."""
    try:
        return json.loads(content)
    except ValueError:
        if not content.startswith(ChromeForm.head):
            raise
        return json.loads(content + ChromeForm.tail)


class ChromeForm:
    head = b"["
    tail = b"\n]\n"
    filler = b" "

    def encode(self, events: Sequence[Event], first: bool) -> list[bytes]:
        lines = [b",\n" + json.dumps(event, separators=(",", ":")).encode() for event in events]
        return [lines[0].removeprefix(b","), *lines[1:]] if first else lines

    def complete(self, content: bytes) -> int:
        """A line counts once the next one has begun."""
        end = max(0, content.rfind(b"\n"))
        return end - 1 if content[:end].endswith(b",") else end

    def newest(self, content: bytes, size: int) -> bytes:
        cut = content.find(b"\n", max(0, len(content) - size)) if size else -1
        old, new = (content[:cut], content[cut + 1 :]) if cut >= 0 else (content, b"")
        kept = [line for line in old.split(b"\n")[1:] if b'"ph":"M"' in line]
        if new:
            kept.append(new)
        return b"[\n" + b"\n".join(kept).rstrip(b",")

    def first(self, content: bytes) -> Event | None:
        try:
            found = json.loads(content.split(b"\n", 2)[1].rstrip(b","))
        except (ValueError, IndexError):
            return None
        return found if isinstance(found, dict) and found.get("name") == HEADER else None
