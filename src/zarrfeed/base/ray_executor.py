"""`RayExecutor`: an executor of `concurrent.futures`' kind, whose calls are tasks of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from zarrfeed.base.errors import ConfigError

#: Number of times that Ray runs a task again whose process died.
_RETRIES = 3


class RayExecutor(Executor):
    """Runs calls as Ray tasks. Ray runs a task again if its process or its node died.

    Parameters
    ----------
    address
        Address of a cluster, such as "ray://head:10001". None: the cluster that this process is connected to, or that
        the environment names, or a new one on this machine, which ends with `shutdown`.

    Raises
    ------
    ConfigError
        If Ray is not installed.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError('executor = "ray" needs ray: pip install ray') from error
        self._ray: Any = ray
        self._owns = not ray.is_initialized()
        if self._owns:
            ray.init(address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        self._call = ray.remote(max_retries=_RETRIES)(_call)
        self._pending: set[Future[Any]] = set()

    @property
    def max_workers(self) -> int:
        """Number of tasks that the cluster runs at once, if each task has one core."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Return the future of a task."""
        future: Future[Any] = self._call.remote(fn, args, kwargs).future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the tasks, and end the cluster if it was begun here."""
        from concurrent.futures import wait as wait_for

        if cancel_futures:
            for future in list(self._pending):
                future.cancel()
        if wait:
            wait_for(list(self._pending))
        if self._owns:
            self._ray.shutdown()


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
