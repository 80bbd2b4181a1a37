"""What plans of many blocks take: `python -m benchmarks.huge_plans` runs benchmarks/suites/huge_plans.py."""

from __future__ import annotations

import sys

from benchmarks.suites.huge_plans import main

if __name__ == "__main__":
    sys.exit(main())
