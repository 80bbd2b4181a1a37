"""Requests to one store wait for their turn: on an event loop, or on threads that block.

Invariant: no more turns are taken than the limit of the `ConcurrencyController`, but for those that were taken before
it fell; turns are given in the order in which they were asked for; a turn is ended once, by whoever took it, also if
the request failed or was given up. All readers of a store in a process share one limiter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from zarr.abc.store import Store

from zarrfeed.storage.access.concurrency import ConcurrencyController

_T = TypeVar("_T")


@dataclass(slots=True)
class Turn:
    """A request that is under way.

    Attributes
    ----------
    epoch
        The controller's epoch when the request began.
    is_full
        True if as many requests as allowed were wanted then.
    begin
        Time at which the request began, by `time.monotonic`.
    is_over
        True if another request may have its turn.
    """

    epoch: int
    is_full: bool
    begin: float
    is_over: bool = False


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request that waits; `wake` tells it that its turn came."""

    wake: Callable[[], None]
    has_turn: bool = False


class RequestLimiter:
    """Lets requests to one store wait for their turn, first come, first served. Safe for threads.

    Parameters
    ----------
    most, first
        The arguments of `ConcurrencyController`.
    may_pass
        Tells errors after which another try may succeed, which speak of too many requests, from others.
    """

    def __init__(self, most: int, may_pass: Callable[[Exception], bool], first: int = 2) -> None:
        self.controller = ConcurrencyController(most, first)
        self._may_pass = may_pass
        self._lock = threading.Lock()
        self._active = 0
        self._waiting: deque[_Waiting] = deque()

    @property
    def limit(self) -> int:
        """Number of requests that may be under way at once now."""
        return self.controller.limit

    async def run(self, request: Callable[[], Awaitable[_T]]) -> _T:
        """Make a request when it is its turn, on an event loop, and return its result."""
        if not self._has_room():
            loop, thread = asyncio.get_running_loop(), threading.get_ident()
            future: asyncio.Future[None] = loop.create_future()
            waiting = self._queue(partial(_set_result, loop, thread, future))
            try:
                await future
            except asyncio.CancelledError:
                self._give_up(waiting)
                raise
        turn = self._begin()
        try:
            result = await request()
        except BaseException as error:
            self.end(turn, error)
            raise
        self.end(turn)
        return result

    def enter(self, *, more_wait: bool = False) -> Turn:
        """Wait on this thread until it is its turn. Whoever gets a turn ends it.

        `more_wait` says that the caller knows of requests that wait elsewhere.
        """
        if not self._has_room():
            has_turn = threading.Event()
            self._queue(has_turn.set)
            has_turn.wait()
        return self._begin(more_wait=more_wait)

    def end(self, turn: Turn, error: BaseException | None = None) -> None:
        """Take note of how a request ended, and let another one begin, unless its turn was given away."""
        now = time.monotonic()
        with self._lock:
            if turn.is_over:
                return
            if error is None and turn.is_full:
                self.controller.finished(turn.epoch, now - turn.begin, now)
            elif error is None:
                self.controller.idle()
            elif isinstance(error, Exception) and self._may_pass(error):
                self.controller.failed(turn.epoch, now)
            ready = self._leave(turn)
        _wake(ready)

    def give_away(self, turn: Turn) -> None:
        """Let another request begin in place of one that goes on, and that says nothing of the store any more."""
        with self._lock:
            ready = [] if turn.is_over else self._leave(turn)
        _wake(ready)

    def _has_room(self) -> bool:
        """Take a turn if there is one and nobody waits for it."""
        with self._lock:
            if self._waiting or self._active >= self.controller.limit:
                return False
            self._active += 1
            return True

    def _begin(self, *, more_wait: bool = False) -> Turn:
        with self._lock:
            controller = self.controller
            is_full = more_wait or bool(self._waiting) or self._active >= controller.limit
            return Turn(controller.epoch, is_full, time.monotonic())

    def _queue(self, wake: Callable[[], None]) -> _Waiting:
        waiting = _Waiting(wake)
        with self._lock:
            self._waiting.append(waiting)
            ready = self._next()  # room may have come since it was looked for
        _wake(ready)
        return waiting

    def _give_up(self, waiting: _Waiting) -> None:
        """Pass on the turn of a request that was given up, if it came."""
        with self._lock:
            ready = []
            if waiting.has_turn:
                self._active -= 1
                ready = self._next()
            else:
                self._waiting.remove(waiting)
        _wake(ready)

    def _leave(self, turn: Turn) -> list[_Waiting]:
        turn.is_over = True
        self._active -= 1
        return self._next()

    def _next(self) -> list[_Waiting]:
        """Give turns to those that wait; return them, to be woken without the lock."""
        ready = []
        while self._waiting and self._active < self.controller.limit:
            waiting = self._waiting.popleft()
            waiting.has_turn = True
            self._active += 1
            ready.append(waiting)
        return ready


def _wake(ready: list[_Waiting]) -> None:
    for waiting in ready:
        waiting.wake()


def _set_result(loop: asyncio.AbstractEventLoop, thread: int, future: asyncio.Future[None]) -> None:
    """Complete a future from any thread."""
    if threading.get_ident() != thread:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the interpreter is about to exit
            loop.call_soon_threadsafe(_set_result, loop, thread, future)
    elif not future.done():  # else it was given up
        future.set_result(None)


#: Identity of a store -> the limiter of all its readers in this process, as long as there are any.
_limiters: WeakValueDictionary[Any, RequestLimiter] = WeakValueDictionary()
# In a forked child requests of the parent would count for ever, and its event loop is another one.
os.register_at_fork(after_in_child=_limiters.clear)


def shared_limiter(store: Store, most: int, may_pass: Callable[[Exception], bool], first: int = 2) -> RequestLimiter:
    """Return the limiter of a store, which all stores with the same `origin` share. Keep it while it is in use."""
    key = getattr(store, "origin", None) or id(store)
    limiter = _limiters.get(key)
    if limiter is None:
        limiter = RequestLimiter(most, may_pass, first)
        _limiters[key] = limiter
    return limiter
