"""Started by mpiexec for each rank, by its path and without site-packages; see worker.py.

Only the package `launch` is loaded from here, not `sirtaki` around it, whose frameworks a worker has no use for.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from launch.worker import main

    main(sys.argv[1])
