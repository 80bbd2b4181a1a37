"""The cost of batches of tokens: `python -m benchmarks.tokens` runs benchmarks/suites/tokens.py."""

from __future__ import annotations

import sys

from benchmarks.suites.tokens import main

if __name__ == "__main__":
    sys.exit(main())
