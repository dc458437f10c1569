"""checkpoint() and latest(): the state of training in files, by torch.save and torch.load."""

from __future__ import annotations

import io
import pickle
import re
from typing import Any

import torch

from sirtaki.checkpoints import saving

_SUFFIX = ".pt"


def checkpoint(path: Any, state: Any, keep: int = 2) -> None:
    """Rank 0 writes the state into a new file of the folder `path`, beside training. Every rank calls it.

    state: what torch.load(weights_only=True) can load: nested dicts, lists and tuples of tensors, numbers and texts,
    such as state_dict() of models and optimizers, sharded ones too. It is copied to host memory at the call. keep: how
    many of the newest files stay. A call first waits for the file before. The next call or shutdown() raises the
    OSError of a file that could not be written. ValueError for a state of another kind. Only rank 0's state counts.

    >>> hvd.checkpoint("checkpoints", {"step": 3, "weights": torch.ones(2)})
    """
    saving.save(path, lambda: _dumped(state), _SUFFIX, keep)


def latest(path: Any) -> Any:
    """The state of the newest whole file in rank 0's folder `path`, equal on all ranks; None without a checkpoint.

    Every rank calls it; ranks on other hosts need not see the folder. The number of ranks may have changed. Tensors
    are in host memory. A damaged file gives a RuntimeWarning, and the file before it is taken. OSError if all files
    are damaged.

    >>> hvd.latest("checkpoints")
    {'step': 3, 'weights': tensor([1., 1.])}
    """
    content = saving.load(path, _SUFFIX)
    return None if content is None else torch.load(content, map_location="cpu", weights_only=True)


def _dumped(state: Any) -> io.BytesIO:
    content = io.BytesIO()
    torch.save(state, content)
    content.seek(0)
    try:
        torch.load(content, map_location="meta", weights_only=True)  # reads no tensor's elements
    except pickle.UnpicklingError as error:
        what = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            "checkpoint: latest() could not load this state; use tensors, numbers, texts, dicts, lists and tuples"
            + (f", not {what[1]}" if what else "")
        ) from error
    return content
