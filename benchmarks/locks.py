"""How long locks are held: `python -m benchmarks.locks` runs benchmarks/suites/locks.py."""

from __future__ import annotations

import sys

from benchmarks.suites.locks import main

if __name__ == "__main__":
    sys.exit(main())
