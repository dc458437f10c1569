"""DistributedOptimizer: the user's optimizer, whose gradients are reduced over the ranks before they are applied."""

from __future__ import annotations

from typing import Any

import keras
from keras.src import api_export
from keras.src.saving import object_registration

from sirtaki.arguments import Groups, checked_groups
from sirtaki.keras import backends, hooks
from sirtaki.keras.attachment import Attachment, attach, attachment_of
from sirtaki.keras.options import Options, checked_options
from sirtaki.keras.steps import OUTER, AveragedOutside, AveragedSteps, is_distributed
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average

_classes: dict[tuple[type, type, Options], type] = {}


def _steps_for(optimizer: Any) -> type:
    return AveragedOutside if isinstance(optimizer, OUTER) else AveragedSteps


def _distributed_class(steps: type, wrapped: type, options: Options) -> type:
    """A subclass of the wrapped class with its name. One for each wrapped class and options, whatever is wrapped."""
    key = (steps, wrapped, options)
    if key not in _classes:
        content = {"__doc__": wrapped.__doc__, "__module__": wrapped.__module__, "__qualname__": wrapped.__qualname__}
        made = type(wrapped.__name__, (steps, wrapped), {**content, "_sirtaki_options": options})
        _save_as(made, wrapped)
        _classes[key] = made
    return _classes[key]


def _save_as(made: type, wrapped: type) -> None:
    """Files name the wrapped class, so that they open without this package."""
    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if wrapped in names:
            names[made] = names[wrapped]


def wrapped_class(optimizer: Any) -> type:
    """The class of an optimizer without what makes it distributed."""
    return next(cls for cls in type(optimizer).__mro__ if not _is_ours(cls))


def _is_ours(cls: type) -> bool:
    return "_sirtaki_options" in cls.__dict__ or cls.__module__.startswith("sirtaki.keras")


def convert(optimizer: Any, attachment: Attachment) -> Any:
    """Changes the optimizer's class in place, so that references to it stay good."""
    hooks.install()
    wrapped = wrapped_class(optimizer)
    made = _distributed_class(_steps_for(optimizer), wrapped, attachment.options)
    object.__setattr__(optimizer, "__class__", made)
    attach(optimizer, attachment)
    return optimizer


def convert_outer(outer: Any, inner: Any) -> None:
    """Distributes an optimizer that was put around a distributed one, as that one is."""
    given = attachment_of(inner)
    attachment = Attachment(given.options, given.groups)
    attachment.local = given.local  # one set: variables may be registered later, with either
    convert(outer, attachment)


def _set_passes(optimizer: Any, options: Options) -> None:
    """Keras accumulates gradients itself; the passes become its steps of accumulation."""
    passes = options.backward_passes_per_step
    before = attachment_of(optimizer).options.backward_passes_per_step if is_distributed(optimizer) else 1
    if passes == before:
        return
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is None and isinstance(optimizer, OUTER):
        raise ValueError(
            f"backward_passes_per_step={passes} does not work with {type(optimizer).__name__}; give its optimizers "
            f"gradient_accumulation_steps={passes}"
        )
    target = optimizer if inner is None else inner
    given = target.gradient_accumulation_steps
    if before == 1 and given == passes:
        return  # a loaded optimizer accumulates already
    if before == 1 and given:
        raise ValueError(
            f"give backward_passes_per_step or gradient_accumulation_steps, not both; got {passes} and {given}"
        )
    if target.built:
        raise ValueError(
            f"backward_passes_per_step={passes} needs an optimizer that has not made its variables yet, for Keras adds "
            "those that accumulate when it makes the others; wrap a new optimizer"
        )
    target.gradient_accumulation_steps = passes if passes > 1 else None


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes the Keras optimizer reduce its gradients over the ranks of the process set, and returns it.

    The same object comes back: its class becomes a subclass of its own class with the same name, so that configuration,
    slots, schedules and references stay good, and saved files open without this package. Gradients are reduced once
    for each update, after accumulation and before clipping, whichever way they are applied.

    name: stands before the reductions' names in messages. device_dense, device_sparse: kept for Horovod's programs.
    compression: None is Compression.none. sparse_as_dense: turns IndexedSlices into dense gradients first.
    gradient_predivide_factor: with Average, divides by it before and by size / factor after the sum. op: Average or
    Sum. backward_passes_per_step: calls of apply() whose gradients are summed (average_aggregated_gradients: averaged)
    for one update; it becomes Keras's gradient_accumulation_steps. groups: a number of groups, or lists of variables,
    that are reduced as one unit. scale_local_gradients: gradients of variables given to register_local_var() are
    divided by the number of ranks.
    A rank outside the process set reduces nothing. Before init, and for wrong arguments: ValueError with the value.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(
            f"optimizer must be a keras.optimizers.Optimizer, got {type(optimizer).__name__} {optimizer!r:.80}"
        )
    core.size()  # ValueError before init
    group_count, grouped = checked_groups(num_groups, groups)
    options = checked_options(
        name,
        backends.load().Compression.none if compression is None else compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        group_count,
        process_set,
        scale_local_gradients,
    )
    _set_passes(optimizer, options)
    attachment = Attachment(options, [[optimizer._var_key(variable) for variable in group] for group in grouped])
    if is_distributed(optimizer):  # the new options replace the old
        attachment.local = attachment_of(optimizer).local
    return convert(optimizer, attachment)
