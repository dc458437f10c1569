"""NVTX ranges, while a timeline is written: by a library in a wheel's place that writes down its calls."""

import os
import subprocess
from pathlib import Path

from launching import JOINED, run, written

LIBRARY = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static void note(const char *what, const char *name) {
  FILE *file = fopen(getenv("NOTES"), "a");
  fprintf(file, "%s %s\n", what, name);
  fclose(file);
}
uint64_t nvtxRangeStartA(const char *name) { note("start", name); return 7; }
void nvtxRangeEnd(uint64_t range) { note("end", range == 7 ? "7" : "?"); }
int nvtxRangePushA(const char *name) { note("push", name); return 0; }
int nvtxRangePop(void) { note("pop", ""); return 0; }
void nvtxMarkA(const char *name) { note("mark", name); }
"""
BODY = """
import ctypes
os.environ["NOTES"] = os.path.join({folder!r}, f"notes.{{rank}}")
sys.path.append({folder!r})
def step(elements):
    data = (ctypes.c_float * elements)()
    address = ctypes.addressof(data)
    tensor = (address, address, core.DTYPES["float32"], (elements,), -1)
    core.submit(core.VERBS["allreduce"], "gradient", [tensor], site="program.py:1", awaited=True).wait()
    core.end_step()
step(4)
hvd.start_timeline(os.path.join({folder!r}, "t.json"))
step(5)
hvd.stop_timeline()
step(6)
"""


def test_ranges_are_marked_while_a_timeline_is_written(tmp_path: Path) -> None:
    libraries = tmp_path / "nvidia" / "nvtx" / "lib"
    libraries.mkdir(parents=True)
    source = tmp_path / "nvtx.c"
    source.write_text(LIBRARY)
    subprocess.run(
        [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-o", libraries / "libnvtx3interop.so.1", source], check=True
    )
    done = run("-np", "2", *written(tmp_path, BODY.format(folder=str(tmp_path)), JOINED))
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        notes = (tmp_path / f"notes.{rank}").read_text().splitlines()
        assert [note for note in notes if note.startswith(("start", "mark"))] == [
            "start sirtaki.allreduce: 1 tensors, 20 bytes",
            "mark sirtaki.step",
        ]
        assert notes.count("end 7") == 1 and notes.count("push sirtaki.wait") == sum(n.startswith("pop") for n in notes)
