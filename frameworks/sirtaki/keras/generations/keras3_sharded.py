"""The class in front of the user's class if `shard_optimizer_state=True`: each rank keeps an N-th of the state.

Keras makes an optimizer's state for the variables that build() gets, and updates those that apply() gets. Here both
get pieces: flat variables with an N-th of each variable's elements. Gradients are scattered, and the updated pieces
gathered into the model's variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from sirtaki.keras import backends
from sirtaki.keras.agreement import SPARSE
from sirtaki.keras.attachment import Attachment, attachment_of, compare_ranks, complete, sums_of_passes
from sirtaki.keras.generations.keras3_steps import OUTER, Distributed3
from sirtaki.reduce_ops import Sum

_ALIGNMENT = 16  # elements: loops over vectors divide a piece as they divide the whole, so that the bits are equal
_FLAG = "shard_optimizer_state=True"


class Piece:
    """This rank's part of one variable: an N-th of the elements in the order of memory, rounded up, padded with zeros.

    variable: holds the part during a step, and is what the wrapped class trains.
    """

    def __init__(self, whole: Any, rank: int, size: int) -> None:
        self.whole = whole
        self.shape = tuple(int(length) for length in whole.shape)
        self.count = math.prod(self.shape)
        self.length = -(-self.count // (size * _ALIGNMENT)) * _ALIGNMENT
        self.begin = rank * self.length
        self.padding = size * self.length - self.count
        zeros = keras.initializers.Zeros()
        name = whole.name.replace("/", "_").replace(":", "_")  # of a tf.Variable, Keras would refuse it
        self.variable = keras.Variable(zeros, shape=(self.length,), dtype=whole.dtype, trainable=False, name=name)

    def padded(self, value: Any) -> Any:
        """The value of the variable's shape as one row of all ranks' pieces."""
        row = ops.reshape(value, (self.count,))
        return ops.pad(row, [(0, self.padding)]) if self.padding else row

    def part(self, value: Any) -> Any:
        """This rank's piece of a value of the variable's shape."""
        return self.padded(value)[self.begin : self.begin + self.length]

    def joined(self, row: Any) -> Any:
        """The value of the variable's shape, from all ranks' pieces."""
        return ops.reshape(row[: self.count] if self.padding else row, self.shape)


class Pieces:
    """Those of one optimizer, in the order of the model's variables."""

    def __init__(self, variables: Iterable[Any], rank: int, size: int, key_of: Callable[[Any], Hashable]) -> None:
        """key_of: by which the optimizer distinguishes variables."""
        self.rank, self.size = rank, size
        self.all = [Piece(variable, rank, size) for variable in variables]
        self.by_whole = {id(piece.whole): piece for piece in self.all}
        self.by_key = {key_of(piece.variable): piece for piece in self.all}
        self.of_state: dict[int, Piece] = {}  # by the id of a variable of the optimizer's state

    def of(self, variable: Any) -> Piece:
        """That of a variable of the model. ValueError for one that is new."""
        found = self.by_whole.get(id(variable))
        if found is None:
            raise ValueError(
                f"the optimizer was built without the variable {getattr(variable, 'path', variable)!r:.80}, so it has "
                "no state for it; make a new optimizer for other variables"
            )
        return found


class ShardedSteps(Distributed3):
    """For elementwise optimizers that use BaseOptimizer.apply."""

    def __reduce__(self) -> Any:
        raise RuntimeError(
            f"a {type(self).__name__} with {_FLAG} cannot be copied or pickled: the copy would have the state of one "
            "rank only. Save the model on every rank instead"
        )

    def register_local_var(self, var: Any) -> None:
        raise ValueError(f"{_FLAG} does not work with local variables, whose gradients no other rank has")

    def build(self, variables: Sequence[Any]) -> None:
        if getattr(self, "built", False):
            return
        attachment = attachment_of(self)
        for variable in variables:
            if self._overwrite_variable_with_gradient(variable):
                raise ValueError(f"{_FLAG} does not work with 8-bit floats, as {variable.path!r} has their scale")
        rank, size = _rank_and_size(attachment)
        attachment.pieces = Pieces(variables, rank, size, self._var_key)
        super().build([piece.variable for piece in attachment.pieces.all])

    def add_variable_from_reference(self, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        made = super().add_variable_from_reference(reference_variable, *args, **kwargs)
        pieces = attachment_of(self).pieces
        pieces.of_state[id(made)] = pieces.by_key[self._var_key(reference_variable)]
        return made

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """The wrapped class's apply() of this rank's pieces. The model's variables have the result on every rank."""
        attachment, grads = attachment_of(self), list(grads)
        peers = attachment.begin()
        if trainable_variables is None and self.built:
            trainable_variables = [piece.whole for piece in attachment.pieces.all]
        variables = self._variables_of(grads, trainable_variables)
        if variables is None:
            return None
        if not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(variables)
        self._require_same_ranks()
        if peers:
            grads = complete(self, grads, variables)
        pieces = [attachment.pieces.of(variable) for variable in variables]
        used = [i for i, grad in enumerate(grads) if grad is not None]
        parts = _scattered(attachment, {i: _dense(attachment, grads[i], variables[i]) for i in used}, pieces)
        for i in used:
            pieces[i].variable.assign(pieces[i].part(ops.convert_to_tensor(variables[i])))  # the program may write, too
        result = super().apply([parts.get(i) for i in range(len(grads))], [piece.variable for piece in pieces])
        for i, whole in _gathered(attachment, {i: pieces[i] for i in used}).items():
            constraint = getattr(variables[i], "constraint", None)
            variables[i].assign(whole if constraint is None else constraint(whole))
        compare_ranks(self, variables)
        return result

    def _clip_gradients(self, grads: Sequence[Any]) -> Any:
        """By norms of whole gradients, whose squares the ranks add up."""
        grads = sums_of_passes(self, grads)
        limit = self.clipnorm or self.global_clipnorm
        if not limit or limit <= 0:
            return super()._clip_gradients(grads)
        squares = ops.stack([ops.sum(ops.square(ops.cast(grad, "float32"))) for grad in grads])
        attachment = attachment_of(self)
        if attachment.pieces.size > 1:
            name = f"{_prefix(attachment)}.norms"
            squares = backends.load().allreduce(squares, name=name, op=Sum, process_set=attachment.options.process_set)
        norms = ops.sqrt(squares if self.clipnorm else ops.broadcast_to(ops.sum(squares), squares.shape))
        factors = limit / ops.maximum(norms, limit)
        return [grad * ops.cast(factors[i], grad.dtype) for i, grad in enumerate(grads)]

    def _use_weight_decay(self, variable: Any) -> bool:
        return super()._use_weight_decay(attachment_of(self).pieces.by_key[self._var_key(variable)].whole)

    def _require_same_ranks(self) -> None:
        pieces = attachment_of(self).pieces
        now = _rank_and_size(attachment_of(self))
        if now != (pieces.rank, pieces.size):
            raise RuntimeError(
                f"the state of this {type(self).__name__} was divided for rank {pieces.rank} of {pieces.size}, but "
                f"this is rank {now[0]} of {now[1]} now. Save the model before, and load it into a new optimizer"
            )

    def save_own_variables(self, store: Any) -> None:
        """The whole state, as the plain optimizer saves it. Every rank must save at the same time."""
        attachment = attachment_of(self)
        for i, variable in enumerate(self.variables):
            store[str(i)] = ops.convert_to_numpy(_whole_state(attachment, variable, i))

    def load_own_variables(self, store: Any) -> None:
        """Takes this rank's part of the state that a plain or a sharded optimizer has saved on any number of ranks."""
        pieces = attachment_of(self).pieces
        if len(store.keys()) != len(self.variables) or pieces is None:
            return super().load_own_variables(store)  # warns
        for i, variable in enumerate(self.variables):
            value, piece = np.asarray(store[str(i)]), pieces.of_state.get(id(variable))
            if piece is not None and value.shape != piece.shape:
                raise ValueError(
                    f"the saved state of {piece.whole.path!r} has the shape {list(value.shape)}, but the variable has "
                    f"{list(piece.shape)}"
                )
            variable.assign(value if piece is None else piece.part(ops.convert_to_tensor(value)))
        return None


def check_can_shard(optimizer: Any, wrapped: type) -> None:
    """ValueError, with the reason, unless the optimizer's state can be divided."""
    name = type(optimizer).__name__
    if isinstance(optimizer, OUTER):
        raise ValueError(
            f"{_FLAG} does not work with {name}, which chooses by whole gradients what to update; use the policy "
            "mixed_bfloat16, or give each optimizer the flag"
        )
    if optimizer.use_ema:
        raise ValueError(f"{_FLAG} does not work with use_ema=True, whose averages overwrite whole variables")
    if not _is_elementwise(optimizer, wrapped):
        raise ValueError(
            f"{_FLAG} does not work with {name}: a step on two halves of a matrix differs from a step on the whole, "
            "so it is not elementwise"
        )


def _is_elementwise(optimizer: Any, wrapped: Any) -> bool:
    random = np.random.default_rng(0)
    values, gradients = random.standard_normal((2, 4, 32)).astype("float32")

    def stepped(value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        config = {**optimizer.get_config(), "clipnorm": None, "global_clipnorm": None}
        made, variable = wrapped.from_config(config), keras.Variable(value)
        for _ in range(2):
            made.apply([ops.convert_to_tensor(gradient)], [variable])
        return np.asarray(ops.convert_to_numpy(variable)).reshape(-1)

    halves = [stepped(v, g) for v, g in zip(values.reshape(2, 64), gradients.reshape(2, 64), strict=True)]
    return np.allclose(stepped(values, gradients), np.concatenate(halves), rtol=1e-5, atol=1e-7)


def divide_state(optimizer: Any) -> None:
    """Takes this rank's pieces of the state of an optimizer that was built before it was distributed."""
    if not optimizer.built:
        return
    saved: dict[str, Any] = {}
    keras.optimizers.Optimizer.save_own_variables(optimizer, saved)
    for variable in optimizer.variables:
        if variable is not optimizer.iterations and variable is not optimizer._learning_rate:
            optimizer._untrack_variable(variable)
    variables, optimizer._trainable_variables_indices = list(optimizer._trainable_variables), {}
    optimizer.built = False
    with keras.name_scope(optimizer.name, caller=optimizer):
        optimizer.build(variables)
    optimizer.load_own_variables(saved)


def is_piece_of_state(optimizer: Any, variable: Any) -> bool:
    pieces = attachment_of(optimizer).pieces
    return pieces is not None and id(variable) in pieces.of_state


def _rank_and_size(attachment: Attachment) -> tuple[int, int]:
    """(0, 1) for a rank that trains alone."""
    process_set = attachment.options.process_set
    if not attachment.has_peers():
        return 0, 1
    return process_set.rank() or 0, process_set.size() or 1


def _prefix(attachment: Attachment) -> str:
    return f"{attachment.options.name or 'keras'}.sharded"


def _dense(attachment: Attachment, gradient: Any, variable: Any) -> Any:
    backend = backends.load()
    if backend.kind(gradient) == SPARSE and not attachment.options.sparse_as_dense:
        raise ValueError(
            f"the gradient of {getattr(variable, 'path', variable)!r} is sparse, and {_FLAG} cannot divide it by "
            "elements; give DistributedOptimizer sparse_as_dense=True"
        )
    return backend.dense(gradient)


def _scattered(attachment: Attachment, gradients: dict[int, Any], pieces: Sequence[Piece]) -> dict[int, Any]:
    """By position, this rank's pieces of the reduced gradients."""
    rows = {i: pieces[i].padded(gradient) for i, gradient in gradients.items()}
    if attachment.pieces.size == 1 or not rows:
        return rows
    units = _units(attachment, "gradient", rows)
    return _by_position(
        units, backends.load().scatter([(name, list(unit.values())) for name, unit in units], attachment.options)
    )


def _gathered(attachment: Attachment, pieces: dict[int, Piece]) -> dict[int, Any]:
    """By position, the variables' new values."""
    rows = {i: ops.convert_to_tensor(piece.variable) for i, piece in pieces.items()}
    if attachment.pieces.size > 1 and rows:
        units = _units(attachment, "variable", rows)
        parts = [(name, list(unit.values())) for name, unit in units]
        rows = _by_position(units, backends.load().gather(parts, attachment.options))
    return {i: pieces[i].joined(row) for i, row in rows.items()}


Units = list[tuple[str, dict[int, Any]]]


def _units(attachment: Attachment, what: str, rows: dict[int, Any]) -> Units:
    """(name, rows by position) of each request. In a graph each row is alone, as soon as it exists."""
    prefix = f"{_prefix(attachment)}.{what}"
    if not backends.load().in_graph():
        return [(f"{prefix}.{min(rows)}-{max(rows)}", rows)]
    return [(f"{prefix}.{i}", {i: row}) for i, row in rows.items()]


def _by_position(units: Units, results: Sequence[Sequence[Any]]) -> dict[int, Any]:
    return {i: row for (_, unit), rows in zip(units, results, strict=True) for i, row in zip(unit, rows, strict=True)}


def _whole_state(attachment: Attachment, variable: Any, number: int) -> Any:
    piece = attachment.pieces.of_state.get(id(variable)) if attachment.pieces else None
    if piece is None:
        return variable
    row = ops.convert_to_tensor(variable)
    if attachment.pieces.size > 1:
        name = f"{_prefix(attachment)}.state.{number}"
        row = backends.load().allgather(row, name=name, process_set=attachment.options.process_set)
    return piece.joined(row)
