"""Compare loaders: `python -m benchmarks.run` runs benchmarks/suites/throughput.py."""

from __future__ import annotations

import sys

from benchmarks.suites.throughput import main

if __name__ == "__main__":
    sys.exit(main())
