"""The cost of weighted samples: `python -m benchmarks.weights` runs benchmarks/suites/weights.py."""

from __future__ import annotations

import sys

from benchmarks.suites.weights import main

if __name__ == "__main__":
    sys.exit(main())
