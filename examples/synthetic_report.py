"""What synthetic_benchmark.py says and writes: the header, the figures, and where each rank's time went."""

import argparse
import json
import math
import platform
import statistics
from typing import Any

from synthetic_world import World

NO_COMMUNICATION = "no communication"
NAMES = {"shm": "shared memory", "mpi": "MPI", "two-level": "shared memory within hosts, MPI between them"}
GPU_NAMES = {
    "nccl": "NCCL",
    "hierarchical": "NCCL within hosts, MPI between them",
    "gpu-mpi": "MPI on GPU memory",
    "gpu-host": "pinned memory of the host",
}


def data_plane(on_gpus: bool = False) -> str:
    """What has carried the most collectives so far: of host memory, or of tensors on GPUs."""
    from sirtaki.native import core

    uses = core.plane_uses()
    asked = [plane for plane in uses if (plane in GPU_NAMES) == on_gpus]
    plane = max(asked or uses, key=uses.get)
    return {**NAMES, **GPU_NAMES}.get(plane, plane)


def control() -> str:
    """What carries the messages by which ranks agree."""
    from sirtaki.native import core

    return NAMES.get(core.control(), core.control())


def communication(on_gpus: bool) -> dict[str, str]:
    """What carries control messages and data, and the MPI behind it: version, path, abi."""
    from sirtaki.libraries import mpi_library
    from sirtaki.native import core

    info = core.mpi_info(mpi_library.candidates())
    version = " ".join(info["version"].strip("\0 \n").splitlines()[0].split())
    return {"control": control(), "data_plane": data_plane(on_gpus), **info, "version": version}


def unit_of(model: str) -> str:
    """What a model takes: images or sequences."""
    return "seq" if model == "bert-large" else "img"


def mean_and_confidence(values: list[float]) -> dict[str, float]:
    """The mean and the half width of its band of 1.96 standard deviations, as Horovod's benchmarks give them."""
    return {"mean": statistics.fmean(values), "confidence": 1.96 * statistics.pstdev(values)}


def shares(iterations: list) -> dict[str, float | None]:
    """One rank's speed, and the shares of its time that it computed and waited, None if it could not tell."""
    seconds = sum(one.seconds for one in iterations)
    waited = sum(one.waited for one in iterations) / seconds
    known = not math.isnan(waited)
    speed = sum(one.images for one in iterations) / seconds
    return {"img_sec": speed, "compute_share": 1 - waited if known else None, "wait_share": waited if known else None}


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """Of neighbouring iterations, which a machine's slow drift does not touch."""
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def where_time_went(rank: dict[str, Any]) -> str:
    place = f"Rank {rank['rank']} on {rank['host']}: {rank['threads']} thread(s) on {len(rank['cores'])} core(s), "
    if rank["wait_share"] is None:
        return place + "waiting is not told apart from computing"
    return place + f"{rank['compute_share']:.1%} computing, {rank['wait_share']:.1%} waiting for other ranks"


class Report:
    """Collects the facts and figures under the names that --json writes, and prints them on rank 0."""

    def __init__(self, arguments: argparse.Namespace, benchmark, world: World) -> None:
        self.world, self.device, self.unit = world, benchmark.device, unit_of(arguments.model)
        self.captures = arguments.capture
        versions = {**benchmark.versions, "python": platform.python_version()}
        if benchmark.hvd:
            import sirtaki

            versions["sirtaki"] = sirtaki.__version__
        self.facts: dict[str, Any] = {
            "framework": arguments.framework,
            "model": arguments.model,
            "batch_size": arguments.batch_size,
            "image_size": arguments.image_size,
            "device": benchmark.device,
            "size": world.size,
            "hosts": dict(world.hosts),
            "communication": communication(benchmark.device == "GPU") if benchmark.hvd else None,
            "dtype": benchmark.dtype,
            "wire_dtype": benchmark.wire_dtype,
            "adasum": arguments.use_adasum,
            "versions": versions,
            "ranks": world.ranks,
        }

    def print_header(self) -> None:
        facts, say = self.facts, self.world.say
        hosts = ", ".join(f"{host} ({number})" for host, number in facts["hosts"].items())
        threads = "/".join(str(number) for number in sorted({rank["threads"] for rank in self.world.ranks}))
        if means := facts["communication"]:
            say(f"World: {facts['size']} rank(s), counted by an allreduce of ones, on {hosts}")
            say(f"Data plane: {means['data_plane']}; control: {means['control']}")
            say(f"MPI: {means['version']}, {means['path']}")
        else:
            say("Without Sirtaki: each process trains for itself; these are the figures of the first one")
        say("Versions: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
        say(f"Compute: {facts['dtype']}, {threads} thread(s) a rank; gradients travel as {facts['wire_dtype']}")
        say(*self.world.crowded())
        say(f"Model: {facts['model']}", f"Batch size: {facts['batch_size']}")
        say(f"Number of {self.device}s: {facts['size']}")

    def collect(self, run) -> None:
        """Gathers every rank's iterations; all ranks must call it."""
        per_rank = self.world.gather((run.with_sirtaki, run.without, run.exchanges))
        by_iteration = [[one.speed for one in ones] for ones in zip(*(own for own, _, _ in per_rank), strict=True)]
        totals = [sum(speeds) for speeds in by_iteration]
        self.facts["iterations_img_sec"] = by_iteration
        self.facts["img_sec_total"] = mean_and_confidence(totals)
        self.facts["img_sec_each"] = mean_and_confidence([total / self.world.size for total in totals])
        for rank, (own, _, _) in zip(self.world.ranks, per_rank, strict=True):
            rank.update(shares(own))
        if run.exchanges:
            self.facts["exchange_seconds"] = statistics.median(
                max(seconds) for seconds in zip(*(exchanges for _, _, exchanges in per_rank), strict=True)
            )
        if run.adapter_seconds is not None:
            self.facts["adapter_seconds_a_step"] = max(self.world.gather(run.adapter_seconds))
        if joules := [sum(one) for one in self.world.gather(run.joules) if one]:
            steps = len(run.with_sirtaki) * run.arguments.num_batches_per_iter
            self.facts["joules_a_step"] = sum(joules) / steps
        if run.by_peer:
            self.compare_ways(run)
        if run.without:
            self.compare(totals, [without for _, without, _ in per_rank], run.alone)

    def compare(self, totals: list[float], without: list[list], alone: list) -> None:
        apart = [sum(one.speed for one in ones) for ones in zip(*without, strict=True)]
        self.facts["without_sirtaki_img_sec_total"] = mean_and_confidence(apart)
        self.facts["ratio_to_without_sirtaki"] = median_ratio(totals, apart)
        if alone:
            speeds = [one.speed for one in alone]
            self.facts["one_process_img_sec"] = mean_and_confidence(speeds)
            self.facts["efficiency"] = statistics.median(
                total / (self.world.size * speed) for total, speed in zip(totals, speeds, strict=True)
            )

    def compare_ways(self, run) -> None:
        """All ranks must call it, as for collect(). Shares are medians of the ratios of one turn's iterations."""
        ways = {"Sirtaki, captured" if self.captures else "Sirtaki": run.with_sirtaki}
        ways["graph, no communication" if self.captures else NO_COMMUNICATION] = run.without
        per_rank = self.world.gather({**ways, **run.by_peer})
        totals = {
            name: [sum(one.speed for one in turn) for turn in zip(*(rank[name] for rank in per_rank), strict=True)]
            for name in per_rank[0]
        }
        own = next(iter(ways))
        self.facts["ways"] = {}
        for name, speeds in totals.items():
            hosts = [one.host / one.images * self.facts["batch_size"] for rank in per_rank for one in rank[name]]
            self.facts["ways"][name] = {
                "img_sec_total": mean_and_confidence(speeds),
                "share_of_no_communication": median_ratio(speeds, totals[NO_COMMUNICATION]),
                "sirtaki_to_it": median_ratio(totals[own], speeds),
                "host_seconds_a_step": statistics.median(hosts),
            }
            if (eager := totals.get("Sirtaki, eager")) is not None:
                self.facts["ways"][name]["sirtaki_eager_to_it"] = median_ratio(eager, speeds)

    def print_result(self) -> None:
        facts, say, device = self.facts, self.world.say, self.device
        each, total = facts["img_sec_each"], facts["img_sec_total"]
        say(f"{self.unit.capitalize()}/sec per {device}: {each['mean']:.1f} +-{each['confidence']:.1f}")
        say(f"Total {self.unit}/sec on {facts['size']} {device}(s): {total['mean']:.1f} +-{total['confidence']:.1f}")
        say(*map(where_time_went, facts["ranks"]))
        if "exchange_seconds" in facts:
            say(f"The gradients of one step, exchanged alone: {facts['exchange_seconds'] * 1e3:.1f} ms")
        if "adapter_seconds_a_step" in facts:
            say(f"Host time of the adapter per step: {facts['adapter_seconds_a_step'] * 1e3:.2f} ms")
        if "joules_a_step" in facts:
            say(f"Energy of a step on all hosts: {facts['joules_a_step']:.3g} J")
        if "ways" in facts:
            say(*self.table())
        if "ratio_to_without_sirtaki" in facts:
            say(f"With Sirtaki to without, in the same run: {facts['ratio_to_without_sirtaki']:.3f}")
        if "efficiency" in facts:
            one = facts["one_process_img_sec"]["mean"]
            say(f"Efficiency against one process ({one:.1f} {self.unit}/sec): {facts['efficiency']:.3f}")

    def table(self) -> list[str]:
        """Every way that took its turn in this run, a line each."""
        eager = any("sirtaki_eager_to_it" in way for way in self.facts["ways"].values())
        titles = ["captured / it", "eager / it"] if eager else ["Sirtaki / it"]
        head = f"{self.unit}/sec, total  of {NO_COMMUNICATION}  {'  '.join(titles)}  host's time a step"
        lines = [f"{'In one run, by turns':26}{head}"]
        for name, way in self.facts["ways"].items():
            ratios = [way["sirtaki_to_it"], *([way["sirtaki_eager_to_it"]] if eager else [])]
            shown = "  ".join(f"{ratio:{len(title)}.3f}" for ratio, title in zip(ratios, titles, strict=True))
            lines.append(
                f"{name:26}{way['img_sec_total']['mean']:14.1f}  {way['share_of_no_communication']:19.3f}  {shown}"
                f"  {way['host_seconds_a_step'] * 1e3:16.2f} ms"
            )
        return lines

    def to_json(self) -> str:
        return json.dumps(self.facts, indent=2) + "\n"
