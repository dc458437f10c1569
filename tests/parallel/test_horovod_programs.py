"""What programs for Horovod ask for in other ways than by a call."""

import pytest
from jobs import run_script

import sirtaki
import sirtaki.torch as hvd

TWO_JOBS = """
import sirtaki
for job in range(2):
    sirtaki.init()
    sirtaki.shutdown()
"""


@pytest.mark.parametrize("variable", ["HOROVOD_TIMELINE", "SIRTAKI_TIMELINE"])
def test_timeline_in_the_environment_is_answered_once(variable):
    ended = run_script(2, TWO_JOBS, extra={variable: "trace.json"})
    assert ended.code == 0, ended.output
    assert ended.output.count(f"{variable}=trace.json is without effect: the timeline is not available yet") == 1
    ended = run_script(2, TWO_JOBS)
    assert ended.code == 0 and "timeline" not in ended.output


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
