"""The examples in the docstrings of public names run, on one rank, and give what they show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launching import SECONDS, environment

# Run for a module: prints the examples that failed, and the names without a docstring or without an example.
DRIVER = """
import doctest, importlib, json, sys
names = sys.argv[1:]
modules = {name: importlib.import_module(name) for name in names}
found = {"run": 0, "failed": [], "undocumented": [], "without example": []}
for name, hvd in modules.items():
    hvd.init()
    known = {"hvd": hvd, **{short: importlib.import_module(package) for short, package in (
        ("np", "numpy"), ("torch", "torch"), ("tf", "tensorflow"), ("keras", "keras"))
        if package in sys.modules}}
    elastic = getattr(hvd, "elastic", None)
    public = [(hvd, each) for each in hvd.__all__] + [(elastic, each) for each in getattr(elastic, "__all__", ())]
    for owner, each in public:
        home = getattr(owner, each)
        if isinstance(home, (str, int)) or not callable(home):
            continue
        if not home.__doc__:
            found["undocumented"].append(f"{name}.{each}")
        tests = doctest.DocTestFinder(recurse=False).find(home, f"{name}.{each}", globs=dict(known))
        if owner is hvd and not any(test.examples for test in tests):
            found["without example"].append(each)
        for test in tests:
            lines = []
            result = doctest.DocTestRunner(verbose=False).run(test, out=lines.append)
            found["run"] += result.attempted
            if result.failed:
                found["failed"].append("".join(lines))
print(json.dumps(found))
"""

# Questions about the installation, exceptions, and calls that need several ranks, a GPU or a session of TensorFlow 1.
NO_EXAMPLE = {
    *("HorovodInternalError", "SirtakiInternalError", "HostsUpdatedInterrupt", "HorovodVersionMismatchError"),
    *("ccl_built", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled"),
    *("mpi_threads_supported", "nccl_built", "rocm_built", "is_homogeneous", "check_extension"),
    *("local_rank", "local_size", "cross_rank", "cross_size", "stop_timeline"),  # shown by rank, size, start_timeline
    *("capture", "BroadcastGlobalVariablesHook", "broadcast_global_variables", "LocalGradientAggregationHelper"),
    *("rank_op", "size_op", "local_rank_op", "local_size_op", "process_set_included_op"),
    *("run", "SyncBatchNormalization", "PartialDistributedOptimizer", "load_model"),
}


def check(folder: Path, *modules: str) -> None:
    command = [sys.executable, "-c", DRIVER, *modules]
    environ = environment(TF_CPP_MIN_LOG_LEVEL="3", KERAS_BACKEND="tensorflow", SIRTAKI_DYNAMIC_PROCESS_SETS="1")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=4 * SECONDS, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failed"] == [], "\n".join(found["failed"])
    assert found["undocumented"] == []
    assert set(found["without example"]) - NO_EXAMPLE == set()
    assert found["run"] > 20


def test_examples_of_torch(tmp_path: Path) -> None:
    check(tmp_path, "sirtaki", "sirtaki.torch")


@pytest.mark.long
def test_examples_of_tensorflow_and_keras(tmp_path: Path) -> None:
    check(tmp_path, "sirtaki.tensorflow", "sirtaki.keras")
