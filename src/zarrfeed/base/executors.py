"""Run work in pieces, in threads of this process or in any executor of `concurrent.futures`' kind.

Invariants: an item whose worker died is done again, at most three times in all. An error that a call raised reaches the
caller as it was raised, in whatever an executor wraps it. The caller decides what results mean: `run_in_order` yields
them in the order of the items, whichever call ends first.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any, NoReturn, TypeVar

from zarrfeed.base.errors import ConfigError, LostWorkerError, ZarrfeedError
from zarrfeed.base.redaction import redact
from zarrfeed.base.system import usable_cores
from zarrfeed.base.waits import wait_for

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Number of attempts at a unit whose process died.
_TRIES = 3


@contextmanager
def open_executor(named: Executor | str | None, jobs: int | None) -> Iterator[tuple[Executor, int]]:
    """Yield an executor, and how many calls it is given at once.

    Parameters
    ----------
    named
        An executor, which is not shut down; "dask://HOST:PORT" for the scheduler of a Dask cluster; "ray" or
        "ray://HOST:PORT" for a Ray cluster; None for threads of this process.
    jobs
        Calls at once. None: one for each core, or as many as the executor has workers, if it tells.

    Raises
    ------
    ConfigError
        If the text names no executor, or its library is missing.
    """
    if named is None:
        count = jobs or usable_cores()
        with ThreadPoolExecutor(count, "zarrfeed-task") as pool:
            yield pool, count
    elif isinstance(named, str):
        with _of_cluster(named) as executor:
            yield executor, jobs or _workers_of(executor)
    elif callable(getattr(named, "submit", None)):
        yield named, jobs or _workers_of(named)
    else:
        raise ConfigError(f"executor = {named!r}, must have the method `submit` of concurrent.futures.Executor")


def _workers_of(executor: Any) -> int:
    """Return twice the number of workers that an executor reports, so that no worker waits."""
    for name in ("_max_workers", "max_workers"):
        count = getattr(executor, name, None)
        if isinstance(count, int) and count > 0:
            return 2 * count
    client: Any = getattr(executor, "_client", None)
    if client is not None and callable(getattr(client, "nthreads", None)):  # of Dask
        return 2 * max(1, int(sum(client.nthreads().values())))
    return 4 * usable_cores()


@contextmanager
def _of_cluster(named: str) -> Iterator[Executor]:
    scheme, _, address = named.partition("://")
    if scheme == "dask":
        try:
            import distributed
        except ImportError as error:
            raise ConfigError(f"executor = {named!r} needs distributed: pip install distributed") from error
        client_of: Any = distributed.Client
        with client_of(f"tcp://{address}" if address else None) as client:
            yield client.get_executor(pure=False, retries=_TRIES)
    elif scheme == "ray":
        from zarrfeed.base.ray_executor import RayExecutor

        with RayExecutor(named if address else None) as executor:
            yield executor
    else:
        raise ConfigError(f"executor = {named!r}, must be dask://HOST:PORT, ray or ray://HOST:PORT")


def run_all(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Iterator[Result]:
    """Yield `function(item)` of each item, in the order in which calls end.

    An item whose call failed because a worker died is tried again. Any other error ends the run; calls that have not
    begun are cancelled, and the others are waited for.

    Raises
    ------
    LostWorkerError
        If an item's worker died each time, or a pool of processes is broken. And whatever `function` raises.
    """
    left = iter(items)
    pending: dict[Future[Result], tuple[Item, int]] = {}  # with how often it was tried
    try:
        while True:
            for item in islice(left, at_once - len(pending)):
                pending[_submit(executor, function, item)] = item, 1
            if not pending:
                return
            done = wait_for(pending, return_when=FIRST_COMPLETED)
            for future in done:
                item, tries = pending.pop(future)
                error = future.exception()
                if error is None:
                    yield future.result()
                elif _may_try_again(error, tries):
                    pending[_submit(executor, function, item)] = item, tries + 1
                else:
                    _fail(error)
    finally:
        for future in pending:
            future.cancel()
        wait_for(pending)


def run_in_order(
    executor: Executor, function: Callable[[Item], Result], items: Iterable[Item], at_once: int
) -> Generator[Result, None, None]:
    """Yield `function(item)` of each item, in the order of the items.

    At most `at_once` calls are begun and not yielded. An item whose call failed because a worker died is tried again.
    The first error in the order of the items ends the run. Calls that have not begun are cancelled then, or when the
    generator is closed; the others are not waited for, so `function` must leave nothing behind that matters.

    Raises
    ------
    LostWorkerError
        If an item's workers died again and again, as in `run_all`. Errors that `function` raises pass through.
    """
    left, pending = iter(items), deque[tuple[Item, Future[Result], int]]()
    try:
        while True:
            pending.extend(
                (item, _submit(executor, function, item), 1) for item in islice(left, at_once - len(pending))
            )
            if not pending:
                return
            item, future, tries = pending[0]
            wait_for([future])
            error = future.exception()
            if error is None:
                pending.popleft()
                yield future.result()
            elif _may_try_again(error, tries):
                pending[0] = item, _submit(executor, function, item), tries + 1
            else:
                _fail(error)
    finally:
        for _, future, _ in pending:
            future.cancel()


def host_name() -> str:
    """Return the name in messages of a worker's machine."""
    return socket.gethostname()


def _submit(executor: Executor, function: Callable[[Item], Result], item: Item) -> Future[Result]:
    try:
        return executor.submit(function, item)
    except BrokenExecutor as error:
        _fail(error)


def _may_try_again(error: BaseException, tries: int) -> bool:
    return _is_lost_worker(error) and tries < _TRIES


def _fail(error: BaseException) -> NoReturn:
    own = _own(error)
    if own is error:
        raise error
    redact(error)  # it was returned by a future, and is not handled here
    raise own from error


def _own(error: BaseException) -> BaseException:
    """Return the error that a call raised, taken out of the error that an executor wraps it in."""
    if isinstance(error, BrokenExecutor):
        return LostWorkerError(
            "a worker process died, killed or out of memory, and its pool takes no more work "
            f"({type(error).__name__}): call again with a new executor"
        )
    if _is_lost_worker(error):
        return LostWorkerError(
            f"a worker died, killed or out of memory, in each of {_TRIES} tries ({type(error).__name__}: {error})"
        )
    cause = getattr(error, "cause", None)  # of Ray: its message is a traceback
    return cause if type(error).__module__.startswith("ray.") and isinstance(cause, BaseException) else error


def _is_lost_worker(error: BaseException) -> bool:
    """Return whether a call failed although its function did not: of whatever class executors have for that."""
    return not isinstance(error, ZarrfeedError | OSError | ValueError) and any(
        word in type(error).__name__ for word in ("Killed", "WorkerCrashed", "WorkerDied", "NodeDied", "Lost")
    )
