"""What reading from a server costs: `python -m benchmarks.remote` runs benchmarks/suites/remote.py."""

from __future__ import annotations

import signal
import sys

from benchmarks.suites.remote import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that nginx is stopped
    sys.exit(main())
