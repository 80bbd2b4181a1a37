"""What the loader costs besides time: `python -m benchmarks.costs` runs benchmarks/suites/costs.py."""

from __future__ import annotations

import sys

from benchmarks.suites.costs import main

if __name__ == "__main__":
    sys.exit(main())
