"""What the README and CONTRIBUTING tell a newcomer to paste is there and does what they say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
README = (TOP / "README.md").read_text()
sys.path.insert(0, str(TOP / "examples"))

import synthetic_benchmark  # noqa: E402


def section(title: str) -> str:
    """The text under a second-level heading."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found, f"README.md has no section '{title}'"
    return found.group(1)


def only_command(title: str) -> str:
    blocks = re.findall(r"^```sh\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"'## {title}' must hold one fenced block, has {len(blocks)}"
    lines = blocks[0].splitlines()
    assert len(lines) == 1, f"the block of '## {title}' must be one line, is {len(lines)}"
    return lines[0]


@pytest.mark.parametrize(("title", "extras"), [("Run it", ".[torch]"), ("Test it", ".[torch,test]")])
def test_one_line_sets_up_a_new_environment(title: str, extras: str) -> None:
    steps = [shlex.split(step) for step in only_command(title).split(" && ")]
    assert steps[0] == ["python3", "-m", "venv", ".venv"]
    # So that the core is compiled once for the package and for its tests.
    kept = ["--config-settings=build-dir=build/wheel"] if title == "Test it" else []
    # Most modules are never imported, and compiling all takes minutes.
    quick = ["--no-compile"] if title == "Test it" else []
    assert steps[1] == [".venv/bin/pip", "install", "-q", *quick, "-c", "constraints.txt", *kept, extras]
    assert len(steps) == 3


def test_one_screen_comes_before_the_tables() -> None:
    before = README.partition("\n| ")[0].splitlines()
    assert len(before) <= 45 and "## Run it" in before


def test_run_line_starts_the_benchmark_with_flags_that_it_knows() -> None:
    words = shlex.split(only_command("Run it").split(" && ")[2])
    assert words[:5] == [".venv/bin/sirtakirun", "-np", "2", ".venv/bin/python", "examples/synthetic_benchmark.py"]
    arguments = synthetic_benchmark.parse(words[5:])
    assert arguments.framework == "torch" and arguments.model == "resnet50"


def test_ci_runs_the_test_line() -> None:
    shown = subprocess.run(["bash", str(TOP / ".ci/run"), "--show"], capture_output=True, text=True, check=True).stdout
    assert shown == only_command("Test it") + "\n"


def commands_of_dev() -> set[str]:
    command = [sys.executable, str(TOP / "dev"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(re.search(r"{([\w,]+)}", done.stdout).group(1).split(","))


def test_every_dev_command_named_in_the_documents_exists() -> None:
    named = set(re.findall(r"(?:\./|python )dev (\w+)", README + (TOP / "CONTRIBUTING.md").read_text()))
    assert {"build", "test", "format"} <= named <= commands_of_dev()


def test_settings_in_the_table_are_those_that_are_read() -> None:
    between_processes = ("FUNCTION", "LAUNCH_SPEC", "RANK_PROCESS", "RESTART_COUNT", "SIZE", "STARTED_AS", "SUPERVISOR")
    own_start = (
        "ELASTIC",
        "WORKER",
        *(f"WORKER_{name}" for name in ("ADDRESS", "JOB", "LOCAL_RANK", "LOCAL_SIZE", "RANK")),
    )
    internal = {f"SIRTAKI_{name}" for name in (*between_processes, *own_start)}
    placeholder = {"SIRTAKI_X"}
    sources = [path for room in ("bindings", "collectives", "frameworks") for path in (TOP / room).rglob("*")]
    text = "".join(path.read_text() for path in sources if path.suffix in {".h", ".cc", ".py"})
    named = set(re.findall(r"\bSIRTAKI_[A-Z_]*[A-Z]\b", text))
    # Those that the core reads by the rest of their names are named in settings.h.
    read = set(re.findall(r'(?:look_up|read\w*)\("([A-Z_]+)"', (TOP / "collectives/base/settings.cc").read_text()))
    assert {"SIRTAKI_" + name for name in read} <= named and internal | placeholder <= named
    table = set(re.findall(r"^\| `(SIRTAKI_\w+)` \|", section("Settings"), re.MULTILINE))
    assert table == named - internal - placeholder
