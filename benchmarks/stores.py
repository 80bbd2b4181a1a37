"""What many stores cost: `python -m benchmarks.stores` runs benchmarks/suites/stores.py."""

from __future__ import annotations

import sys

from benchmarks.suites.stores import main

if __name__ == "__main__":
    sys.exit(main())
