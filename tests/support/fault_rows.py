"""Functions for rows of which the harness's own tests know what must come of them; run in processes that it starts."""

from __future__ import annotations

import os
import time

from tests.faults.harness.row import Try, UnspecifiedError


def mixed(attempt: Try) -> str:
    """End well, not as specified, by an exception, not at all, or with the process, in turn."""
    kind = attempt.number % 5
    if kind == 1:
        raise UnspecifiedError("a wrong value")
    if kind == 2:
        raise KeyError("a surprise")
    if kind == 3:
        time.sleep(60)
    if kind == 4:
        os.kill(os.getpid(), 11)
    return f"fine {attempt.random.random():.6f}" if attempt.number else os.environ["FAULT"]
