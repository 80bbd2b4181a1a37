"""What samples and targets of one store cost: `python -m benchmarks.forecast` runs benchmarks/suites/forecast.py."""

from __future__ import annotations

import sys

from benchmarks.suites.forecast import main

if __name__ == "__main__":
    sys.exit(main())
