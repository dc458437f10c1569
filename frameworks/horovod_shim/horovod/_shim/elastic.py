"""horovod.common.elastic: what the states of all frameworks share."""

from sirtaki.elastic.run import run_fn
from sirtaki.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run_fn"]
