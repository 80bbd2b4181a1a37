"""What the processes of tests/support/logged_example.py wrote down: which samples came in which step of which start."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

WRAPPER = ROOT / "tests" / "support" / "logged_example.py"


@dataclass(frozen=True)
class Start:
    """What the ranks of one start of a run were given: `steps[i]` are the samples of its step `i`, over all ranks."""

    world_size: int
    steps: list[list[int]]


class SampleLog:
    """The folder in which ranks write, and read how far they may go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def limit(self, world_size: int, steps: int) -> None:
        """Let ranks of `world_size` go as far as step `steps` of their start."""
        partial = self.folder / "partial"
        partial.write_text(str(steps))
        partial.replace(self.folder / f"limit-{world_size}")

    def starts(self) -> list[Start]:
        """Return the starts that came to a step, oldest first. Ranks of two starts never run at the same time."""
        paths = sorted(self.folder.glob("*.jsonl"))  # named by time, rank and world size
        starts = []
        while paths:
            world_size = int(paths[0].stem.split("-")[2])
            of_start, paths = paths[:world_size], paths[world_size:]
            ranks = sorted(path.stem.split("-", 1)[1] for path in of_start)
            assert ranks == sorted(f"{rank}-{world_size}" for rank in range(world_size))
            of_ranks = [[json.loads(line) for line in path.read_text().splitlines()] for path in of_start]
            steps = zip(*of_ranks, strict=False)  # a rank may have ended a step earlier
            starts.append(Start(world_size, [[sample for of_rank in step for sample in of_rank] for step in steps]))
        return starts

    def wait(self, steps: list[int], check: Callable[[], None], limit_s: float = 240) -> None:
        """Wait until the starts have come to these steps; `check` raises if the run has ended.

        Raises
        ------
        AssertionError
            If they have not within `limit_s` seconds.
        """
        deadline = time.monotonic() + limit_s
        while (found := self._steps()) != steps:
            check()
            assert time.monotonic() < deadline, f"ranks came to the steps {found}, must be {steps}"
            time.sleep(0.05)

    def _steps(self) -> list[int]:
        try:
            return [len(start.steps) for start in self.starts()]
        except (
            AssertionError,
            json.JSONDecodeError,
        ):  # not all ranks of the newest start have begun, or finished a line
            return []


def assert_kept_once(starts: list[Start], begins: list[int], *, steps: int, num_samples: int) -> None:
    """Check that the steps that the run has kept had each sample of each epoch exactly once.

    Parameters
    ----------
    starts
        Of the run, oldest first.
    begins
        The step of the checkpoint that each start began with. What an earlier start did after it was not kept.
    steps, num_samples
        Of an epoch.
    """
    kept: list[list[int]] = []
    for start, begin in zip(starts, begins, strict=True):
        assert len(kept) >= begin, f"steps {len(kept)} to {begin} were left out"
        kept = kept[:begin] + start.steps
    assert len(kept) % steps == 0
    for begin in range(0, len(kept), steps):
        seen = Counter(sample for step in kept[begin : begin + steps] for sample in step)
        assert seen == Counter(range(num_samples)), f"epoch {begin // steps}"
