"""`prefetch`: the batches of a loader on a device, copied there before they are asked for.

Invariants: batches come in the loader's order, each once. A thread takes them from the loader and begins their copies,
up to a number of bytes ahead; it ends with the pass, however the pass ends. The state is that of the batch that was
handed out last, whatever was taken from the loader since: of a loader or dataset of ours, the thread takes batches
without counting them, so that the loader's own state is right, too; of any other loader, it keeps the state that the
loader had after each batch. Threads may share a pass.

A pass belongs to the process that began it: its thread, streams and copies are not in a process that is forked
meanwhile. Batches of our loader's workers are copied from the workers' slots (`page_locks.py`), so the loader does not
pin them before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.per_process import OwnerProcess
from zarrfeed.base.units import parse_bytes
from zarrfeed.torch.batches.accelerators import check_not_lost_by_fork
from zarrfeed.torch.batches.pass_positions import CountedPass, Positions, SharedIterator, Standing
from zarrfeed.torch.device.transfers import DeviceStreams, Streams, Transfer, map_tensors

#: Batches that are copied ahead, at most: more would only help steps of very uneven length.
_MOST_AHEAD = 16
#: Seconds after which a consumer that waits looks whether an interrupt came (`base/waits.py` says why).
_LOOK_S = 0.2
#: Seconds that the end of a pass waits for the loader to return the batch for which the thread waits.
_TIMEOUT_S = 10.0
#: Passes of the process that forked this one. To free their tensors would call the driver, which ends this process.
_of_parents: list[_Pass] = []
#: Devices without streams: a copy blocks the host.
_WITHOUT_STREAMS = ("cpu", "mps", "meta")


class DeviceLoader:
    """The batches of a loader, on a device; made by `prefetch`.

    Iterating begins a pass of the loader. `len()`, `set_epoch`, `state_dict` and `load_state_dict` are the loader's,
    where it has them; the state counts what this loader handed out.

    Attributes
    ----------
    loader, device
        The arguments of `prefetch`.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> from zarrfeed.device import DeviceLoader, prefetch
    >>> dataset = zarrfeed.ZarrIterableDataset(np.arange(5), batch_size=2)
    >>> loader = prefetch(zarrfeed.ZarrDataLoader(dataset), "cpu")
    >>> isinstance(loader, DeviceLoader), len(loader), loader.device
    (True, 3, device(type='cpu'))
    """

    def __init__(self, loader: Iterable[Any], device: torch.device, ahead: int, streams: Streams | None) -> None:
        self.loader, self.device = loader, device
        self._ahead, self._streams = ahead, streams
        self._positions: Positions[_LoaderState | Standing] = Positions()

    def __repr__(self) -> str:
        return f"DeviceLoader({self.loader!r}, {str(self.device)!r})"

    def __len__(self) -> int:
        """Return the number of batches of a pass, if the loader knows it."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"object of type {type(self.loader).__name__!r} has no len()")
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Return a pass over the batches, which begins with the first one."""
        return SharedIterator(self._plain() if self._streams is None else self._copied(self._streams))

    def _plain(self) -> Iterator[Any]:
        batches = iter(self.loader)
        position: Standing | None = None
        try:
            for batch in batches:
                if isinstance(batches, CountedPass):  # of any other loader, the loader itself is asked
                    position = position or batches.standing()
                    self._positions.put_last(position)
                yield batch if self.device.type == "cpu" else map_tensors(batch, lambda tensor: tensor.to(self.device))
        finally:
            if isinstance(batches, CountedPass):
                batches.close()

    def _copied(self, streams: Streams) -> Iterator[Any]:
        check_not_lost_by_fork(f"device = {str(self.device)!r}", torch.get_device_module(self.device))
        on_its_way = _Pass(self.loader, streams, self._ahead)
        try:
            while (found := on_its_way.take()) is not None:
                batch, position = found
                self._positions.put_last(position)
                yield batch
                del batch, found  # the consumer's reference is the last one
        finally:
            on_its_way.stop()

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next pass reads."""
        self._of_loader("set_epoch")(epoch)
        if not self._positions.under_way():
            self._positions.forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state as it was when the batch that was handed out last had come from it.

        Raises
        ------
        ConfigError
            If the loader has no state.
        """
        ask = self._of_loader("state_dict")
        position = self._positions.latest()
        state: dict[str, Any] | None = None if position is None else position.state()
        return ask() if state is None else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where a state was taken.

        Raises
        ------
        ConfigError
            If the loader has no state, or refuses this one.
        """
        self._of_loader("load_state_dict")(state)
        self._positions.forget()

    def _of_loader(self, name: str) -> Any:
        method = getattr(self.loader, name, None)
        if not callable(method):
            raise ConfigError(f"loader = {self.loader!r} has no {name}()")
        return method


def prefetch(
    loader: Iterable[Any],
    device: torch.device | str | int,
    *,
    ahead: int | str = "1GiB",
) -> DeviceLoader:
    """Return a loader whose batches lie on a device when the training step asks for them.

    A thread takes batches from the loader, pins those that are not pinned, and copies them on a stream of their own,
    while the device computes. The stream that is current where a batch is asked for waits for its copy; the host does
    not. On a CPU, batches are the loader's.

    Parameters
    ----------
    loader
        A `ZarrDataLoader`, a `ZarrIterableDataset`, or any iterable of batches: tensors, and dicts, lists, tuples,
        named tuples and dataclasses of tensors. Other values, such as text, stay as they are; so do sparse tensors of
        other layouts than CSR.
    device
        The device that batches are copied to, such as "cuda", "cuda:1", or the number of an accelerator.
    ahead
        Bytes, or text such as "256MiB", of the batches that lie on the device ahead of the step: at least one batch and
        at most 16.

    Raises
    ------
    ConfigError
        If the loader cannot be iterated, the device is none that torch has, or this process was forked from one that
        had used the device.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> from zarrfeed.device import prefetch
    >>> dataset = zarrfeed.ZarrIterableDataset(np.arange(5), batch_size=2)
    >>> loader = prefetch(dataset, "cuda" if torch.cuda.is_available() else "cpu")
    >>> [batch.tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """
    if not isinstance(loader, Iterable):
        raise ConfigError(f"loader: got a {type(loader).__name__}, must be an iterable of batches")
    size = parse_bytes(ahead, "ahead")
    try:
        found = torch.device(device)
        if found.type not in _WITHOUT_STREAMS:
            check_not_lost_by_fork(f"device = {device!r}", torch.get_device_module(found))
        streams = None if found.type in _WITHOUT_STREAMS else DeviceStreams(found)
    except (RuntimeError, TypeError, AssertionError) as error:  # AssertionError: torch without CUDA
        raise ConfigError(f"device = {device!r}: {error}") from error
    return DeviceLoader(loader, found, size, streams)


class _LoaderState:
    """The state of a loader that is not ours after the batch that was handed out last."""

    def __init__(self) -> None:
        self.last: Any = None
        self.under_way = True
        self.ended = False
        self.handed_out = 0

    def state(self) -> Any:
        """Return the state; None, if the loader itself has the right state, or no state."""
        return None if self.ended else self.last


class _Pass:
    """One pass over a loader, whose batches a thread copies ahead.

    The pass begins in the thread that iterates: torch hears of dead workers only if the main thread began them.
    """

    def __init__(self, loader: Iterable[Any], streams: Streams, ahead: int) -> None:
        self._loader, self._streams, self._ahead = loader, streams, ahead
        self._batches = iter(loader)
        self._ours = self._batches if isinstance(self._batches, CountedPass) else None
        self._locks = None if self._ours is None else streams.page_locks()
        if self._ours is not None and self._locks is not None:
            self._ours.leave_unpinned()
        self._has_state = self._ours is None and callable(getattr(loader, "state_dict", None))
        self._loader_state = _LoaderState()
        self._position: Standing | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[tuple[Transfer, Any]] = deque()
        self._ready_bytes = 0
        self._landing: deque[Transfer] = deque()
        self._is_stopped = self._is_over = self._is_left = False
        self._owner = OwnerProcess()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> tuple[Any, _LoaderState | Standing] | None:
        """Return the next batch, on the device, and how far the consumer has come with it; None at the end.

        Raises
        ------
        Exception
            Whatever the loader raised, after the batches before it.
        ConfigError
            If this process was forked from the one that began the pass.
        """
        if not self._owner.is_here:
            raise ConfigError("this pass belongs to the process that began it: begin another one in this process")
        if self._thread is None:
            if not self._copy_next():
                self._end()
                return None
            self._thread = threading.Thread(target=self._run, name="zarrfeed-prefetch", daemon=True)
            self._thread.start()
        with self._lock:
            while not self._ready and not self._is_over:
                self._changed.wait(_LOOK_S)
            if not self._ready:
                if self._error is not None:
                    error, self._error = self._error, None
                    raise error
                self._end()
                return None
            transfer, state = self._ready.popleft()
            self._ready_bytes -= transfer.nbytes
            self._changed.notify_all()
        batch = transfer.hand_over()
        self._landing.append(transfer)
        while self._landing and self._landing[0].is_done():
            self._landing.popleft()
        if self._ours is None:
            self._loader_state.last, self._loader_state.handed_out = state, self._loader_state.handed_out + 1
            return batch, self._loader_state
        self._ours.count()
        self._position = self._position or self._ours.standing()
        return batch, self._position

    def _end(self) -> None:
        self._loader_state.ended = True
        if self._ours is not None:
            self._ours.count_end()

    def stop(self) -> None:
        """End the thread, wait for the copies under way, and unlock the memory that they were made from."""
        if not self._owner.is_here:  # neither the thread nor the copies are here
            _of_parents.append(self)
            return
        self._loader_state.under_way = False
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_S)
        with self._lock:
            self._is_left = self._thread is not None and not self._is_over
        for transfer in self._landing:
            transfer.wait()
        self._landing.clear()
        if not self._is_left:  # else the thread does this, once the loader lets go of it
            self._close_loader()
            self._land()

    def _land(self) -> None:
        """Wait for the copies of batches that nobody asked for, and unlock memory."""
        for transfer, _ in self._ready:
            transfer.wait()
        self._ready.clear()
        if self._locks is not None:
            self._locks.close()

    def _run(self) -> None:
        try:
            while self._has_room() and self._copy_next():
                pass
        except BaseException as error:  # noqa: BLE001 - the thread that iterates raises it
            self._error = error
        with self._lock:
            self._is_over = True
            is_left = self._is_left
            self._changed.notify_all()
        if is_left:
            self._land()

    def _has_room(self) -> bool:
        """Wait until another batch may be taken; False: the pass is over."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_stopped or self._fits())
            return not self._is_stopped

    def _fits(self) -> bool:
        if not self._ready:
            return True
        mean = self._ready_bytes / len(self._ready)
        return len(self._ready) < _MOST_AHEAD and self._ready_bytes + mean <= self._ahead

    def _copy_next(self) -> bool:
        try:
            batch = next(self._batches) if self._ours is None else self._ours.fetch()
        except StopIteration:
            return False
        state = self._loader.state_dict() if self._has_state else None  # type: ignore[attr-defined]
        transfer = Transfer(batch, self._streams, self._locks)
        with self._lock:
            self._ready.append((transfer, state))
            self._ready_bytes += transfer.nbytes
            self._changed.notify_all()
        return True

    def _close_loader(self) -> None:
        close = getattr(self._batches, "close", None)
        if callable(close):
            close()
