"""What an order that mixes is worth: `python -m benchmarks.shuffle_worth` runs benchmarks/suites/shuffle_worth.py."""

from __future__ import annotations

import sys

from benchmarks.suites.shuffle_worth import main

if __name__ == "__main__":
    sys.exit(main())
