"""Names of calls. Other arguments are checked by the functions for all frameworks."""

from __future__ import annotations

import torch

from sirtaki.checks.arguments import checked_name, checked_root, reduction
from sirtaki.checks.call_numbers import next_number

__all__ = ["checked_root", "names", "reduction"]


def names(verb: str, name: str | None, process_set: int) -> tuple[str, str]:
    """(name of the call, name of its gradient's call), both without the verb.

    The gradient's name is made from the forward call's name. So backward may run in another order on each rank. In a
    compiled graph an unnamed call and its gradient stay unnamed: the graph is traced once but runs many times.
    """
    if name is not None:
        if not torch.compiler.is_compiling():
            checked_name(name)
        return name, f"{name}.grad"
    if torch.compiler.is_compiling():
        return "", ""
    return "", f"noname.{next_number(verb, process_set)}.grad"
