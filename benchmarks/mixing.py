"""How well large chunks are mixed: `python -m benchmarks.mixing` runs benchmarks/suites/mixing.py."""

from __future__ import annotations

import sys

from benchmarks.suites.mixing import main

if __name__ == "__main__":
    sys.exit(main())
