"""ssh or the site's launch agent starts this on each host other than the launcher's; see agent.py."""

import os
import sys

if __name__ == "__main__":
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))
    from sirtaki.job.remote.agent import main

    sys.exit(main(sys.argv[1:]))
