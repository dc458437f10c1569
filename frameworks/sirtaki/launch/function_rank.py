"""The program of a rank in a job of `sirtaki.run`."""

import sys

from sirtaki import starters
from sirtaki.launch import function_job

if __name__ == "__main__":
    sys.exit(function_job.serve_rank(starters.announced_rank() or 0))
