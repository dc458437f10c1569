"""Makes all ranks start with the root's model and optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sirtaki import exchange
from sirtaki.checks.arguments import checked_root
from sirtaki.keras import backends, generations
from sirtaki.keras.attachment import attachment_of
from sirtaki.keras.distributed import is_distributed
from sirtaki.keras.functions import broadcast_variables
from sirtaki.keras.generations import keras
from sirtaki.process_sets import ProcessSet, global_process_set, require_id


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives every rank the root's weights and optimizer state when training begins.

    If any rank's model is built only by its first batch, the broadcast happens while that batch's step is compiled,
    before it runs. Two cases are later: no distributed optimizer is compiled with the step (run_eagerly=True on
    TensorFlow, a tape of your own), or the step itself makes the variables (a Sequential without an Input on
    TensorFlow). Then the broadcast follows the first batch, whose gradients are those of unequal weights: build the
    model before. local_variables: variables that each rank keeps (see DistributedOptimizer's register_local_var).
    device: ignored; Horovod's programs pass it. ValueError on every rank if the ranks would train different numbers of
    batches in an epoch, since some would wait for ever.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self.root_rank = checked_root(root_rank)
        self.process_set = process_set
        self.broadcast_done = False
        self._local = {id(generations.load().storage(variable)) for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Each rank keeps its own value of this variable."""
        self._local.add(id(generations.load().storage(var)))

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        steps, built = self.params.get("steps"), bool(self.model.built)
        all_built = check_same_steps(steps, built, require_id(self.process_set))
        if self.broadcast_done:
            return
        if all_built:
            self._broadcast()
        elif is_distributed(getattr(self.model, "optimizer", None)):
            attachment_of(self.model.optimizer).before_first_step = self._broadcast_if_there

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._broadcast()

    def _broadcast_if_there(self) -> None:
        """Not while a rank's variables have no values, as on TensorFlow before the step is compiled."""
        there = backends.load().have_values(self.model.weights)
        if all(exchange.allgather_object(there, "keras.values", require_id(self.process_set))):
            self._broadcast()

    def _broadcast(self) -> None:
        if self.broadcast_done:
            return
        variables = list(self.model.weights)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            generation = generations.load()
            generation.build(optimizer, self.model.trainable_variables)
            variables += generation.variables_of(optimizer)
        kept = [variable for variable in variables if id(generations.load().storage(variable)) not in self._local]
        broadcast_variables(kept, self.root_rank, self.process_set)
        self.broadcast_done = True


def check_same_steps(steps: int | None, built: bool, group: int) -> bool:
    """Whether all ranks have built their models. A resumed rank has, others may not.

    ValueError on every rank if the ranks would train different numbers of batches. steps: None if unknown.
    """
    by_rank = exchange.allgather_object((steps, built), "keras.beginning", group)
    parts = [part for part, _ in by_rank]
    if len({part for part in parts if part is not None}) > 1:
        raise ValueError(
            f"the ranks would train different numbers of batches in an epoch: {parts} by rank. Every rank must train "
            f"as many as the others: give fit() steps_per_epoch={min(part for part in parts if part is not None)}, or "
            "divide the data into equal parts"
        )
    return all(other for _, other in by_rank)
