"""What the launcher of an elastic job has announced: hosts were added or removed, so that the ranks should change."""

from __future__ import annotations

import json

from sirtaki.native import core


def take() -> tuple[float, int] | None:
    """The newest announcement, if it was not taken yet: (seconds since 1970 on the launcher's host, result).

    result: 1 if hosts were removed, 2 if they were added, 3 for both. Costs no exchange, and only one comparison as
    long as there is none. Other ranks may receive an announcement a little earlier or later.
    """
    notice = core.take_notice()
    if notice is None:
        return None
    message = json.loads(notice)
    return float(message["timestamp"]), int(message["result"])
