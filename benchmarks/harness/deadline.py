"""The time that a benchmark may take: parts that no longer fit into it are left out, and said to be."""

from __future__ import annotations

import math
import time


class Deadline:
    """Seconds from now on, after which nothing is begun.

    Attributes
    ----------
    left_out
        The parts that were not measured, in words with the reason.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._ends_at = math.inf if limit_s is None else time.monotonic() + limit_s
        self.left_out: list[str] = []

    def left_s(self) -> float:
        """Return the seconds that are left; infinity without a limit."""
        return max(0.0, self._ends_at - time.monotonic())

    def allows(self, part: str, seconds: float) -> bool:
        """Return whether a part that takes so many seconds still fits; note it as left out if not."""
        left_s = self.left_s()
        fits = left_s > 0 and seconds <= left_s
        if not fits:
            self.left_out.append(f"{part}: no time was left")
        return fits
