"""The files for containers and clusters can be parsed, and sirtakirun knows the options that they use."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sirtaki.launch.command_line import options

CLUSTER = Path(__file__).resolve().parents[2] / "examples/cluster"
INSTRUCTIONS = {"FROM", "RUN", "ENV", "COPY", "WORKDIR", "USER", "CMD"}


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def check_command(words: list[str], ranks: int) -> None:
    """A command line that begins with sirtakirun."""
    assert words[0] == "sirtakirun"
    parsed = options.parse(words[1:])
    assert options.ranks(parsed) == ranks and parsed.command[0] == "python"


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_dockerfiles(name: str) -> None:
    text = (CLUSTER / name).read_text()
    joined = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    lines = [line.split(maxsplit=1) for line in joined.splitlines() if line]
    assert {line[0] for line in lines} == INSTRUCTIONS and lines[0][0] == "FROM"
    for line in re.findall(r"docker run .*? (sirtakirun .*)", text):
        check_command(shlex.split(line), 2)
    for source in re.findall(r"^COPY (\S+)", text, re.MULTILINE):
        assert source.startswith("dist/") or (CLUSTER.parents[1] / source).exists()


@pytest.mark.parametrize("name", ["slurm.sbatch", "pbs.sh"])
def test_scripts_of_batch_systems(name: str) -> None:
    subprocess.run(["bash", "-n", CLUSTER / name], check=True)
    command = re.search(r"^exec (sirtakirun .*)", (CLUSTER / name).read_text(), re.MULTILINE).group(1)
    known = command.replace('"$SLURM_NTASKS"', "8").replace('"$(wc -l < "$PBS_NODEFILE")"', "8")
    check_command(shlex.split(known), 8)


def test_indexed_job(tmp_path: Path) -> None:
    found = {each["kind"]: each for each in objects("kubernetes-indexed-job.yaml")}
    assert list(found) == ["Service", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job"]
    assert {each["metadata"]["name"] for each in found.values()} == {"train"}
    job = found["Job"]["spec"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] == 2
    script = job["template"]["spec"]["containers"][0]["args"][0]
    check_command(shlex.split(script.splitlines()[-1].removeprefix("exec ")), 2 * job["completions"])
    agent, kubectl = tmp_path / "agent", tmp_path / "kubectl"
    agent.write_text(found["ConfigMap"]["data"]["agent"])
    kubectl.write_text('#!/bin/sh\nif [ "$1" = get ]; then echo "pod/of-$6"; else echo "$@"; fi\n')
    kubectl.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", agent, "train-1.train", "echo", "x"], env=environ, capture_output=True, text=True)
    assert "job-completion-index=1 -- sh -c echo x" in done.stdout, done


def test_pods_that_are_ranks() -> None:
    """tests/parallel/test_sockets.py runs ranks with its variables."""
    service, job = objects("kubernetes-ranks.yaml")
    spec = job["spec"]
    variables = {entry["name"]: entry.get("value") for entry in spec["template"]["spec"]["containers"][0]["env"]}
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"]
    assert variables["WORLD_SIZE"] == str(spec["completions"])
    assert variables["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"


def test_mpi_operator() -> None:
    (job,) = objects("kubernetes-mpi-operator.yaml")
    replicas = job["spec"]["mpiReplicaSpecs"]
    container = replicas["Launcher"]["template"]["spec"]["containers"][0]
    ranks = job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"]
    check_command([*container["command"], *container["args"]], ranks)


def test_each_file_has_a_row_in_the_readme() -> None:
    table = (CLUSTER / "README.md").read_text()
    assert [file.name for file in CLUSTER.iterdir() if f"`{file.name}`" not in table and file.name != "README.md"] == []
