"""`horovodrun` is sirtakirun, whose options include Horovod's. It refuses by name the options that it does not know."""

from sirtaki.launch.command import main as run_commandline

__all__ = ["run_commandline"]
