"""What looking ahead gains: `python -m benchmarks.look_ahead` runs benchmarks/suites/look_ahead.py."""

from __future__ import annotations

import sys

from benchmarks.suites.look_ahead import main

if __name__ == "__main__":
    sys.exit(main())
