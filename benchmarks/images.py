"""What encoded images cost: `python -m benchmarks.images` runs benchmarks/suites/images.py."""

from __future__ import annotations

import sys

from benchmarks.suites.images import main

if __name__ == "__main__":
    sys.exit(main())
