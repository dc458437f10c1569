"""`python -m sirtaki.launch` is `sirtakirun`."""

import sys

from sirtaki.launch.command import main

if __name__ == "__main__":
    sys.exit(main())
