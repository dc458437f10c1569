"""DistributedOptimizer: reduces the gradients of the user's optimizer over the ranks before it applies them."""

from __future__ import annotations

from typing import Any

from sirtaki import settings
from sirtaki.checks.arguments import Groups, check_devices, checked_flag, checked_groups
from sirtaki.compression import Compressor, NoneCompressor
from sirtaki.keras import generations
from sirtaki.keras.attachment import Attachment, attach, attachment_of, checked_key
from sirtaki.keras.distributed import is_distributed
from sirtaki.keras.options import Options, checked_options
from sirtaki.native import core
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Average

_classes: dict[tuple[type, type, Options], type] = {}


def _distributed_class(steps: type, wrapped: type, options: Options) -> type:
    """A subclass of the wrapped class with its name; one for each pair of wrapped class and options."""
    key = (steps, wrapped, options)
    if key not in _classes:
        content = {"__doc__": wrapped.__doc__, "__module__": wrapped.__module__, "__qualname__": wrapped.__qualname__}
        made = type(wrapped.__name__, (steps, wrapped), {**content, "_sirtaki_options": options})
        generations.load().save_as(made, wrapped)
        _classes[key] = made
    return _classes[key]


def wrapped_class(optimizer: Any) -> type:
    """The optimizer's class before it was distributed."""
    return next(cls for cls in type(optimizer).__mro__ if not _is_ours(cls))


def _is_ours(cls: type) -> bool:
    return "_sirtaki_options" in cls.__dict__ or cls.__module__.startswith("sirtaki.keras")


def convert(optimizer: Any, attachment: Attachment) -> Any:
    """Changes the optimizer's class in place, so that references to it stay valid."""
    generation = generations.load()
    generation.install_hooks()
    wrapped = wrapped_class(optimizer)
    made = _distributed_class(generation.steps_for(optimizer, attachment.options), wrapped, attachment.options)
    object.__setattr__(optimizer, "__class__", made)
    attach(optimizer, attachment)
    return optimizer


def convert_outer(outer: Any, inner: Any) -> None:
    """Distributes an optimizer that wraps a distributed one, with the same options."""
    given = attachment_of(inner)
    if given.options.sharded:
        generations.load().check_can_shard(outer, type(outer))
    attachment = Attachment(given.options, given.groups)
    attachment.local = given.local  # a shared set: variables may be registered later, with either optimizer
    convert(outer, attachment)


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: Groups = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    shard_optimizer_state: bool = False,
) -> Any:
    """Makes the Keras optimizer reduce its gradients over the ranks of the process set, and returns it.

    The same object is returned. Its class becomes a subclass of its own class with the same name. So configuration,
    slots, schedules and references stay valid, and saved files open without this package. Gradients are reduced once
    for each update, after accumulation and before clipping, whichever way they are applied.

    name: prefix of the reductions' names in messages. device_dense, device_sparse: ignored; Horovod's programs pass
    them. compression: Compression.none, fp16 or bf16. sparse_as_dense: turns IndexedSlices into dense gradients first.
    gradient_predivide_factor: with Average, divides by it before and by size / factor after the sum. op: Average or
    Sum. backward_passes_per_step: sums the gradients of that many calls of apply() (average_aggregated_gradients:
    averages) for one update; it becomes Keras's gradient_accumulation_steps. groups: a number of groups, or lists of
    variables; each group is one request. scale_local_gradients: divides the gradients of variables given to
    register_local_var() by the number of ranks. shard_optimizer_state: each rank keeps an N-th of the state; for
    elementwise optimizers of Keras 3 (sharded_optimizer.md says what changes).

    A rank outside the process set reduces nothing. Before init, and for wrong arguments: ValueError with the value. The
    order of arguments is that of horovod.keras; sirtaki.tensorflow.keras has that of horovod.tensorflow.keras.

    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1 * hvd.size())), loss="mse")
    >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
    >>> history = model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=callbacks)
    """
    return distributed(**locals())


def distributed(
    optimizer: Any,
    *,
    name: str | None,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    num_groups: int,
    groups: Groups,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    shard_optimizer_state: bool = False,
) -> Any:
    """What DistributedOptimizer does, for each order of its arguments."""
    checked_flag("shard_optimizer_state", shard_optimizer_state)
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    generation = generations.load()
    if not isinstance(optimizer, generation.Optimizer):
        raise ValueError(
            f"optimizer must be a keras.optimizers.Optimizer, got {type(optimizer).__name__} {optimizer!r:.80}"
            + generations.advice_for(optimizer)
        )
    core.size()  # ValueError before init
    group_count, grouped = checked_groups(num_groups, groups)
    options = checked_options(
        name,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        group_count,
        process_set,
        scale_local_gradients,
        shard_optimizer_state,
    )
    if shard_optimizer_state:
        _check_can_shard(optimizer, group_count or grouped)
    generation.set_passes(optimizer, options)
    attachment = Attachment(options, [[checked_key(optimizer, variable) for variable in group] for group in grouped])
    if is_distributed(optimizer):  # the new options replace the old
        attachment.local = attachment_of(optimizer).local
    convert(optimizer, attachment)
    if shard_optimizer_state:
        generation.divide_state(optimizer)
    return optimizer


def _check_can_shard(optimizer: Any, groups: Any) -> None:
    if groups:
        raise ValueError("shard_optimizer_state=True does not work with groups: it reduces each gradient by itself")
    if is_distributed(optimizer):
        raise ValueError("shard_optimizer_state=True needs an optimizer that is not distributed yet")
    if settings.flag("ELASTIC"):
        raise ValueError(
            "shard_optimizer_state=True does not work in an elastic job: the part of a rank that dies would be lost"
        )
    generations.load().check_can_shard(optimizer, wrapped_class(optimizer))


def PartialDistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = NoneCompressor,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    num_groups: int = 0,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
) -> Any:
    """DistributedOptimizer that does not reduce the gradients of some layers' weights.

    local_layers: a layer or a list of layers, already built so that their weights are known; else ValueError.
    """
    arguments = dict(locals())
    layers = _checked_layers(arguments.pop("local_layers"))
    made = distributed(**arguments)
    for layer in layers:
        for variable in layer.trainable_weights:
            made.register_local_var(variable)
    return made


def _checked_layers(layers: Any) -> list[Any]:
    listed = [] if layers is None else list(layers) if isinstance(layers, (list, tuple)) else [layers]
    for layer in listed:
        if not isinstance(layer, generations.keras.layers.Layer):
            raise ValueError(f"local_layers must hold Keras layers, got {type(layer).__name__} {layer!r:.80}")
        if not layer.built:
            raise ValueError(f"the local layer {layer.name!r} has not been built, so that its weights are not known")
    return listed
