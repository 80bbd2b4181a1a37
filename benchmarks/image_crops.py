"""The cost of random-resized crops: `python -m benchmarks.image_crops` runs benchmarks/suites/image_crops.py."""

from __future__ import annotations

import sys

from benchmarks.suites.image_crops import main

if __name__ == "__main__":
    sys.exit(main())
