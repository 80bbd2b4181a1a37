"""How fast a disk is read past the page cache: `python -m benchmarks.cold` runs benchmarks/suites/cold.py."""

from __future__ import annotations

import sys

from benchmarks.suites.cold import main

if __name__ == "__main__":
    sys.exit(main())
