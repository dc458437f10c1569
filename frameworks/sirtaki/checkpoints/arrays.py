"""checkpoint() and latest() for states of arrays, for TensorFlow and Keras: numpy's own format, without pickles."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np

from sirtaki.checkpoints import saving

_SUFFIX = ".npz"
_FORM = "form"  # the array with the nesting of the state, as JSON


def checkpoint(path: Any, state: Any, keep: int = 2) -> None:
    """Rank 0 writes the state into a new file of the folder `path`, beside training. Every rank calls it.

    state: nested dicts with text keys, lists and tuples of arrays, variables, tensors, numbers, texts and None. It is
    copied at the call. keep: how many of the newest files stay. A call first waits for the file before. The next call
    or shutdown() raises the OSError of a file that could not be written. ValueError for a state of another kind.

    >>> hvd.checkpoint("checkpoints", {"step": 3, "weights": [np.ones(2)]})
    """
    saving.save(path, lambda: _dumped(state), _SUFFIX, keep)


def latest(path: Any) -> Any:
    """The state of the newest whole file in rank 0's folder `path`, equal on all ranks; None without a checkpoint.

    Every rank calls it; ranks on other hosts need not see the folder. Arrays and variables come back as arrays of
    numpy. A damaged file gives a RuntimeWarning, and the file before it is taken. OSError if all files are damaged.

    >>> hvd.latest("checkpoints")["step"]
    3
    """
    content = saving.load(path, _SUFFIX)
    if content is None:
        return None
    with np.load(content, allow_pickle=False) as arrays:
        return _built(json.loads(arrays[_FORM].tobytes()), arrays)


def _dumped(state: Any) -> io.BytesIO:
    arrays: dict[str, Any] = {}
    form = json.dumps(_form(state, arrays, "state"))
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **{_FORM: np.frombuffer(form.encode(), np.uint8)}, **arrays)
    return content


def _form(value: Any, arrays: dict[str, Any], where: str) -> list[Any]:
    """The nesting of a state; its arrays are put into `arrays`."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return ["dict", {key: _form(entry, arrays, f"{where}[{key!r}]") for key, entry in value.items()}]
    if type(value) in (list, tuple):
        entries = [_form(entry, arrays, f"{where}[{number}]") for number, entry in enumerate(value)]
        return [type(value).__name__, entries]
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return ["value", value]
    array = np.asarray(value) if hasattr(value, "__array__") or isinstance(value, float) else None
    if array is None or array.dtype.hasobject:
        raise ValueError(f"checkpoint: {where} cannot be saved: {type(value).__name__} {value!r:.80}")
    name = f"array{len(arrays)}"
    # numpy's format does not know the types of ml_dtypes, such as bfloat16.
    arrays[name] = array.view(f"V{array.itemsize}") if array.dtype.kind == "V" else array
    return ["array", name, array.dtype.name]


def _built(form: list[Any], arrays: Any) -> Any:
    kind, content = form[:2]
    if kind == "dict":
        return {key: _built(entry, arrays) for key, entry in content.items()}
    if kind in ("list", "tuple"):
        entries = [_built(entry, arrays) for entry in content]
        return entries if kind == "list" else tuple(entries)
    if kind == "value":
        return content
    array = arrays[content]
    return array.view(np.dtype(form[2])) if array.dtype.kind == "V" else array
