"""`python -m sirtaki` is `sirtakirun`, also where no script of that name is in PATH: `python -m sirtaki --check`."""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("sirtaki.launch.command").main())
