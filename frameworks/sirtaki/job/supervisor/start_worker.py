"""mpiexec starts this for each rank, by its path and without site-packages; see worker.py.

The directory of `sirtaki` is last in the path, so that packages beside it do not hide the standard library.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))
    from sirtaki.job.supervisor.worker import main

    main(sys.argv[1])
