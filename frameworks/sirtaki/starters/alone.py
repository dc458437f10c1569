"""No starter: a program started directly is a job of one rank."""

from __future__ import annotations

from sirtaki.starters.starter import Starter


class Alone(Starter):
    name = "none"
    size_variables = ("SIRTAKI_SIZE",)  # set by sirtakirun in addition to its starter's variables
    identity = r"SIRTAKI_(LAUNCH_SPEC|SUPERVISOR$|SIZE$|STARTED_AS$|RANK_PROCESS$)"
