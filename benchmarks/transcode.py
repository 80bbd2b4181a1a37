"""The cost of epochs of transcoded chunks: `python -m benchmarks.transcode` runs benchmarks/suites/transcode.py."""

from __future__ import annotations

import sys

from benchmarks.suites.transcode import main

if __name__ == "__main__":
    sys.exit(main())
