"""What a checkpoint costs: `python -m benchmarks.checkpoint` runs benchmarks/suites/checkpoint.py."""

from __future__ import annotations

import sys

from benchmarks.suites.checkpoint import main

if __name__ == "__main__":
    sys.exit(main())
