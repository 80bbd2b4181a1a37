"""What buckets of objects cost: `python -m benchmarks.objects` runs benchmarks/suites/objects.py."""

from __future__ import annotations

import sys

from benchmarks.suites.objects import main

if __name__ == "__main__":
    sys.exit(main())
