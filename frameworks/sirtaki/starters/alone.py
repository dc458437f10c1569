"""No starter: a program that was started by itself is a job of one rank."""

from __future__ import annotations

from sirtaki.starters.starter import Starter


class Alone(Starter):
    name = "none"
    size_variables = ("SIRTAKI_SIZE",)  # sirtakirun sets it beside what its starter sets
    identity = r"SIRTAKI_(LAUNCH_SPEC|SUPERVISOR$|SIZE$|STARTED_AS$|RANK_PROCESS$)"
