"""Whether an optimizer computes each element by itself, so that a rank can update its pieces alone."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch

_ELEMENTWISE = (
    *("Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
)
_KNOWN = {getattr(torch.optim, name) for name in _ELEMENTWISE if hasattr(torch.optim, name)}
_REFUSED = {
    "adafactor": "it factors the second moment of a matrix by rows and columns",
    "kfac": "it uses whole matrices",
    "lamb": "it scales by the norm of the whole parameter",
    "lars": "it scales by the norm of the whole parameter",
    "lbfgs": "it uses products over all parameters",
    "muon": "it orthogonalizes whole matrices",
    "shampoo": "it uses whole matrices",
    "soap": "it uses whole matrices",
    "sparseadam": "it takes sparse gradients",
}
_STEPS = 3


def check_elementwise(optimizer: torch.optim.Optimizer, kind: type) -> None:
    """ValueError, with the reason, unless optimizers of this kind are elementwise, as known or as a trial shows."""
    if kind in _KNOWN:
        return
    for base in kind.__mro__:
        reason = _REFUSED.get(base.__name__.lower())
        if reason is not None:
            raise ValueError(
                f"shard_optimizer_state=True needs an elementwise optimizer, got {kind.__name__}: {reason}"
            )
    why_not = _try(optimizer, kind)
    if why_not:
        raise ValueError(
            f"shard_optimizer_state=True needs an elementwise optimizer, got {kind.__name__}: {why_not}. A step on "
            "pieces of a parameter must give the same as a step on the whole parameter"
        )


def _try(optimizer: torch.optim.Optimizer, kind: type) -> str:
    """Steps on a small matrix, and on its two halves in turns, as buckets take them. "" if the results are equal."""
    device = next((p.device for group in optimizer.param_groups for p in group["params"]), torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(8, 32, generator=generator).to(device)
    gradients = [torch.randn(8, 32, generator=generator).to(device) for _ in range(_STEPS)]
    for group in optimizer.param_groups:
        whole, halves = start.clone(), [half.clone() for half in start.view(2, 128)]
        try:
            _step(_trial(optimizer, kind, group, [whole]), [whole], gradients)
            trial = _trial(optimizer, kind, group, halves)
            for gradient in gradients:
                for number, half in enumerate(halves):
                    trial.param_groups[0]["params"] = [half]
                    _step(trial, [half], [gradient.view(2, 128)[number]])
        except Exception as error:
            return f"a trial step failed with {type(error).__name__}: {error}"
        if not torch.equal(whole.view(2, 128), torch.stack(halves)):
            return "a trial step on two halves of a parameter gave another result than on the whole"
    return ""


def _trial(optimizer: torch.optim.Optimizer, kind: type, group: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
    """A copy of the optimizer with these parameters, and without state."""
    trial: Any = object.__new__(kind)
    trial.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    trial.state = defaultdict(dict)
    options = {key: copy.copy(value) for key, value in group.items() if key != "params"}
    trial.param_groups = [{**options, "params": tensors}]
    return trial


def _step(trial: Any, tensors: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        for tensor in tensors:
            tensor.grad = gradient.clone()
        trial.step()
