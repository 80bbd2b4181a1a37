"""What a far store costs: `python -m benchmarks.latency` runs benchmarks/suites/latency.py."""

from __future__ import annotations

import sys

from benchmarks.suites.latency import main

if __name__ == "__main__":
    sys.exit(main())
