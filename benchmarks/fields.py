"""What joined, padded and stacked fields cost: `python -m benchmarks.fields` runs benchmarks/suites/fields.py."""

from __future__ import annotations

import sys

from benchmarks.suites.fields import main

if __name__ == "__main__":
    sys.exit(main())
