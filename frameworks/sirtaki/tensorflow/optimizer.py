"""DistributedOptimizer for the optimizers of tf.compat.v1; sirtaki.keras handles Keras optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sirtaki.checks.arguments import check_devices, check_unsharded
from sirtaki.checks.parameter_check import ParameterCheck
from sirtaki.process_sets import ProcessSet, global_process_set
from sirtaki.reduce_ops import Adasum, Average
from sirtaki.tensorflow.compression import Compression, Compressor
from sirtaki.tensorflow.gradients.aggregation import LocalGradientAggregationHelper
from sirtaki.tensorflow.gradients.gradient_reducer import GradientReducer
from sirtaki.tensorflow.ops import verbs
from sirtaki.tensorflow.parameter_check import after_step


class _Distributed:
    """The class in front of the optimizer's own class."""

    _reducer: GradientReducer
    _aggregation: LocalGradientAggregationHelper
    _check: ParameterCheck | None
    _computed = False

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The optimizer's compute_gradients(), with the gradients reduced over the ranks."""
        pairs = super().compute_gradients(*args, **kwargs)
        self._computed = True
        if not pairs:
            return pairs
        grads, variables = zip(*pairs, strict=True)
        return list(zip(self._aggregation.compute_gradients(grads, variables), variables, strict=True))

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's apply_gradients(), for the result of compute_gradients().

        RuntimeError for other gradients, which would not be reduced.
        """
        if not self._computed:
            raise RuntimeError(
                "apply_gradients() was called without compute_gradients(), so the gradients are this rank's alone. Use "
                "minimize() or compute_gradients(); or DistributedGradientTape with the optimizer itself."
            )
        self._computed = False
        pairs = list(grads_and_vars)
        apply = functools.partial(super().apply_gradients, pairs, *args, **kwargs)
        step = functools.partial(self._checked, apply, [variable for _, variable in pairs])
        return self._aggregation.apply_gradients(step, [grad for grad, _ in pairs])

    def _checked(self, apply: Callable[[], Any], variables: list[Any]) -> Any:
        """Updates the variables, and compares them between ranks if SIRTAKI_CHECK_PARAMETERS is set."""
        done, group = apply(), self._reducer.how.group
        if self._check is None or verbs.known_size(group) == 1 or not self._reducer.takes_part():
            return done
        shared = [variable for variable in variables if not self._reducer.is_local(variable)]
        with tf.control_dependencies([done] if isinstance(done, (tf.Operation, tf.Tensor)) else []):
            compared = after_step(self._check, shared, group)
        return done if compared is None else tf.group(compared)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.add_local(var)


@functools.cache
def _class_for(base: type) -> type:
    return type(base.__name__, (_Distributed, base), {"__doc__": base.__doc__, "__module__": base.__module__})


def DistributedOptimizer(  # noqa: N802  Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | list[list[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    shard_optimizer_state: bool = False,
) -> Any:
    """An optimizer of the same class and state that reduces gradients over the ranks before it applies them.

    optimizer: a tf.compat.v1.train.Optimizer, which reduces in compute_gradients(), or a Keras optimizer (see
    sirtaki.keras.DistributedOptimizer). backward_passes_per_step: sums the gradients of that many passes (averages, if
    average_aggregated_gradients) before it reduces them. The other arguments are those of DistributedGradientTape.
    shard_optimizer_state: for Keras 3 only. name, use_locking, device_*: ignored; Horovod's programs
    pass them. ValueError for anything else.

    >>> optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.5))
    >>> weight = tf.Variable([2.0])
    >>> optimizer.apply_gradients([(tf.constant([1.0]), weight)])  # doctest: +ELLIPSIS
    <...>
    >>> weight.numpy().tolist()
    [1.5]
    """
    arguments = dict(locals())
    del arguments["use_locking"]
    check_devices(device_dense=device_dense, device_sparse=device_sparse)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        check_unsharded(shard_optimizer_state, optimizer)
        reducer = GradientReducer.make(
            compression,
            sparse_as_dense,
            op,
            gradient_predivide_factor,
            num_groups,
            groups,
            process_set,
            scale_local_gradients,
        )
        return _distribute(optimizer, reducer, backward_passes_per_step, average_aggregated_gradients)
    if not hasattr(optimizer, "apply_gradients"):
        kind = type(optimizer).__name__
        raise ValueError(f"optimizer must be a tf.compat.v1 or Keras optimizer, got {kind} {optimizer!r:.80}")
    if op == Adasum:
        raise ValueError("op=Adasum is not supported with Keras optimizers")
    from sirtaki import keras

    return keras.DistributedOptimizer(**arguments)


def _distribute(optimizer: Any, reducer: GradientReducer, passes: int, average: bool) -> Any:
    if isinstance(optimizer, _Distributed):
        raise ValueError("this optimizer is distributed already; its gradients would be reduced twice")
    helper = LocalGradientAggregationHelper(passes, reducer.reduce, reducer.sparse_as_dense, average)
    kind = _class_for(type(optimizer))
    result = kind.__new__(kind)
    result.__dict__.update(optimizer.__dict__)
    result._reducer, result._aggregation = reducer, helper
    result._check = ParameterCheck.from_environment()
    return result
