"""The cost of files that are not Zarr: `python -m benchmarks.files` runs benchmarks/suites/files.py."""

from __future__ import annotations

import sys

from benchmarks.suites.files import main

if __name__ == "__main__":
    sys.exit(main())
