"""Files of checkpoints: a process killed at any moment leaves a whole one; damaged files are noticed."""

import errno
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from launching import run, written

import sirtaki as hvd
from sirtaki.checkpoints import arrays, files, saving

OLD, NEW = bytes(1 << 16), b"new" * (1 << 15)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of one rank in this process, without MPI, which would stay loaded for all other tests."""
    monkeypatch.setenv("SIRTAKI_CONTROL", "sockets")
    hvd.init()
    yield
    hvd.shutdown()


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def _dies_at_line(folder: Path, count: int) -> bool:
    """Writes NEW in a child that is killed before the count-th line that Python runs for it. Whether it was killed."""
    child = os.fork()
    if child == 0:
        left = count

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename == files.__file__ and event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        files.write(str(folder), NEW, ".pt", keep=1)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_any_line_leaves_a_whole_file(tmp_path: Path) -> None:
    outcomes = []
    for count in range(1, 500):
        folder = tmp_path / str(count)
        files.write(str(folder), OLD, ".pt", keep=1)
        killed = _dies_at_line(folder, count)
        found = files.newest(str(folder), ".pt")
        outcomes.append("old" if found == OLD else "new" if found == NEW else "lost")
        if not killed:
            break
        files.write(str(folder), b"next", ".pt", keep=1)
        assert len(names(folder)) == 1, "what the killed process left is removed"
        assert files.newest(str(folder), ".pt") == b"next"
    assert outcomes == ["old"] * outcomes.count("old") + ["new"] * outcomes.count("new")
    assert outcomes.count("old") > 10 and outcomes.count("new") > 3


def test_kills_while_bytes_are_written(tmp_path: Path) -> None:
    """At seeded times, in a process that writes one file after another: each is 4 MiB of one byte, its number."""
    moments = random.Random(7)
    for _ in range(6):
        child = os.fork()
        if child == 0:
            for number in range(1, 256):
                files.write(str(tmp_path), bytes([number]) * (4 << 20), ".pt", keep=2)
            os._exit(1)
        signal.sigtimedwait([signal.SIGCHLD], moments.uniform(0.02, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = files.newest(str(tmp_path), ".pt")
        assert found is None or (len(found) == 4 << 20 and len(set(found)) == 1)
    assert found is not None


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "unreadable"])
def test_a_damaged_file_is_noticed(damage: str, tmp_path: Path) -> None:
    for content in (OLD, NEW):
        files.write(str(tmp_path), content, ".pt", keep=2)
    newest = tmp_path / names(tmp_path)[-1]
    if damage == "unreadable":
        newest.unlink()
        newest.mkdir()
    else:
        flipped = NEW[:1000] + bytes([NEW[1000] ^ 4]) + NEW[1001:]
        newest.write_bytes({"torn": NEW[:-1], "empty": b"", "flipped": flipped}[damage])
    with pytest.warns(RuntimeWarning, match=f"{newest} is damaged, so the checkpoint before it is taken: "):
        assert files.newest(str(tmp_path), ".pt") == OLD


def test_all_files_are_damaged(tmp_path: Path) -> None:
    assert files.newest(str(tmp_path / "none"), ".pt") is None
    files.write(str(tmp_path), OLD, ".pt", keep=2)
    (tmp_path / names(tmp_path)[0]).write_bytes(b"")
    with pytest.warns(RuntimeWarning), pytest.raises(OSError, match=r"no checkpoint in .* is whole: checkpoint-0"):
        files.newest(str(tmp_path), ".pt")


def test_the_newest_files_stay(tmp_path: Path) -> None:
    (tmp_path / "other.pt").touch()
    for number in range(12):
        files.write(str(tmp_path), b"%d" % number, ".pt", keep=3)
    assert [name[:19] for name in names(tmp_path)] == [*(f"checkpoint-{n:08d}" for n in (10, 11, 12)), "other.pt"]
    assert files.newest(str(tmp_path), ".pt") == b"11" and files.newest(str(tmp_path), ".npz") is None


def test_the_new_file_is_on_disk_before_an_old_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(str(tmp_path), OLD, ".pt", keep=1)
    done: list[str] = []
    for name in ("fsync", "rename", "unlink"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *words, name=name, call=call: (done.append(name), call(*words)))
    files.write(str(tmp_path), NEW, ".pt", keep=1)
    assert done == ["fsync", "rename", "fsync", "unlink"]


def test_an_error_of_writing_is_raised_later(joined: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next call, and by shutdown(). The file before stays, and nothing unfinished."""
    arrays.checkpoint(tmp_path, {"step": 1})
    saving.finish()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        arrays.checkpoint(tmp_path, {"step": 2})
        with pytest.raises(OSError, match=r"the checkpoint was not written: No space left on device: .*00000002"):
            arrays.checkpoint(tmp_path, {"step": 3})
        arrays.checkpoint(tmp_path, {"step": 4})
        with pytest.raises(OSError, match="the checkpoint was not written"):
            hvd.shutdown()
    assert hvd.is_initialized() and len(names(tmp_path)) == 1
    assert arrays.latest(tmp_path) == {"step": 1}


AT_THE_END = """
from sirtaki.checkpoints import arrays
def full(descriptor):
    time.sleep(0.3)
    raise OSError(28, "No space left on device")
os.fsync = full
arrays.checkpoint(sys.argv[1], {"step": 1})
"""


def test_an_error_of_writing_at_the_end_of_the_program(tmp_path: Path) -> None:
    done = run("-np", "2", *written(tmp_path, AT_THE_END), str(tmp_path / "folder"))
    assert done.returncode == 1, done.stderr
    last = done.stderr.decode().splitlines()[-1]
    assert "rank 0 on host" in last and "the checkpoint was not written: No space left on device" in last


def test_states_of_arrays(joined: None, tmp_path: Path) -> None:
    """The state is copied at the call. Types, nesting and odd numbers come back."""
    import ml_dtypes

    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = {
        "weights": [weights, np.float64(0.1), np.ones(0, np.int8)],
        "half": np.array([1.5, -2], ml_dtypes.bfloat16),
        "pair": (1, "text", None, True, float("inf"), 2.5),
        "empty": {},
    }
    with pytest.raises(ValueError, match=r"checkpoint: state\['a'\]\[1\] cannot be saved: object <object"):
        arrays.checkpoint(tmp_path, {"a": [1, object()]})
    with pytest.raises(ValueError, match="keep must be a whole number of at least 1, got 0"):
        arrays.checkpoint(tmp_path, {}, keep=0)
    with pytest.raises(ValueError, match="path must be the name of a folder, got ''"):
        arrays.latest("")
    assert arrays.latest(tmp_path) is None
    arrays.checkpoint(str(tmp_path / "deep" / "folder"), state)
    weights += 1
    back = arrays.latest(tmp_path / "deep" / "folder")
    assert (back["weights"][0] == weights - 1).all() and back["weights"][0].dtype == np.float32
    assert back["weights"][1] == 0.1 and back["weights"][2].dtype == np.int8
    assert back["half"].dtype == ml_dtypes.bfloat16 and back["half"].tolist() == [1.5, -2]
    assert back["pair"] == state["pair"] and back["empty"] == {}
