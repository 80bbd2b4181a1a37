"""The rule of hedged requests: it says when a slow request is made a second time.

A far store answers most requests soon and a few very late, and the batch waits for the latest. A second request beside
a late one usually ends sooner.

Invariant: no more than one in twenty requests is made a second time. A request is late if it takes longer than 95 % of
the last ones of its class, and than three times their median: on a connection that is full, where all requests take
about as long, second ones would only take its place.

`HedgeRule` is pure: whoever uses it says how long requests took. Safe for threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable

#: Number of requests of a class that are remembered, and number that must be known.
_REMEMBERED, _ENOUGH = 256, 32
#: A request is late after this part of the others, ...
_LATE_QUANTILE = 0.95
#: ... after so many times their median, ...
_LATE_FACTOR = 3.0
#: ... and after so long: looking more often costs more than it brings.
_LATE_S = 0.05
#: So many second requests for each first one, at most.
MOST_HEDGES = 0.05


class HedgeRule:
    """Knows how long requests take, and when one is late.

    Examples
    --------
    >>> rule = HedgeRule()
    >>> for _ in range(100):
    ...     rule.finished("chunks", 0.03)
    >>> rule.late_after("chunks"), rule.take_hedge()
    (0.09, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._latencies: dict[Hashable, deque[float]] = {}
        self._finished = 0
        self._hedges = 0

    def finished(self, size_class: Hashable, latency_s: float) -> None:
        """Take note of a request that succeeded."""
        with self._lock:
            self._finished += 1
            self._latencies.setdefault(size_class, deque(maxlen=_REMEMBERED)).append(latency_s)

    def late_after(self, size_class: Hashable) -> float | None:
        """Return after how many seconds a request of this class is late; None if too few are known."""
        with self._lock:
            known = sorted(self._latencies.get(size_class, ()))
        if len(known) < _ENOUGH:
            return None
        median = known[len(known) // 2]
        return round(max(known[int(_LATE_QUANTILE * len(known))], _LATE_FACTOR * median, _LATE_S), 9)

    def take_hedge(self) -> bool:
        """Return whether there may be another second request now, and count it."""
        with self._lock:
            if self._hedges + 1 > MOST_HEDGES * self._finished:
                return False
            self._hedges += 1
            return True
