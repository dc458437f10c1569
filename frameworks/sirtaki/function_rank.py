"""The program of a rank that `sirtaki.run` has started."""

import sys

from sirtaki import function_job, launchers

if __name__ == "__main__":
    sys.exit(function_job.serve_rank(launchers.announced_rank() or 0))
