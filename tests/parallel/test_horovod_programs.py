"""What programs for Horovod ask for in other ways than by a call."""

import pytest

import sirtaki
import sirtaki.torch as hvd


def test_check_extension():
    arguments = ("HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    for name in ("horovod.torch", "sirtaki.torch"):
        assert sirtaki.check_extension(name, *arguments) is hvd.check_extension(name, *arguments) is None
    with pytest.raises(ImportError, match=r"'horovod\.mxnet': Sirtaki has no adapter"):
        hvd.check_extension("horovod.mxnet", *arguments)
