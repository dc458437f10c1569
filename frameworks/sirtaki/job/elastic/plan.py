"""What the command line says about an elastic job."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from sirtaki.job.elastic import discovery
from sirtaki.job.remote import addresses
from sirtaki.launch.command_line import elastic_options, host_list
from sirtaki.starters.request import Host


@dataclass
class Plan:
    """need, least, most: numbers of processes, as in Membership. timeout: seconds to wait for enough of them.
    cooldown: the shortest and the longest rest of a slot after a failure, in seconds. hosts: at the start. script: that
    prints the hosts from then on, "" if they stay. slots: of a host that it prints without a number.
    """

    need: int
    least: int
    most: int | None
    timeout: float
    reset_limit: int | None
    cooldown: tuple[float, float]
    hosts: list[Host]
    script: str
    slots: int

    def may_grow(self) -> bool:
        """Whether hosts may follow that are not known yet."""
        return bool(self.script)

    def hosts_to_reach(self) -> list[Host]:
        """Empty if the job stays on this host."""
        if not self.may_grow() and all(addresses.is_own(host.name) for host in self.hosts):
            return []
        return self.hosts or [Host(addresses.own_name(), 1)]


def of(chosen: Namespace, ranks: int) -> Plan | None:
    """None if the job is not elastic. ValueError if the hosts are wrong, or the script for them fails."""
    if not elastic_options.is_elastic(chosen):
        return None
    slots = chosen.slots or 1
    return Plan(
        need=ranks,
        least=chosen.min_num_proc or ranks,
        most=chosen.max_num_proc,
        timeout=elastic_options.timeout(chosen),
        reset_limit=chosen.reset_limit,
        cooldown=elastic_options.cooldown(chosen),
        hosts=_hosts(chosen, ranks, slots),
        script=chosen.host_discovery_script or "",
        slots=slots,
    )


def _hosts(chosen: Namespace, ranks: int, slots: int) -> list[Host]:
    if chosen.host_discovery_script is not None:
        return discovery.run(chosen.host_discovery_script, slots)
    if chosen.hosts is not None:
        hosts = host_list.from_list(chosen.hosts)
    elif chosen.hostfile is not None:
        hosts = host_list.from_file(chosen.hostfile)
    else:
        hosts = [Host("localhost", chosen.max_num_proc or ranks)]
    host_list.check_slots(hosts, ranks)
    return hosts
