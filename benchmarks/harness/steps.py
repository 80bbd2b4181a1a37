"""A fixed step of Python and torch of about 10 ms, in place of a training step, and how long it takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness.process import waited_for_core

_WEIGHTS = torch.ones(512, 512)


def run_steps(batches: Iterator[Any] | None = None, count: int = 20) -> tuple[float, float]:
    """Return the seconds of some steps, and those without waiting for a core.

    Each step takes a batch first, if there are any.
    """
    begin, waited = time.perf_counter(), waited_for_core()
    for _ in range(count):
        if batches is not None:
            next(batches)
        total = 0
        for i in range(60_000):
            total += i & 3
        _WEIGHTS @ _WEIGHTS
    seconds = time.perf_counter() - begin
    return seconds, seconds - (waited_for_core() - waited)


def slowdown_beside(work: Callable[[], object]) -> dict[str, float]:
    """Return by how much longer steps take, in percent, while another thread does some work once.

    `step_percent` counts everything; `step_on_a_core_percent` leaves out when the step's thread could have run and had
    no core, so that what is left is the wait for the GIL, caches, and memory.
    """
    torch.set_num_threads(1)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (the thread that waits for this one raises it)
            errors.append(error)

    run_steps()
    before = run_steps()
    thread = threading.Thread(target=run)
    thread.start()
    beside: list[tuple[float, float]] = []
    while thread.is_alive() or not beside:  # work may end before a step begins
        beside.append(run_steps(count=1))
    thread.join()
    if errors:
        raise errors[0]
    if len(beside) > 1:
        beside.pop()  # the work may have ended in the middle of it
    after = run_steps()
    whole, on_a_core = (
        100 * (sum(times) / len(beside) / ((a + b) / 40) - 1)
        for times, a, b in zip(zip(*beside, strict=True), before, after, strict=True)
    )
    return {"step_percent": whole, "step_on_a_core_percent": on_a_core}
