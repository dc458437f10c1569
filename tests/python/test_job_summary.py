"""Where the time of a job went: the closing line, the report, and the records that a failed job leaves."""

import json
import os
import re
from pathlib import Path
from statistics import mean

from launching import JOINED, run, written
from timed_steps import STEPS, closing_line, largest_cause, outputs

UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def test_the_line_names_the_late_rank_and_its_lateness(tmp_path: Path) -> None:
    """Compared with when the ranks did arrive, since a busy machine makes the others late, too."""
    body = """
arrivals = steps(40, 256, lambda: time.sleep(0.005) if rank == 2 else None)
print(json.dumps([arrivals, step_report()]), flush=True)
"""
    done = run("-np", "3", *written(tmp_path, body, JOINED + STEPS))
    line = closing_line(done)
    ranks = outputs(done)
    arrivals = list(zip(*(rank[0] for rank in ranks), strict=True))[1:]  # steps are counted from the first one's end on
    of_rank_2 = [times for times in arrivals if max(times) == times[2]]
    expected = mean(max(times) - min(times) for times in of_rank_2) * 1e-9
    found = re.search(r"rank 2 was last in (\d+)% of the steps, by ([\d.]+) (s|ms|us)", line)
    assert found, line
    # On a busy machine a thread may stop between the two readings of the clock.
    stops = sum(report["without_core"] / report["steps"] for _, report in ranks)
    assert abs(float(found[2]) * UNITS[found[3]] - expected) < 0.1 * expected + stops, (line, expected, stops)
    assert abs(int(found[1]) / 100 - len(of_rank_2) / len(arrivals)) < 0.1, (line, len(of_rank_2))
    assert "39 steps" in line and re.search(r"[\d.]+% rank 2 late", line), line
    for _, report in ranks:
        assert report["steps"] == 39
        waited = (1 - report["computing"]) * report["seconds"]
        assert abs(sum(report["waiting"].values()) - waited) < 1e-6, report
        assert {entry["rank"]: entry["steps"] for entry in report["last"]}[2] >= 30
    for report in (ranks[0][1], ranks[1][1]):
        assert largest_cause(report) == "late", report
    assert "RAPL" in json.dumps(ranks[0][1]["energy"])


def test_a_slow_wire_is_told_from_late_ranks(tmp_path: Path) -> None:
    """MPI carries 16 MiB, which takes far longer than anything else in the step."""
    body = "steps(6, 1 << 22, lambda: None)\nprint(json.dumps(step_report()), flush=True)\n"
    done = run("-np", "2", *written(tmp_path, body, JOINED + STEPS), SIRTAKI_CPU_OPERATIONS="mpi")
    for report in outputs(done):
        assert largest_cause(report) == "wire", report
        assert report["hidden"] < 0.5, report
    assert re.search(r"[\d.]+% wire", closing_line(done))


def test_a_job_without_enough_cores_says_so(tmp_path: Path) -> None:
    body = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
steps(30, 256, lambda: compute(0.004))
"""
    line = closing_line(run("-np", "3", *written(tmp_path, body, JOINED + STEPS)))
    assert re.search(r"starved of cores: \d\d% of the time", line), line


def test_when_nothing_is_said(tmp_path: Path) -> None:
    silent = run("-np", "2", *written(tmp_path, "steps(5, 4, lambda: None)\n", JOINED + STEPS), SIRTAKI_SUMMARY="0")
    assert silent.returncode == 0 and b"computing" not in silent.stderr
    unclear = run("-np", "2", *written(tmp_path, "", JOINED), SIRTAKI_SUMMARY="maybe")
    assert unclear.returncode == 1 and b"SIRTAKI_SUMMARY='maybe': expected 1 or 0" in unclear.stderr
    body = "print(json.dumps(step_report()), flush=True)\n"
    untrained = run("-np", "2", *written(tmp_path, body, JOINED + STEPS))
    assert untrained.returncode == 0 and b"computing" not in untrained.stderr
    for report in outputs(untrained):
        assert report["steps"] == 0 and report["unfinished"]["seconds"] > 0
    body += """
try: hvd.start_timeline("t.json")
except ValueError as error: print(error, file=sys.stderr)
"""
    off = run("-np", "2", *written(tmp_path, body, JOINED + STEPS), SIRTAKI_RECORDER="0")
    assert [report["recorder"] for report in outputs(off)] == ["off", "off"]
    assert off.stderr.count(b"no timeline 't.json': SIRTAKI_RECORDER=0 has switched off the recorder") == 2


def test_records_of_a_failed_job(tmp_path: Path) -> None:
    """On each rank, as JSON and as torch's analyser reads them."""
    folder = tmp_path / "records"
    body = """
steps(300, 16, lambda: None)
if rank == 1: raise ValueError("boom")
meet("never")
"""
    done = run("-np", "2", *written(tmp_path, body, JOINED + STEPS), SIRTAKI_FAILURE_RECORDS=str(folder))
    assert done.returncode == 1, done.stderr
    for rank in range(2):
        kept = json.loads((folder / f"records_of_rank_{rank}.json").read_text())
        assert kept["rank"] == rank and "boom" in kept["cause"]["text"] and len(kept["records"]) == 2000
        assert {"submitted", "batch_end", "step_end"} <= {record["kind"] for record in kept["records"]}
    check_by_torch(folder)


def test_records_have_a_folder_by_default(tmp_path: Path) -> None:
    """The launcher names it, and keeps those of five jobs."""
    body = 'steps(3, 16, lambda: None)\nif rank == 1: raise ValueError("boom")\nmeet("never")\n'
    command = ["-np", "2", *written(tmp_path, body, JOINED + STEPS)]
    old = [tmp_path / f"sirtaki-records-{number}" for number in range(6)]
    for number, folder in enumerate(old):
        folder.mkdir()
        os.utime(folder, (number, number))
    done = run(*command, TMPDIR=str(tmp_path))
    found = re.search(rb"sirtakirun: the last records of each rank: (\S+)", done.stderr)
    assert found, done.stderr
    folder = Path(os.fsdecode(found[1]))
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert {"records_of_rank_0.json", "records_of_rank_1.json"} <= {path.name for path in folder.iterdir()}
    assert sorted(tmp_path.glob("sirtaki-records-*")) == sorted([*old[2:], folder])
    for setting, program in (("0", body), ("", "steps(3, 16, lambda: None)\n")):
        ended = run(
            "-np",
            "2",
            *written(tmp_path, program, JOINED + STEPS),
            TMPDIR=str(tmp_path),
            SIRTAKI_FAILURE_RECORDS=setting,
        )
        assert b"the last records" not in ended.stderr, ended.stderr
        left = [*tmp_path.glob("sirtaki-records-*")]
        assert folder in left and len(left) == (5 if setting else 4), "an older one makes room, and an empty one goes"


def test_records_that_cannot_be_kept_are_mentioned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = str(tmp_path / "file" / "records")
    done = run("-np", "1", *written(tmp_path, 'raise ValueError("boom")\n', JOINED), SIRTAKI_FAILURE_RECORDS=folder)
    assert done.returncode == 1 and b"ValueError: boom" in done.stderr
    assert f"no failure records of rank 0 in {folder}: Not a directory".encode() in done.stderr


def check_by_torch(folder: Path) -> None:
    from torch.distributed.flight_recorder.components import builder, config_manager, loader

    args = config_manager.JobConfig().parse_args([str(folder), "--prefix", "torch_rank_"])
    details, version = loader.read_dir(args)
    assert sorted(dump["rank"] for dump in details.values()) == [0, 1]
    database = builder.build_db(details, args, version)
    matched = [collective for collective in database.collectives if collective.pass_check]
    assert len(matched) > 100 and {c.collective_name for c in matched} >= {"gloo:all_reduce"}
    assert all(c.expected_ranks == {0, 1} for c in matched)
