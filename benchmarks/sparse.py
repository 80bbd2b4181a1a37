"""What rows of sparse matrices cost: `python -m benchmarks.sparse` runs benchmarks/suites/sparse.py."""

from __future__ import annotations

import sys

from benchmarks.suites.sparse import main

if __name__ == "__main__":
    sys.exit(main())
