"""The exceptions that programs may catch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sirtaki.native import AbsentCore, core

if TYPE_CHECKING:
    from sirtaki._core import InternalError as SirtakiInternalError
elif isinstance(core, AbsentCore):

    class SirtakiInternalError(RuntimeError):
        """Ranks disagree, or the job has failed."""

else:
    SirtakiInternalError = core.InternalError
    SirtakiInternalError.__doc__ = "Ranks disagree, or the job has failed. The text is the same on every rank."

HorovodInternalError = SirtakiInternalError


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818  Horovod's name
    """The set of hosts has changed; elastic training restarts with the new set.

    skip_sync: all ranks still have the same state, so it need not be sent again.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(f"the hosts of this job have changed (skip_sync={skip_sync})")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework's version differs from the one that a compiled part was built for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    return f"built for {name} {version}, but {name} {installed_version} is installed; install the package again"
