"""Timing of training steps: the device's own clock for the steps, the host's for everything beside them.

An event is recorded on the device's stream before a step's first kernel and another one after its last. A batch is
taken before the first event, and the stream waits for the batch's copy there, too. So the device was idle for want of
data from the end of one step to the beginning of the next one, whether the batch or its copy was late. A pause inside a
step is the network's own, and the same with every feed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.harness.measure import CpuWatch

#: The host runs ahead of the device by so many steps, as a loop does that logs its loss now and then.
_AHEAD_STEPS = 2


@dataclass(frozen=True)
class Window:
    """Some steps, one behind the other.

    Attributes
    ----------
    steps, samples, batch_bytes
        Numbers of steps and of samples, and the bytes of their batches on the device.
    wall_s
        From the end of the step before the first one to the end of the last one, by the device's clock.
    idle_s
        The part of `wall_s` between steps.
    cpu_s
        CPU seconds of this process and its workers.
    foreign_cores
        Cores that were busy for others, on average; None where that is not known.
    """

    steps: int
    samples: int
    batch_bytes: int
    wall_s: float
    idle_s: float
    cpu_s: float
    foreign_cores: float | None

    @property
    def samples_per_s(self) -> float:
        """Samples a second."""
        return self.samples / self.wall_s

    @property
    def idle_share(self) -> float:
        """The part of the time in which the device waited between steps."""
        return self.idle_s / self.wall_s

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds for each gigabyte (10**9 bytes) of batches."""
        return self.cpu_s / self.batch_bytes * 1e9


class Mark(Protocol):
    """A point in the work of a device."""

    def record(self) -> None:
        """Put the point behind all work that was given to the device."""

    def synchronize(self) -> None:
        """Wait until the device has come to the point."""

    def elapsed_time(self, later: Any) -> float:
        """Return the milliseconds from this point to a later one."""


class HostMark:
    """A point in time on a device that computes while the host waits, such as the CPU."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def record(self) -> None:
        """Note the time."""
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Return: the work was done when the point was recorded."""

    def elapsed_time(self, later: HostMark) -> float:
        """Return the milliseconds in between."""
        return 1e3 * (later._at_s - self._at_s)


def marks_of(device: torch.device) -> Callable[[], Mark]:
    """Return what makes points in the work of a device's current stream."""
    if device.type == "cpu":
        return HostMark
    # a thread that waits sleeps, so that waiting costs no CPU seconds
    make: Callable[..., Mark] = torch.cuda.Event
    return lambda: make(enable_timing=True, blocking=True)


def run_steps(
    batches: Iterator[Any],
    step: Callable[[Any], object],
    make_mark: Callable[[], Mark],
    *,
    seconds: float,
    warm_s: float = 0.0,
) -> Window:
    """Take a batch and train on it, again and again, for some seconds, of which `warm_s` come first and do not count.

    One step is never counted, and one always is.
    """
    queued: deque[Mark] = deque()

    def one() -> tuple[Mark, Mark, Any]:
        batch = next(batches)
        begin, end = make_mark(), make_mark()
        begin.record()
        step(batch)
        end.record()
        queued.append(end)
        if len(queued) > _AHEAD_STEPS:
            queued.popleft().synchronize()
        return begin, end, batch

    begins_at = time.perf_counter() + warm_s
    before = one()[1]
    while time.perf_counter() < begins_at:
        before = one()[1]
    first, idle_ms, marks = before, 0.0, list[tuple[Mark, Mark]]()
    samples = batch_bytes = 0
    watch, ends_at = CpuWatch(), time.perf_counter() + seconds
    while not marks or time.perf_counter() < ends_at:
        begin, end, batch = one()
        marks.append((begin, end))
        samples += count_samples(batch)
        batch_bytes += count_bytes(batch)
    marks[-1][1].synchronize()
    cpu_s, foreign_cores = watch.stop()
    for begin, end in marks:
        idle_ms += before.elapsed_time(begin)
        before = end
    wall_ms = first.elapsed_time(before)
    return Window(len(marks), samples, batch_bytes, wall_ms / 1e3, idle_ms / 1e3, cpu_s, foreign_cores)


def feed_rate(batches: Iterator[Any], make_mark: Callable[[], Mark], *, seconds: float, warm_s: float = 0.0) -> float:
    """Take batches for some seconds and do nothing with them; return samples a second.

    `warm_s` come first and do not count.
    """
    samples, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < warm_s:
        next(batches)
    begin = time.perf_counter()
    while not samples or time.perf_counter() - begin < seconds:
        samples += count_samples(next(batches))
        mark = make_mark()
        mark.record()
    mark.synchronize()
    return samples / (time.perf_counter() - begin)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch, which is one tensor or several."""
    return [batch] if isinstance(batch, torch.Tensor) else list(batch)


def count_samples(batch: Any) -> int:
    """Return how many samples a batch has."""
    return len(tensors_of(batch)[0])


def count_bytes(batch: Any) -> int:
    """Return the bytes of the tensors of a batch."""
    return sum(tensor.nbytes for tensor in tensors_of(batch))
