"""Names, arguments and defaults are Horovod's, but for a list of what differs on purpose."""

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from launching import FRAMEWORKS

_SHIM = Path(__file__).resolve().parents[2] / "frameworks/horovod_shim"
_FACTS = Path(__file__).parent / "horovod_api.txt"

# Where Sirtaki has what a section is about: (module, object in it).
_PLACES = {
    "horovod.ProcessSet": ("sirtaki", "ProcessSet"),
    "horovod.torch.Compression": ("sirtaki.torch", "Compression"),
    "horovod.torch.DistributedOptimizer": ("sirtaki.torch.optimizer", "ReducedSteps"),
    "horovod.tensorflow.Compression": ("sirtaki.tensorflow", "Compression"),
    "horovod.tensorflow.DistributedGradientTape": ("sirtaki.tensorflow.tape", "_Distributed"),
    "horovod.tensorflow.DistributedOptimizer": ("sirtaki.tensorflow.optimizer", "_Distributed"),
}

_HELPER = ("missing", "a helper of Horovod's own, never meant for programs")
_OWN_ARGUMENTS = ("*args, **kwargs", "takes all that the wrapped optimizer's own method takes")
_PROCESS_SET = ("process_set=global_process_set", "takes a process set, as other calls do")

_MEMBERS = {"add_process_set": ("members_only=False", "members can make a set without the other ranks")}

_OF_VALUES = {
    "allgather": _PROCESS_SET,
    "broadcast": _PROCESS_SET,
    "reducescatter": _PROCESS_SET,
    "load_model": ("**options", "a saved file has none of the options of DistributedOptimizer"),
}
_CALLBACKS = {"BroadcastGlobalVariablesCallback": _PROCESS_SET, "MetricAverageCallback": _PROCESS_SET}

# {section: {name: (Sirtaki's arguments from the first that differs on, or "missing"; the reason)}}.
_FORMS = ("", "_async")
_OUT = ("out=None", "can put the result into memory of the caller")
_UNSHARDED = {"DistributedOptimizer": ("shard_optimizer_state=False", "each rank may keep a part of the state only")}
_DIFFERENT: dict[str, dict[str, tuple[str, str]]] = {
    "horovod.torch": {
        **_MEMBERS,
        "DistributedOptimizer": (
            "shard_optimizer_state=False, free_gradients=False",
            "each rank may keep a part of the state only",
        ),
        "SyncBatchNorm": _PROCESS_SET,
        **dict.fromkeys(
            (f"{verb}{form}" for verb in ("allgather", "alltoall", "reducescatter") for form in _FORMS), _OUT
        ),
        "allgather_object": _PROCESS_SET,
        "broadcast_optimizer_state": _PROCESS_SET,
        "broadcast_parameters": _PROCESS_SET,
    },
    "horovod.torch.DistributedOptimizer": {"step": _OWN_ARGUMENTS, "zero_grad": _OWN_ARGUMENTS},
    "horovod.tensorflow": {
        **_MEMBERS,
        **_UNSHARDED,
        "check_num_rank_power_of_2": _HELPER,
        "gpu_available": _HELPER,
        "grouped_reducescatter": ("*, ignore_name_scope=False, *, name=None", "can be named, as grouped_allreduce can"),
        "handle_average_backwards_compatibility": _HELPER,
        "refs_to_vars": _HELPER,
        "split_list": _HELPER,
        "vars_to_refs": _HELPER,
    },
    "horovod.tensorflow.DistributedGradientTape": {
        "gradient": ("unconnected_gradients=None", "takes all that the tape's own method takes"),
    },
    "horovod.tensorflow.DistributedOptimizer": {"apply_gradients": _OWN_ARGUMENTS},
    "horovod.keras": {
        **_MEMBERS,
        **_OF_VALUES,
        "DistributedOptimizer": (
            "backward_passes_per_step=1, average_aggregated_gradients=False, process_set=global_process_set, "
            "scale_local_gradients=True, shard_optimizer_state=False",
            "has what horovod.tensorflow.keras has, after the arguments of horovod.keras",
        ),
        "PartialDistributedOptimizer": (
            "num_groups=0, backward_passes_per_step=1, average_aggregated_gradients=False",
            "has what DistributedOptimizer has, after the arguments of horovod.keras",
        ),
        "allreduce": (
            "average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, compression=Compression.none, "
            "process_set=global_process_set",
            "with average=True no op could be given; takes a process set, as other calls do",
        ),
    },
    "horovod.keras.callbacks": {
        **_CALLBACKS,
        "BestModelCheckpoint": (
            "save_weights_only=False, mode='auto', save_freq='epoch'",
            "one class for both, with the arguments of horovod.tensorflow.keras",
        ),
    },
    "horovod.tensorflow.keras": {**_MEMBERS, **_UNSHARDED, **_OF_VALUES, "allreduce": _PROCESS_SET},
    "horovod.tensorflow.keras.callbacks": _CALLBACKS,
}


_DUMP = """
import enum, importlib, inspect, json, sys
from sirtaki import global_process_set
from sirtaki.compression import NoneCompressor
def shown(default):
    if default is inspect.Parameter.empty:
        return None
    if default is NoneCompressor:
        return "Compression.none"
    if default is global_process_set:
        return "global_process_set"
    return default.name.title() if isinstance(default, enum.Enum) else repr(default)
def arguments(home, name):
    try:
        found = getattr(home, name)
    except AttributeError:
        return "missing"
    except NotImplementedError:
        return []
    if not callable(found):
        return []
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:
        return []
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        ("*, " if p.kind is p.KEYWORD_ONLY else "") + stars.get(p.kind, "") + p.name
        + (f"={shown(p.default)}" if shown(p.default) is not None else "")
        for p in parameters
    ]
found = {}
import horovod
from horovod._shim.aliases import MODULES
for name in MODULES:
    importlib.import_module(name)
found["not the same in sirtaki-horovod"] = [
    f"{section}: {each}"
    for section, (module, name, names) in json.loads(sys.argv[1]).items()
    if not name
    for each in names
    if each not in ("__version__", "callbacks", "elastic")
    and getattr(importlib.import_module(section), each, None)
    is not getattr(importlib.import_module(module), each, None)
]
for section, (module, name, names) in json.loads(sys.argv[1]).items():
    loaded = importlib.import_module(module)
    home = getattr(loaded, name) if name else loaded
    found[section] = {name: arguments(home, name) for name in names}
print(json.dumps(found))
"""


def facts() -> dict[str, dict[str, list[str] | None]]:
    """{section: {name: its arguments with their defaults, None if only the name counts}}."""
    found: dict[str, dict[str, list[str] | None]] = {}
    section = ""
    for line in _FACTS.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
            found[section] = {}
        elif line and not line.startswith("#"):
            name, opened, _ = line.partition("(")
            found[section][name] = arguments(line) if opened else None
    return found


def arguments(call: str) -> list[str]:
    definition = ast.parse(f"def {call}: pass").body[0]
    given = definition.args
    first = len(given.args) - len(given.defaults)
    texts = [arg.arg for arg in given.args[:first]]
    texts += [f"{arg.arg}={ast.unparse(d)}" for arg, d in zip(given.args[first:], given.defaults, strict=True)]
    texts += [f"*{given.vararg.arg}"] if given.vararg else []
    return texts + ([f"**{given.kwarg.arg}"] if given.kwarg else [])


@functools.cache
def ours() -> dict[str, dict[str, list[str] | str]]:
    """The same of Sirtaki, "missing" for what is not there. One process imports all frameworks."""
    asked = {}
    for section, known in facts().items():
        module, name = _PLACES.get(section, (section.replace("horovod", "sirtaki"), ""))
        asked[section] = (module, name, list(known))
    path = os.pathsep.join((str(FRAMEWORKS), str(_SHIM)))
    environment = {**os.environ, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-c", _DUMP, json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def difference(theirs: list[str] | None, own: list[str] | str) -> str:
    """What Sirtaki's arguments are from the first that differs on, "" if none does."""
    if own == "missing":
        return "missing"
    if theirs is None or theirs == own:
        return ""
    pairs = enumerate(zip(theirs, own, strict=False))
    same = next((place for place, (a, b) in pairs if a != b), min(len(theirs), len(own)))
    return ", ".join(own[same:]) or "nothing"


@pytest.mark.parametrize("section", facts())
def test_as_horovod(section: str) -> None:
    known = facts()[section]
    own = ours()[section]
    found = {name: difference(theirs, own[name]) for name, theirs in known.items()}
    expected = {name: how for name, (how, _) in _DIFFERENT.get(section, {}).items()}
    assert {name: how for name, how in found.items() if how} == expected


def test_sirtaki_horovod_has_the_same_by_horovods_names() -> None:
    assert ours()["not the same in sirtaki-horovod"] == []
