"""The number of requests that a store is asked at once: few at first, more while more of them pay.

A server accepts only so many connections. Beyond that it drops them, and the client's system tries each again after
seconds, without an error that anybody sees. A far store, on the other hand, needs many requests to hide its latency.
So the number follows from what is measured.

Invariant: the number doubles only if the last doubling raised the rate (requests a second), at first by a quarter. A
server that is busy with four requests is therefore not asked eight, and a far store gets from 2 to 256 within 20 round
trips. It is halved when requests fail or stall, once for all requests that were under way together. Between 1 and the
most that is allowed, nothing else changes it.

`ConcurrencyController` is pure: whoever uses it says what time it is.
"""

from __future__ import annotations

import math

#: A doubling that raises the rate by this factor is followed by another one: at first, and after so many requests at
#: once have shown that the server does several things side by side.
_GROWTH_PAYS, _GROWTH_STILL_PAYS, _SHOWN = 1.25, 1.1, 8
#: A doubling that raises the rate by less than this factor is taken back.
_NO_GAIN = 1.05
#: A server is far if no answer comes sooner. Its answers are steady, so few of them tell the rate.
_FAR_S = 0.01
#: A rate is that of so many answers, at least, in so many seconds, at least: of a far server and of another one.
_ENOUGH_OF_FAR, _ENOUGH_OF_NEAR = (8, 0.02), (64, 0.1)
#: Seconds until the next attempt to grow. They double with each attempt that is in vain.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
#: A request stalls, such as one whose connection was dropped, if it takes so long, and so many times the others' mean.
_STALL_S, _STALL_FACTOR = 0.9, 20.0
#: Stalls come without an error, and each costs seconds: growth is attempted again after so many.
_PAUSE_AFTER_STALLS_S = 30.0
#: More than one stall in so many requests is congestion.
_REQUESTS_PER_STALL = 200


class ConcurrencyController:
    """Decides how many requests may be under way at once, from how long they take and whether they fail.

    Parameters
    ----------
    most
        The limit never exceeds this.
    first
        The limit when nothing is known of the store.

    Attributes
    ----------
    limit
        Requests that may be under way at once.
    epoch
        Number of the present limit. A request belongs to the epoch that it was started in.

    Notes
    -----
    The rate is measured from the first answer to a request of the epoch, while as many as allowed are wanted. It is the
    lower one of two: of answers by the clock, and `limit / latency` (Little's law). By the clock alone, answers that
    come in bursts would look fast; by the latency alone, so would a server that answers some and leaves others waiting.
    """

    def __init__(self, most: int, first: int = 2) -> None:
        self._most = max(1, most)
        self.limit = min(first, self._most)
        self.epoch = 0
        self._grows = True
        self._rate_below: float | None = None  # of half the limit, if that was measured just now
        self._proven = 1  # the limit that was held last: an attempt to grow that is in vain ends here
        self._next_attempt = 0.0
        self._pause_s = self._pause_after_failure_s = _FIRST_PAUSE_S
        self._grew = False  # since the last failure
        self._failed_at = -math.inf
        # Counters of this epoch: the time of the first answer, answers since then, requests and their latency.
        self._first_at: float | None = None
        self._answers = self._requests = self._stalls = 0
        self._latency_s = self._stalled_s = 0.0
        self._shortest_s = math.inf

    def finished(self, epoch: int, latency_s: float, now: float) -> None:
        """Take note of a request that succeeded, and was started in `epoch` while as many as allowed were wanted."""
        if epoch != self.epoch:
            self._answers += 1
            return
        if self._first_at is None:
            self._first_at = now
            self._answers = 0
        else:
            self._answers += 1
        self._requests += 1
        self._latency_s += latency_s
        self._shortest_s = min(self._shortest_s, latency_s)
        if latency_s >= _STALL_S:
            others, others_s = self._requests - 1 - self._stalls, self._latency_s - latency_s - self._stalled_s
            if latency_s * others > _STALL_FACTOR * others_s:
                self._stalls += 1
                self._stalled_s += latency_s
        if self._stalls > 1 and self._stalls * _REQUESTS_PER_STALL > self._requests:
            self._back_off(now)
            self._next_attempt = now + _PAUSE_AFTER_STALLS_S
        elif not self._grows:
            if now >= self._next_attempt and self.limit < self._most:
                self._attempt_to_grow()
        else:
            answers, seconds = _ENOUGH_OF_FAR if self._shortest_s >= _FAR_S else _ENOUGH_OF_NEAR
            if self._answers >= max(self.limit, answers) and now - self._first_at >= seconds:
                by_clock = self._answers / (now - self._first_at)
                self._judge(min(by_clock, self.limit * self._requests / max(self._latency_s, 1e-9)), now)

    def failed(self, epoch: int, now: float) -> None:
        """Take note of a request of `epoch` that failed with an error that may pass."""
        if epoch == self.epoch:
            self._back_off(now)

    def idle(self) -> None:
        """Take note that fewer requests are wanted than allowed: the time says nothing of the rate."""
        self._first_at = None

    def _judge(self, rate: float, now: float) -> None:
        """Compare the rate with that of half the limit, and grow, stay or go back."""
        gain = None if self._rate_below is None else rate / self._rate_below
        pays = gain is None or gain >= (_GROWTH_PAYS if self.limit < _SHOWN else _GROWTH_STILL_PAYS)
        if gain is not None:
            self._grew = True
        if pays and self.limit > self._proven:
            self._pause_s = _FIRST_PAUSE_S
        if pays and self.limit < self._most:
            self._rate_below = rate
            self._set_limit(min(2 * self.limit, self._most))
            return
        if gain is not None and gain < _NO_GAIN and self.limit > self._proven:
            self._set_limit(self.limit // 2)
        self._hold(now, self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _attempt_to_grow(self) -> None:
        """Measure half the limit first: what the last doubling brings now is known before the next one is tried."""
        self._grows = True
        self._rate_below = None
        self._set_limit(max(1, self.limit // 2))

    def _back_off(self, now: float) -> None:
        if now - self._failed_at > 2 * _LONGEST_PAUSE_S:
            self._pause_after_failure_s = _FIRST_PAUSE_S
        elif self._grew:
            self._pause_after_failure_s = min(2 * self._pause_after_failure_s, _LONGEST_PAUSE_S)
        self._failed_at = now
        self._grew = False
        self._set_limit(max(1, self.limit // 2))
        self._hold(now, self._pause_after_failure_s)

    def _hold(self, now: float, pause_s: float) -> None:
        self._grows = False
        self._proven = self.limit
        self._next_attempt = now + pause_s

    def _set_limit(self, limit: int) -> None:
        self.limit = limit
        self.epoch += 1
        self._forget_requests()

    def _forget_requests(self) -> None:
        self._first_at = None
        self._answers = self._requests = self._stalls = 0
        self._latency_s = self._stalled_s = 0.0
        self._shortest_s = math.inf
