"""Fingerprints by which ranks find out what of an elastic state they need not send."""

import numpy as np
import pytest
import torch

from sirtaki.elastic import fingerprints
from sirtaki.torch.elastic.fingerprint import of_state, of_tensor


@pytest.mark.parametrize("size", [0, 1, 7, fingerprints.BLOCK, 3 * fingerprints.BLOCK + 5])
def test_every_byte_counts(size: int) -> None:
    data = np.arange(size, dtype=np.uint32).astype(np.uint8)
    first = fingerprints.of_array(data)
    assert first == fingerprints.of_array(data.copy())
    for place in {0, size // 2, size - 1} if size else ():
        data[place] ^= 1
        assert fingerprints.of_array(data) != first
        data[place] ^= 1


def test_two_changes_do_not_cancel_out() -> None:
    words = np.arange(4 * fingerprints.COLUMNS)
    first = fingerprints.of_array(words)
    for other in (1, fingerprints.COLUMNS, 2 * fingerprints.COLUMNS + 3):
        changed = words.copy()
        changed[0] += 5
        changed[other] -= 5
        assert fingerprints.of_array(changed) != first


def test_tensors_of_all_kinds() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64):
        tensor = torch.ones(3, 5).to(dtype)
        assert of_tensor(tensor) == of_tensor(tensor.clone())
        assert of_tensor(tensor) != of_tensor(tensor.T)
    wide = torch.randn(2, 3, 4, 5)
    assert of_tensor(wide) == of_tensor(wide.to(memory_format=torch.channels_last)), "the values are the same"
    sparse = torch.eye(3).to_sparse()
    assert of_tensor(sparse) != of_tensor(sparse), "it is always sent"


def test_the_state_of_an_optimizer() -> None:
    def made(rate: float) -> dict:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), rate)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return optimizer.state_dict()

    assert of_state(made(0.1)) == of_state(made(0.1)) != of_state(made(0.2))
    assert of_state({"x": lambda: 0}) != of_state({"x": lambda: 0}), "it cannot be pickled"
