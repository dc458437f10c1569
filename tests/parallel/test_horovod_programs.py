"""What programs for Horovod ask for in other ways than by a call."""

import pytest

import sirtaki
import sirtaki.torch as hvd


def test_elastic_is_refused():
    for name in ("run", "TorchState", "ElasticSampler"):
        with pytest.raises(NotImplementedError, match=rf"sirtaki\.torch\.elastic\.{name}: elastic training is not"):
            getattr(hvd.elastic, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = hvd.elastic.other


def test_check_extension():
    arguments = ("HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    for name in ("horovod.torch", "sirtaki.torch"):
        assert sirtaki.check_extension(name, *arguments) is hvd.check_extension(name, *arguments) is None
    with pytest.raises(ImportError, match=r"'horovod\.mxnet': Sirtaki has no adapter"):
        hvd.check_extension("horovod.mxnet", *arguments)
