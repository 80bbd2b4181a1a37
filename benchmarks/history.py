"""Keep zarrfeed's ratios by commit: `python -m benchmarks.history` runs benchmarks/suites/history.py."""

from __future__ import annotations

import sys

from benchmarks.suites.history import main

if __name__ == "__main__":
    sys.exit(main())
