"""Horovod's names over Sirtaki: `import horovod.torch as hvd` gives what `import sirtaki.torch as hvd` gives.

ImportError if a Horovod is installed too: this package never takes its place silently.
"""

from horovod._shim import aliases, real_horovod

real_horovod.refuse()
aliases.install()

from sirtaki import run  # noqa: E402

__version__ = "0.28.1"  # the Horovod whose interface this is; programs compare it. Sirtaki's own: sirtaki.__version__
__all__ = ["__version__", "run"]
