"""Decoding on the GPU, a study: `python -m benchmarks.nvcomp` runs benchmarks/suites/nvcomp.py."""

from __future__ import annotations

import sys

from benchmarks.suites.nvcomp import main

if __name__ == "__main__":
    sys.exit(main())
