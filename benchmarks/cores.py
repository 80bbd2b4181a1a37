"""One thread to as many as there are cores: `python -m benchmarks.cores` runs benchmarks/suites/cores.py."""

from __future__ import annotations

import sys

from benchmarks.suites.cores import main

if __name__ == "__main__":
    sys.exit(main())
