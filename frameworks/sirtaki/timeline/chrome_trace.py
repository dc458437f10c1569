"""Chrome's trace format, as Horovod writes it: a JSON array with one event in each line. Microseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sirtaki.timeline.shared_file import Event

HEADER = "sirtaki_timeline"  # the name of the first event, which describes the file


class ChromeForm:
    head = b"["
    tail = b"\n]\n"

    def encode(self, events: Sequence[Event], first: bool) -> bytes:
        lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        return ("\n" if first else ",\n").encode() + lines.encode()

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
