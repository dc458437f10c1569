"""The state that a distributed optimizer adds to its own class, and the reduction of one step's gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from sirtaki import settings
from sirtaki.checks.arguments import equal_parts
from sirtaki.checks.parameter_check import ParameterCheck
from sirtaki.exceptions import SirtakiInternalError
from sirtaki.keras import backends, generations
from sirtaki.keras.agreement import DENSE, NONE, SPARSE, Agreements, agreed_kinds
from sirtaki.keras.options import Options
from sirtaki.native import core
from sirtaki.process_sets import require_id

_KEY = "_sirtaki_attachment"


class Attachment:
    """groups: lists of variables' keys that are reduced as one request. variables: those of the current step."""

    def __init__(self, options: Options, groups: Sequence[Sequence[Hashable]] = ()) -> None:
        self.options = options
        self.groups = [list(group) for group in groups]
        self.local: set[Hashable] = set()
        self.agreements = Agreements()
        self.variables: Sequence[Any] | None = None
        self.reduced = False  # in the current step
        self.applying = False  # Keras 2: while the wrapped class applies gradients
        self.passes: Any = None  # Keras 2: the helper that sums gradients
        self.check = ParameterCheck.from_environment()
        self.before_first_step: Callable[[], None] | None = None
        self.pieces: Any = None  # with shard_optimizer_state, once the optimizer is built
        self.delegated = 0  # above 0 while an outer optimizer has reduced the gradients already

    def __deepcopy__(self, memo: dict[int, Any]) -> Attachment:
        """For copies of Keras 2's legacy optimizers; a copy trains the same variables."""
        other = Attachment(self.options, self.groups)
        other.local = set(self.local)
        return other

    def has_peers(self) -> bool:
        """Whether there is another rank to reduce with, or one may come while compiled steps are used."""
        process_set = self.options.process_set
        if not core.is_initialized() or process_set.included() is False:
            return False
        return (process_set.size() or 1) > 1 or settings.flag("ELASTIC")

    def active(self) -> bool:
        """has_peers() for a step. SirtakiInternalError after shutdown(), ValueError if the process set was removed:
        this rank could no longer reduce with the others.
        """
        if not core.is_initialized():
            raise SirtakiInternalError(
                "Sirtaki is not initialized or has been shut down, so that the gradients of a distributed optimizer "
                "would not be reduced; train before shutdown(), or with an optimizer that is not distributed"
            )
        require_id(self.options.process_set)
        return self.has_peers()

    def begin(self) -> bool:
        """Call it at each step; returns active(). While a graph is traced, runs what is due before the first step, so
        that the first gradients are those of the broadcast values.
        """
        if not self.active():
            backends.load().require_alone(self.options.process_set)
            return False
        if self.before_first_step is not None and backends.load().in_graph():
            todo, self.before_first_step = self.before_first_step, None
            backends.load().run_outside_graph(todo)
        return True

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self.reduced = False
        try:
            yield
        finally:
            self.variables = None

    @contextlib.contextmanager
    def within_outer(self) -> Iterator[None]:
        self.delegated += 1
        try:
            yield
        finally:
            self.delegated -= 1

    def require_reduced(self, optimizer: Any) -> None:
        """RuntimeError if gradients that were not reduced are about to change variables."""
        if self.reduced or self.delegated or not self.active():
            return
        generation = generations.load()
        raise RuntimeError(
            f"{type(optimizer).__module__}.{type(optimizer).__name__} updates variables without passing through "
            f"{generation.REDUCED_IN}, so that its gradients would not be reduced over the ranks. "
            f"{generation.INSTEAD}, or reduce the gradients in train_step() and do not wrap the optimizer"
        )


def attach(optimizer: Any, attachment: Attachment) -> None:
    optimizer.__dict__[_KEY] = attachment  # around the trackers of Keras and TensorFlow: not part of the model's state


def attachment_of(optimizer: Any) -> Attachment:
    """The optimizer's attachment; if it has none, as after from_config(), a new one with the options of its class."""
    found = optimizer.__dict__.get(_KEY)
    if found is None:
        found = Attachment(type(optimizer)._sirtaki_options)
        attach(optimizer, found)
    return found


def key_of(optimizer: Any, variable: Any) -> Hashable:
    """The key by which the optimizer distinguishes variables; Keras 2's legacy optimizers have no method for it."""
    return optimizer._var_key(variable) if hasattr(optimizer, "_var_key") else variable._unique_id


def checked_key(optimizer: Any, variable: Any) -> Hashable:
    """key_of() for a variable that the program names; ValueError if it cannot be a variable with a gradient."""
    if not isinstance(variable, generations.load().Variable):
        raise ValueError(
            f"{type(variable).__name__} {variable!r:.80} is not a variable of Keras, by which optimizers know "
            "gradients; give the layer's own, as layer.kernel"
        )
    return key_of(optimizer, variable)


def complete(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients, with zeros where only other ranks have one; None if no rank has one."""
    attachment, backend = attachment_of(optimizer), backends.load()
    group = attachment.options.process_set.process_set_id or 0
    keys = [key_of(optimizer, variable) for variable in variables]
    shared = [key not in attachment.local for key in keys]
    kinds = [backend.kind(g) if own else NONE for g, own in zip(gradients, shared, strict=True)]
    if attachment.options.sparse_as_dense:
        kinds = [DENSE if kind == SPARSE else kind for kind in kinds]
    if backend.in_graph():
        common = attachment.agreements.of_graph(keys, _names(variables), kinds, group)
    else:
        common = agreed_kinds(kinds, group, lambda: _names(variables))
    result = list(gradients)
    for i, (kind, own) in enumerate(zip(common, shared, strict=True)):
        if own and kind != NONE:
            result[i] = _of_kind(backend, result[i], kind, variables[i])
    return result


def _names(variables: Sequence[Any]) -> list[str]:
    return [getattr(variable, "path", None) or variable.name for variable in variables]


def _of_kind(backend: Any, gradient: Any, kind: int, variable: Any) -> Any:
    if gradient is None:
        return backend.zeros(variable, kind)
    return backend.dense(gradient) if kind == DENSE else gradient


def reduce_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any] | None) -> list[Any]:
    """The gradients, reduced over the ranks as the options say; local ones only scaled. None stays None."""
    attachment, backend = attachment_of(optimizer), backends.load()
    options = attachment.options
    if variables is None and attachment.local:
        raise RuntimeError(
            f"{type(optimizer).__name__} reduces {len(gradients)} gradients whose variables are unknown, so it "
            "cannot leave the gradients of local variables as they are; let its apply() call super().apply()"
        )
    known = variables if variables is not None else [None] * len(gradients)
    keys = [i if variable is None else key_of(optimizer, variable) for i, variable in enumerate(known)]
    result = list(gradients)
    numbers = [i for i, g in enumerate(gradients) if g is not None and keys[i] not in attachment.local]
    place = {i: p for p, i in enumerate(numbers)}
    parts = _units(attachment, numbers, keys, backend.in_graph())
    units = [
        (_name(options, [place[i] for i in part]), [gradients[i] for i in part], [known[i] for i in part])
        for part in parts
    ]
    reduced = [gradient for unit in backend.reduce(units, options) for gradient in unit]
    for i, gradient in zip((i for part in parts for i in part), reduced, strict=True):
        result[i] = gradient
    if options.scale_local_gradients:
        for i, key in enumerate(keys):
            if key in attachment.local and result[i] is not None:
                result[i] = backend.scaled(result[i], 1.0 / (options.process_set.size() or 1))
    attachment.reduced = True
    return sums_of_passes(optimizer, result)


def sums_of_passes(optimizer: Any, gradients: Sequence[Any]) -> list[Any]:
    """Turns averages over backward_passes_per_step into sums, unless averages were asked for."""
    factor = attachment_of(optimizer).options.passes_factor
    if factor == 1:
        return list(gradients)
    return [g if g is None else backends.load().scaled(g, float(factor)) for g in gradients]


def compare_ranks(optimizer: Any, variables: Sequence[Any] | None) -> None:
    """After each step: compares the variables that are not local between ranks, if SIRTAKI_CHECK_PARAMETERS is set."""
    attachment = attachment_of(optimizer)
    if attachment.check is None or not variables or not attachment.active():
        return
    shared = [variable for variable in variables if key_of(optimizer, variable) not in attachment.local]
    backends.load().after_step(attachment.check, shared, attachment.options.process_set.process_set_id or 0)


def _name(options: Options, places: Sequence[int]) -> str:
    """Uses positions among the reduced gradients, which are equal on all ranks. A local variable may have a gradient on
    one rank only, and variables' names count the objects that a process has made.
    """
    numbers = f"{places[0]}" if len(places) == 1 else f"{places[0]}-{places[-1]}"
    return f"{options.name or 'keras'}.gradient.{numbers}"


def _units(attachment: Attachment, numbers: list[int], keys: list[Any], in_graph: bool) -> list[list[int]]:
    """Which gradients form one request: the groups asked for. Without groups, in a graph each gradient alone, as soon
    as it exists. Outside of a graph all gradients, since all exist already.
    """
    if attachment.options.group_count:
        units = equal_parts(numbers, attachment.options.group_count)
    else:
        place = {keys[i]: i for i in numbers}
        units = [[place.pop(key) for key in group if key in place] for group in attachment.groups]
        rest = sorted(place.values())
        units += [[i] for i in rest] if in_graph else [rest]
    return [unit for unit in units if unit]
