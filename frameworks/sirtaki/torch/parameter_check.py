"""SIRTAKI_CHECK_PARAMETERS=N: every N steps the ranks compare their parameters, to find the first that has drifted."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence

import torch

from sirtaki.exceptions import SirtakiInternalError
from sirtaki.exchange import allgather_bytes
from sirtaki.torch.optimizer_options import Options

VARIABLE = "SIRTAKI_CHECK_PARAMETERS"


def checksum(tensor: torch.Tensor) -> int:
    """CRC-32 of the values' bytes, whatever their layout in memory."""
    dense = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(dense.view(torch.uint8).numpy()) if dense.numel() else 0


class ParameterCheck:
    """Counts the steps of one optimizer."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._steps = 0

    @classmethod
    def from_environment(cls) -> ParameterCheck | None:
        """None unless the variable holds a number above 0; ValueError if it holds anything else."""
        text = os.environ.get(VARIABLE, "0").strip() or "0"
        if not text.isdigit():
            raise ValueError(f"{VARIABLE} must be a number of steps, got {text!r}")
        return cls(int(text)) if int(text) else None

    def after_step(self, parameters: Sequence[torch.Tensor], options: Options) -> None:
        """Raises SirtakiInternalError on every rank, naming the first parameter whose bits differ and its checksums."""
        self._steps += 1
        if self._steps % self._every:
            return
        own = json.dumps([checksum(parameter) for parameter in parameters]).encode()
        parts = allgather_bytes(own, "parameter_check", options.process_set.process_set_id or 0)
        by_rank = [json.loads(part) for part in parts]
        for number, sums in enumerate(zip(*by_rank, strict=True)):
            if len(set(sums)) > 1:
                shape = tuple(parameters[number].shape)
                raise SirtakiInternalError(
                    f"after step {self._steps} the parameter {options.name_of(number)} of shape {shape} is not the "
                    f"same on all ranks; checksums by rank: {list(sums)}"
                )
