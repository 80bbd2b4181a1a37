"""What a mixture costs: `python -m benchmarks.mixtures` runs benchmarks/suites/mixtures.py."""

from __future__ import annotations

import sys

from benchmarks.suites.mixtures import main

if __name__ == "__main__":
    sys.exit(main())
