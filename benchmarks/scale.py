"""What internet scale costs: `python -m benchmarks.scale` runs benchmarks/suites/scale.py."""

from __future__ import annotations

import sys

from benchmarks.suites.scale import main

if __name__ == "__main__":
    sys.exit(main())
