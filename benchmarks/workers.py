"""What DataLoader workers cost: `python -m benchmarks.workers` runs benchmarks/suites/workers.py."""

from __future__ import annotations

import sys

from benchmarks.suites.workers import main

if __name__ == "__main__":
    sys.exit(main())
