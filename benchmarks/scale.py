"""What a rank's epoch costs to plan: `python -m benchmarks.scale` runs benchmarks/suites/scale.py."""

from __future__ import annotations

from benchmarks.suites.scale import main

if __name__ == "__main__":
    main()
