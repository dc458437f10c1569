"""A file that all hosts see, as the rendezvous: rank 0 writes there where it listens, and the others read it.

No address or port must be known before the job. All else is as with MASTER_ADDR and MASTER_PORT. Only this user can
read the file, which also has a secret.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import socket
import tempfile
import time

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.host import interfaces
from sirtaki.rendezvous import master
from sirtaki.rendezvous.table import SECRET_BYTES, Table

VARIABLE = "SIRTAKI_RENDEZVOUS_FILE"
_LOOK_AGAIN = 0.1  # seconds; a file cannot wake processes of other hosts
_CONNECTS = 3.0  # seconds for one address; the file may be that of an older job


def join(rank: int, size: int, path: str, secret: bytes, limit: float) -> Table:
    """As master.join()."""
    return _lead(size, path, secret, limit) if rank == 0 else _follow(rank, size, path, secret, limit)


def _lead(size: int, path: str, secret: bytes, limit: float) -> Table:
    server = master.listen_everywhere(0)
    found = [address for each in interfaces.addresses().values() for address in each]
    found.sort(key=lambda address: ipaddress.ip_address(address).is_loopback)  # other hosts take these for their own
    key = os.urandom(SECRET_BYTES)
    try:
        _write(path, {"addresses": found, "port": server.getsockname()[1], "secret": key.hex()})
        return master.lead(size, server, secret + key, limit)
    finally:
        server.close()
        with contextlib.suppress(OSError):
            os.unlink(path)


def _write(path: str, content: dict[str, object]) -> None:
    """All at once, in place of an older job's file."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        file, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with os.fdopen(file, "w") as stream:
            json.dump(content, stream)
        os.rename(temporary, path)
    except OSError as error:
        raise SirtakiInternalError(f"rank 0 cannot write {VARIABLE}={path!r}: {error.strerror}") from None


def _follow(rank: int, size: int, path: str, secret: bytes, limit: float) -> Table:
    end = time.monotonic() + limit
    problem = "there is no such file"
    while (left := end - time.monotonic()) > 0:
        places, key, problem = _read(path)
        for place in places:
            try:
                connection = socket.create_connection(place, timeout=min(_CONNECTS, left))
                return master.follow(rank, size, connection, place, secret + key, left)
            except (OSError, master.OtherProgramError) as error:
                problem = f"{place[0]} port {place[1]}, which the file names: {error}"
        time.sleep(_LOOK_AGAIN)
    raise SirtakiInternalError(
        f"rank 0 was not found by {VARIABLE}={path!r} within {limit:g} s (SIRTAKI_START_TIMEOUT): {problem}"
    )


def _read(path: str) -> tuple[list[tuple[str, int]], bytes, str]:
    """(where rank 0 may listen, the secret of the file, why there is nothing)."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        places = [(str(address), int(found["port"])) for address in found["addresses"]]
        return places, bytes.fromhex(found["secret"]), ""
    except OSError as error:
        return [], b"", str(error.strerror)
    except (ValueError, KeyError, TypeError):
        return [], b"", "the file is not one of rank 0"
