"""`python -m zarrfeed`: the command `zarrfeed`."""

import sys

from zarrfeed.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
