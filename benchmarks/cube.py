"""The cost of gaps, missing values and dimensions: `python -m benchmarks.cube` runs benchmarks/suites/cube.py."""

from __future__ import annotations

import sys

from benchmarks.suites.cube import main

if __name__ == "__main__":
    sys.exit(main())
