"""What some items of a cube cost: `python -m benchmarks.selecting` runs benchmarks/suites/selecting.py."""

from __future__ import annotations

import sys

from benchmarks.suites.selecting import main

if __name__ == "__main__":
    sys.exit(main())
