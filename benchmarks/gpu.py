"""Training steps on a GPU: `python -m benchmarks.gpu` runs benchmarks/suites/gpu.py."""

from __future__ import annotations

import sys

from benchmarks.suites.gpu import main

if __name__ == "__main__":
    sys.exit(main())
