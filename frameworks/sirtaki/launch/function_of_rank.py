"""The program of a rank that `sirtaki.run` has started."""

import os
import sys

from sirtaki import launchers
from sirtaki.launch import function

if __name__ == "__main__":
    sys.exit(function.serve_rank(os.environ.pop(function.VARIABLE), launchers.announced_rank() or 0))
