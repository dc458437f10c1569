"""The command line of sirtakirun: horovodrun's flags, what each does, what is refused and in which words."""

import argparse
from pathlib import Path

import pytest
from launching import run

from sirtaki import starters
from sirtaki.launch.command_line import elastic_options, host_list, options
from sirtaki.starters import srun
from sirtaki.starters.hydra import Hydra
from sirtaki.starters.openmpi import OpenMpi, OpenMpi5
from sirtaki.starters.request import Request


def parse(*words: str) -> argparse.Namespace:
    return options.parse([*words, "python", "train.py"])


def refusal(capsys: pytest.CaptureFixture[str], *words: str, program: bool = True) -> str:
    """The message that these words are refused with."""
    with pytest.raises(SystemExit) as caught:
        options.ranks(options.parse([*words, *(["python", "train.py"] if program else [])]))
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "two", "", "1e3"])
def test_number_of_ranks_must_be_a_positive_whole_number(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"-np/--num-proc: {value!r} is not a positive whole number" in refusal(capsys, "-np", value)


def test_number_of_ranks_or_program_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert "give -np N" in refusal(capsys)
    assert "give -np N" in refusal(capsys, program=False)
    assert "the command is missing" in refusal(capsys, "-np", "2", program=False)


def test_words_of_the_program_are_not_touched() -> None:
    words = ["-c", "--", "-np", "7", "", "--check", "--verbose=1", "a b"]
    assert options.parse(["-np", "2", "prog", *words]).command == ["prog", *words]
    assert options.parse(["-np", "2", "--", "--odd-name", "--", "x"]).command == ["--odd-name", "--", "x"]
    assert options.parse(["--num-proc=3", "prog", "-np", "2"]).num_proc == 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--fusion-threshold-mb", "32"], {"SIRTAKI_FUSION_THRESHOLD": "33554432"}),
        (["--fusion-threshold-mb", "0"], {"SIRTAKI_FUSION_THRESHOLD": "0"}),
        (["--cycle-time-ms", "2.5"], {"SIRTAKI_CYCLE_TIME": "2.5"}),
        (["--cache-capacity", "9"], {"SIRTAKI_CACHE_CAPACITY": "9"}),
        (["--gloo-timeout-seconds", "9"], {"SIRTAKI_GLOO_TIMEOUT_SECONDS": "9"}),
        (["--stall-check-warning-time-seconds", "5"], {"SIRTAKI_STALL_CHECK_TIME_SECONDS": "5"}),
        (["--stall-check-shutdown-time-seconds", "0"], {"SIRTAKI_STALL_SHUTDOWN_TIME_SECONDS": "0"}),
        (["--no-stall-check"], {"SIRTAKI_STALL_CHECK_DISABLE": "1"}),
        (["--stall-check"], {"SIRTAKI_STALL_CHECK_DISABLE": "0"}),
        (["--mpi-threads-disable"], {"SIRTAKI_MPI_THREADS_DISABLE": "1"}),
        (["--no-mpi-threads-disable"], {"SIRTAKI_MPI_THREADS_DISABLE": "0"}),
        (["--thread-affinity", "1"], {"SIRTAKI_THREAD_AFFINITY": "1"}),
        (["--log-level", "DEBUG"], {"SIRTAKI_LOG_LEVEL": "debug"}),
        (["--log-without-timestamp"], {"SIRTAKI_LOG_HIDE_TIME": "1"}),
        (["--log-hide-timestamp"], {"SIRTAKI_LOG_HIDE_TIME": "1"}),
        (["--log-with-timestamp"], {"SIRTAKI_LOG_HIDE_TIME": "0"}),
        (["--no-log-hide-timestamp"], {"SIRTAKI_LOG_HIDE_TIME": "0"}),
        (["--hierarchical-allreduce"], {"SIRTAKI_HIERARCHICAL_ALLREDUCE": "1"}),
        (["--no-hierarchical-allreduce"], {"SIRTAKI_HIERARCHICAL_ALLREDUCE": "0"}),
        (["--start-timeout", "7"], {"SIRTAKI_START_TIMEOUT": "7"}),
        (["--network-interfaces", "a,b"], {"NCCL_SOCKET_IFNAME": "a,b"}),
        (["--network-interface", "b", "--network-interface", "a"], {"NCCL_SOCKET_IFNAME": "a,b"}),
        (
            ["--no-autotune", "--no-timeline-mark-cycles"],
            {"SIRTAKI_AUTOTUNE": "0", "SIRTAKI_TIMELINE_MARK_CYCLES": "0"},
        ),
        (
            ["--timeline-filename", "t.json", "--timeline-steps", "3:5"],
            {"SIRTAKI_TIMELINE": "t.json", "SIRTAKI_TIMELINE_STEPS": "3:5"},
        ),
        (
            ["--timeline-mark-cycles", "--timeline-megabytes", "8"],
            {"SIRTAKI_TIMELINE_MARK_CYCLES": "1", "SIRTAKI_TIMELINE_MEGABYTES": "8"},
        ),
        (["--autotune", "--autotune-log-file", "a.csv"], {"SIRTAKI_AUTOTUNE": "1", "SIRTAKI_AUTOTUNE_LOG": "a.csv"}),
        (
            ["--autotune-warmup-samples", "1", "--autotune-steps-per-sample", "4"],
            {"SIRTAKI_AUTOTUNE_WARMUP_SAMPLES": "1", "SIRTAKI_AUTOTUNE_STEPS_PER_SAMPLE": "4"},
        ),
        (
            ["--autotune-bayes-opt-max-samples", "9", "--autotune-gaussian-process-noise", "0.5"],
            {"SIRTAKI_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9", "SIRTAKI_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.5"},
        ),
        (["--no-hierarchical-allgather", "--mpi"], {}),
        (["--disable-cache", "--verbose", "-p", "22", "-i", "key", "--output-filename", "x"], {}),
    ],
)
def test_flags_set_variables_for_the_ranks(words: list[str], expected: dict[str, str]) -> None:
    assert parse("-np", "2", *words).environ == expected


def test_variables_of_flags_reach_the_ranks_and_win() -> None:
    code = "import os; print(os.environ['SIRTAKI_CACHE_CAPACITY'])"
    done = run("-np", "1", "--cache-capacity", "5", "python3", "-c", code, SIRTAKI_CACHE_CAPACITY="6")
    assert done.stdout == b"5\n"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--hierarchical-allgather"], "--hierarchical-allgather (hierarchical allgather)"),
        (["--torus-allreduce"], "--torus-allreduce (torus allreduce)"),
        (["--jsrun"], "--jsrun (jsrun)"),
        (["--tcp"], "--tcp (Spectrum MPI)"),
        (["--num-nccl-streams", "1"], "--num-nccl-streams (NCCL)"),
    ],
)
def test_features_to_come_are_refused_by_name(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"not available in this version: {what}" in refusal(capsys, "-np", "2", *words)


@pytest.mark.parametrize(
    "words",
    [
        ["-H", "a:2", "--hostfile", "f"],
        ["--mpi", "--gloo"],
        ["--stall-check", "--no-stall-check"],
        ["--log-with-timestamp", "--log-without-timestamp"],
        ["--log-with-timestamp", "-prefix-timestamp"],
        ["--autotune", "--no-autotune"],
        ["--mpi-threads-disable", "--no-mpi-threads-disable"],
    ],
)
def test_flags_that_exclude_each_other(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "not allowed with" in refusal(capsys, "-np", "2", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fusion-threshold-mb", "-1"], "--fusion-threshold-mb -1: must be 0 or more"),
        (["--cycle-time-ms", "nan"], "--cycle-time-ms nan: must be 0 or more"),
        (["--cache-capacity", "-5"], "--cache-capacity -5: must be 0 or more"),
        (["--stall-check-warning-time-seconds", "-1"], "-1: must be 0 or more"),
        (["--timeline-megabytes", "0"], "--timeline-megabytes 0: must be 1 or more"),
        (["--autotune-steps-per-sample", "0"], "--autotune-steps-per-sample 0: must be 1 or more"),
        (["--timeline-filename", ""], "--timeline-filename '': must not be empty"),
        (["--fusion-threshold-mb", "1.5"], "invalid int value: '1.5'"),
        (["--log-level", "LOUD"], "'LOUD'"),
        (["--ssh-port", "0"], "'0' is not a positive"),
        (["--start-timeout", "-1"], "'-1' is not a positive"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--network-interfaces", ","], "names no interface"),
        (["--restarts", "-1"], "--restarts: '-1' is not a positive whole number"),
        (["--mpi-args", "-x 'y"], """--mpi-args: "-x 'y": No closing quotation"""),
        (["--launch-agent", "'"], '--launch-agent: "\'": No closing quotation'),
    ],
)
def test_wrong_values_are_shown(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, "-np", "2", *words)


def test_config_file_and_flags_that_win(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "controller: mpi\n"
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 10\n  cache_capacity: 512\n"
        "autotune:\n  enabled: false\n"
        "stall_check:\n  enabled: true\n  warning_time_seconds: 120\n"
        "library_options:\n  thread_affinity: 1\n"
        "logging:\n  level: info\n  with_timestamp: false\n"
        "restarts: 3\n"
    )
    assert options.restarts(parse("-np", "2", "--config-file", str(path))) == 3
    assert options.restarts(parse("-np", "2", "--config-file", str(path), "--restarts", "0")) == 0
    words = ("--cache-capacity", "9", "--no-stall-check")
    assert parse("-np", "2", "--config-file", str(path), *words).environ == {
        "SIRTAKI_FUSION_THRESHOLD": "33554432",
        "SIRTAKI_AUTOTUNE": "0",
        "SIRTAKI_CYCLE_TIME": "10.0",
        "SIRTAKI_CACHE_CAPACITY": "9",
        "SIRTAKI_STALL_CHECK_TIME_SECONDS": "120",
        "SIRTAKI_STALL_CHECK_DISABLE": "1",
        "SIRTAKI_THREAD_AFFINITY": "1",
        "SIRTAKI_LOG_LEVEL": "info",
        "SIRTAKI_LOG_HIDE_TIME": "1",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("params:\n  fusion_treshold_mb: 1\n", "unknown key params.fusion_treshold_mb; there are fusion_threshold_mb"),
        ("parms: {}\n", "unknown key 'parms'; there are controller, restarts, params"),
        ("params: 3\n", "params: expected keys"),
        ("- 1\n", "expected sections"),
        ("params: [\n", "not YAML"),
        ("params:\n  cache_capacity: many\n", "params.cache_capacity: 'many' is not of type int"),
        ("params:\n  cache_capacity: -1\n", "--cache-capacity -1: must be 0 or more"),
        ("stall_check:\n  enabled: 1\n", "stall_check.enabled: 1 is not of type bool"),
        ("logging:\n  level: loud\n", "logging.level: 'LOUD' is none of"),
        ("controller: tcp\n", "controller: 'tcp' is neither mpi nor gloo"),
        ("autotune:\n  gaussian_process_noise: -1.0\n", "--autotune-gaussian-process-noise -1.0: must be 0 or more"),
        ("timeline:\n  filename: 3\n", "timeline.filename: 3 is not of type str"),
        ("restarts: -1\n", "restarts: -1 is not a whole number of at least 0"),
    ],
)
def test_config_file_refusals(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    words = refusal(capsys, "-np", "2", "--config-file", str(path))
    assert message in words
    assert str(path) in words or "--" in message


def test_config_file_that_is_not_there_or_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refusal(capsys, "-np", "2", "--config-file", str(tmp_path / "none"))
    (tmp_path / "empty").touch()
    assert parse("-np", "2", "--config-file", str(tmp_path / "empty")).environ == {}


def test_mpi_flag_wins_over_the_controller_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("controller: gloo\n")
    assert parse("-np", "2", "--mpi", "--config-file", str(path)).use_gloo is None


def test_options_of_elastic_jobs_by_both_names_of_horovod() -> None:
    words = ("--min-num-proc", "2", "--max-num-proc", "8", "--slots-per-host", "4", "--reset-limit", "0")
    words += ("--host-discovery-script", "./hosts.sh")
    chosen = parse(*words, "--blacklist-cooldown-range", "5", "10", "--elastic-timeout", "7", "--gloo")
    assert elastic_options.is_elastic(chosen) and chosen.num_proc == 2
    assert (chosen.min_num_proc, chosen.max_num_proc, chosen.slots, chosen.reset_limit) == (2, 8, 4, 0)
    assert elastic_options.cooldown(chosen) == (5, 10) and elastic_options.timeout(chosen) == 7
    assert parse("-np", "4", "--min-np", "2", "--max-np", "4").num_proc == 4
    assert elastic_options.is_elastic(parse("-np", "4", "--host-discovery-script", "./hosts.sh"))
    assert not elastic_options.is_elastic(parse("-np", "4"))


def test_the_limit_of_an_elastic_job_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = parse("-np", "2", "--min-np", "1")
    assert elastic_options.timeout(chosen) == 600
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "30")
    assert elastic_options.timeout(chosen) == 30
    monkeypatch.setenv("SIRTAKI_ELASTIC_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="SIRTAKI_ELASTIC_TIMEOUT='soon' is not a positive number of seconds"):
        elastic_options.timeout(chosen)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-np", "2", "--min-np", "0"], "'0' is not a positive whole number"),
        (["-np", "2", "--min-np", "3"], "--min-np 3 is more than -np 2"),
        (["-np", "2", "--max-np", "1"], "--max-np 1 is less than -np 2"),
        (["-np", "2", "--reset-limit", "1"], "--reset-limit 1 is for elastic jobs: give --min-np, --max-np or"),
        (["-np", "2", "--slots-per-host", "1"], "--slots-per-host 1 is for elastic jobs"),
        (["-np", "2", "--min-np", "1", "--slots-per-host", "4"], "--slots-per-host 4 is for hosts that a"),
        (["-np", "2", "--gloo-timeout-seconds", "0"], "--gloo-timeout-seconds 0: must be 1 or more"),
        (["-np", "2", "--elastic-timeout", "1"], "--elastic-timeout 1 is for elastic jobs"),
        (["-np", "2", "--min-np", "1", "--mpi"], "--mpi: an elastic job cannot use MPI"),
        (["-np", "2", "--min-np", "1", "--launcher", "srun"], "--launcher srun: sirtakirun itself starts the ranks"),
        (
            ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0", "4"],
            "--blacklist-cooldown-range 0 4: must be 1 <= MIN <= MAX <= 3600",
        ),
        (["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "9", "4"], "must be 1 <= MIN <= MAX"),
    ],
)
def test_refusals_of_elastic_jobs(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(capsys, *words)


def test_slots_are_checked_with_the_arithmetic() -> None:
    done = run("-np", "3", "-H", "a:1,b:1", "true")
    assert done.returncode == 2
    assert b"3 ranks, but the hosts offer a:1 + b:1 = 2 slots" in done.stderr
    with pytest.raises(ValueError, match=r"3 ranks, but the hosts offer a:1 slot;"):
        host_list.check_slots(host_list.from_list("a:1"), 3)
    host_list.check_slots(host_list.from_list("a:1,b:2"), 3)


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:1,", "a:x", "a:1 b:1", "a:-1", "[::1]", "::1:2", ""])
def test_hosts_of_another_form_are_shown(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form host:slots"):
        host_list.from_list(text)
    with pytest.raises(ValueError, match="at least 1 slot"):
        host_list.from_list("a:0")


@pytest.mark.parametrize(
    "text",
    [
        "# nodes\nn1 slots=2\n\nn2:1  # old\nn1 slots = 1\n",
        "n1 slots=3 max_slots=4\nn2\n",
        "n1:3 binding=user:0+1\nn2:1\n",
        "n1\nn1\nn2\nn1\n",
        "n1 np=3\r\nn2\r\n",
    ],
    ids=["horovodrun", "Open MPI", "MPICH", "PBS", "machine file"],
)
def test_host_file(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(text, newline="")
    assert host_list.from_file(str(path)) == [host_list.Host("n1", 3), host_list.Host("n2", 1)]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"n1 slots=2\nn2 2\n", r"hosts:2: 'n2 2' is not of the form 'host slots=n'"),
        (b"# none\n", "hosts: no host; a line has the form"),
        (b"n1 slots=two\n", "hosts:1: slots=two is not a number of slots"),
        (b"n1:2 slots=2\n", "hosts:1: .* gives the number of slots twice"),
        (b"n1\nn2 slots=0\n", "hosts:2: .* at least 1 slot"),
        (b"n1 slots=99999999999\n", "hosts:1: .* at most"),
        (b"n1 cores=2\n", "hosts:1: cores= is not understood"),
        (b"n1\n\xff\xfe\n", "hosts:2: .* is not UTF-8 text"),
        (b"-oProxyCommand=x slots=2\n", "hosts:1: "),
        (b"-n1\n", "hosts:1: .* does not begin with '-'"),
        (b"n1;rm slots=2\n", "hosts:1: "),
    ],
)
def test_host_file_with_a_line_that_is_wrong(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        host_list.from_text(content, "hosts")


def test_host_file_that_is_not_there(tmp_path: Path) -> None:
    done = run("-np", "2", "--hostfile", str(tmp_path / "none"), "true")
    assert done.returncode == 1 and b"No such file" in done.stderr


def test_hosts_by_ipv6_address_and_user() -> None:
    assert host_list.from_list("[fd00::1]:2,me@n1:1") == [host_list.Host("fd00::1", 2), host_list.Host("me@n1", 1)]
    assert host_list.from_text(b"[fd00::1] slots=2\n[fe80::1%eth0]:1\n", "") == [
        host_list.Host("fd00::1", 2),
        host_list.Host("fe80::1%eth0", 1),
    ]
    assert str(host_list.Host("fd00::1", 2)) == "[fd00::1]:2"


def test_when_a_host_counts_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = parse("-np", "2")
    assert options.lost_after(chosen) == 30
    assert options.lost_after(parse("-np", "2", "--min-np", "1")) == 10
    monkeypatch.setenv("SIRTAKI_LOST_HOST_SECONDS", "0")
    assert options.lost_after(chosen) == 0
    for text in ("-1", "soon", "inf", "nan"):
        monkeypatch.setenv("SIRTAKI_LOST_HOST_SECONDS", text)
        with pytest.raises(ValueError, match=f"SIRTAKI_LOST_HOST_SECONDS='{text}' is not a number of seconds"):
            options.lost_after(chosen)


def test_restarts_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.restarts(parse("-np", "2")) == 0
    monkeypatch.setenv("SIRTAKI_RESTARTS", "4")
    assert options.restarts(parse("-np", "2")) == 4
    assert options.restarts(parse("-np", "2", "--restarts", "1")) == 1
    monkeypatch.setenv("SIRTAKI_RESTARTS", "many")
    with pytest.raises(ValueError, match="SIRTAKI_RESTARTS='many' is not a positive whole number"):
        options.restarts(parse("-np", "2"))


def test_start_timeout_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options.start_timeout(parse("-np", "2")) == 30
    monkeypatch.setenv("HOROVOD_START_TIMEOUT", "40")
    assert options.start_timeout(parse("-np", "2")) == 40
    monkeypatch.setenv("SIRTAKI_START_TIMEOUT", "50")
    assert options.start_timeout(parse("-np", "2")) == 50
    assert options.start_timeout(parse("-np", "2", "--start-timeout", "60")) == 60
    monkeypatch.setenv("SIRTAKI_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="SIRTAKI_START_TIMEOUT='soon'"):
        options.start_timeout(parse("-np", "2"))


def request(**extra: object) -> Request:
    two = [host_list.Host("a", 2), host_list.Host("b", 1)]
    fields = {"hosts": two, "ssh_port": 7, "ssh_identity_file": "/k", "nics": ["eth0"], "pass_on": ["S"], **extra}
    return Request(program=["prog"], ranks=3, **fields)  # type: ignore[arg-type]


def test_command_line_of_hydra() -> None:
    asked = request()
    words = ["mx", "-n", "3", "-hosts", "a:2,b:1", "-iface", "eth0", "-bind-to", "none", "prog"]
    assert Hydra().command("mx", asked) == words
    assert asked.environ == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 7 -i /k"}
    local = Hydra().command("mx", Request(program=["prog"], ranks=3))
    assert local == ["mx", "-n", "3", "-launcher", "fork", "-rmk", "user", "-bind-to", "none", "prog"]


@pytest.mark.parametrize(("user", "as_root"), [(0, ["--allow-run-as-root"]), (1000, [])])
def test_command_line_of_open_mpi(user: int, as_root: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    tcp = ["--mca", "btl_tcp_if_include", "eth0"]
    old = [*tcp, "--mca", "oob_tcp_if_include", "eth0", "-x", "S", "--bind-to", "none", "prog"]
    start = ["mx", "-np", "3", *as_root]
    expected = [*start, "--oversubscribe", "--host", "a:2,b:1", "--mca", "plm_rsh_args", "-p 7 -i /k", *old]
    assert OpenMpi().command("mx", request()) == expected
    new = OpenMpi5().command("mx", request())
    assert new[len(start) : len(start) + 2] == ["--map-by", "slot:OVERSUBSCRIBE"]
    assert new[len(start) + 4 : len(start) + 7] == ["--prtemca", "plm_ssh_args", "-p 7 -i /k"]


def test_command_line_of_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srun, "_plugin", lambda program, library: "pmi2")
    words = srun.Srun().command("srun", request())
    assert words[:4] == ["srun", "-n", "3", "--export=ALL"] and words[-1] == "prog"
    assert {"--mpi=pmi2", "--cpu-bind=none", "--kill-on-bad-exit=1", "--input=none"} <= set(words)
    assert words[8:14] == ["-N", "2", "-w", "a,b", "--ntasks-per-node", "2"]
    assert host_list.filled([host_list.Host("a", 2), host_list.Host("b", 2)], 2) == [host_list.Host("a", 2)]


def test_environment_of_a_surrounding_job_is_not_inherited() -> None:
    environ = {
        **dict.fromkeys(("PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID", "SIRTAKI_SIZE", "OMPI_COMM_WORLD_RANK"), "1"),
        **dict.fromkeys(("OMPI_MCA_orte_launch", "OMPI_MCA_ess"), "x"),
    }
    kept = {"PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "self", "SIRTAKI_MPI": "x", "PATH": "/bin"}
    assert starters.without_identity({**environ, **kept}) == kept


def test_version_and_help() -> None:
    from sirtaki.version import __version__

    assert run("--version").stdout.decode().strip() == __version__
    done = run("--help")
    assert done.returncode == 0 and b"--fusion-threshold-mb" in done.stdout and b"stdin of all ranks" in done.stdout
