"""send and recv of a torch group."""

from __future__ import annotations

from sirtaki.checks.arguments import checked_tag
from sirtaki.checks.call_site import call_site
from sirtaki.native import core
from sirtaki.torch.ops.tensors import HOST, describe
from sirtaki.torch.process_group.collectives import Collectives
from sirtaki.torch.process_group.memory import Tensors, dense_memory
from sirtaki.torch.process_group.work import Work


class Transfers(Collectives):
    """Sends and receives of two ranks match in their order, for each tag. They have no name."""

    def send(self, tensors: Tensors, receiver: int, tag: int = 0) -> Work:
        """receiver: a rank of the group. The work is done when the receiver has the tensor."""
        return self._transfer("send", tensors, receiver, tag)

    def recv(self, tensors: Tensors, sender: int, tag: int = 0) -> Work:
        return self._transfer("receive", tensors, sender, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        raise NotImplementedError("Sirtaki has no recv from any rank: give recv() the rank of the sender as src")

    def _transfer(self, verb: str, tensors: Tensors, peer: int, tag: int) -> Work:
        self._require_open()
        (tensor,) = tensors
        if not 0 <= peer < self._size:
            raise ValueError(f"the other rank must be one of the group, 0 to {self._size - 1}, got {peer!r}")
        if not tensor.is_cpu:
            raise NotImplementedError(f"Sirtaki sends and receives host memory only, got a tensor on {tensor.device}")
        dense, step = dense_memory([tensor])
        receives = verb == "receive"
        work = core.submit(
            core.VERBS[verb],
            "",
            [describe(dense[0], dense[0] if receives else None)],
            root=self._members[peer],
            tag=checked_tag(tag),
            process_set=self._process_set,
            site=call_site(),
            keep=dense,
        )
        return Work(work, HOST, tensors, step if receives else None, None, lambda: None)
