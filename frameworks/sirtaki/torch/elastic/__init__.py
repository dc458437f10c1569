"""Elastic training for PyTorch: `hvd.elastic.run`, `hvd.elastic.TorchState` and `hvd.elastic.ElasticSampler`."""

from sirtaki.elastic.run import run
from sirtaki.elastic.state import ObjectState, State
from sirtaki.torch.elastic.handlers import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from sirtaki.torch.elastic.sampler import ElasticSampler
from sirtaki.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "run",
    "set_handler_registry",
]
