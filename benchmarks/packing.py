"""What packing costs: `python -m benchmarks.packing` runs benchmarks/suites/packing.py."""

from __future__ import annotations

import sys

from benchmarks.suites.packing import main

if __name__ == "__main__":
    sys.exit(main())
