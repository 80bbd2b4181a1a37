"""What packing images costs: `python -m benchmarks.packing_images` runs benchmarks/suites/packing_images.py."""

from __future__ import annotations

import sys

from benchmarks.suites.packing_images import main

if __name__ == "__main__":
    sys.exit(main())
