"""How fast patches come out of arrays: `python -m benchmarks.patches` runs benchmarks/suites/patches.py."""

from __future__ import annotations

import sys

from benchmarks.suites.patches import main

if __name__ == "__main__":
    sys.exit(main())
