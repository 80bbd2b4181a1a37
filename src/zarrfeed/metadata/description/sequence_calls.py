"""The calls of methods of `Data` for recordings, documents and other sequences of unlike length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as argument
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.description.method_call import MethodCall, frozen_by
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.sample_calls import WindowCall, freeze_step
from zarrfeed.plan.samples.crop_starts import CropStarts
from zarrfeed.plan.samples.gaps import GapMode
from zarrfeed.plan.samples.sample_set import rank_of
from zarrfeed.plan.samples.windows import reach


def _check_segments(resolved: ResolvedData, method: str) -> None:
    """Raise ConfigError if nobody said where recordings end."""
    if resolved.choice.borders is None:
        raise ConfigError(
            f"{method}: the samples are one recording; say where recordings end, data.segments(ends), or open a list "
            "or a pattern of arrays, one for each"
        )


@dataclass(frozen=True)
class RandomCropCall(MethodCall):
    """`.random_crop(length, n=..., pad=..., mask=..., gaps=..., step=...)`."""

    function = ".random_crop"

    length: Any
    n: Any = 1
    pad: Any = None
    mask: bool = argument(default=False, metadata=frozen_by(bool))
    gaps: GapMode = "drop"
    step: Any = argument(default=None, metadata=frozen_by(freeze_step))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make samples windows, of which an epoch draws some of each recording."""
        check_int("n", self.n, 1, 2**20)
        _check_segments(resolved, "random_crop")
        by_name = self.length if isinstance(self.length, Mapping) else {"length": self.length}
        for name, length in by_name.items():
            check_int(f"length of {name}" if isinstance(self.length, Mapping) else name, length, 1, 2**30)
        lengths = {name: range(length) for name, length in by_name.items()}
        offsets: Any = lengths if isinstance(self.length, Mapping) else lengths["length"]
        window = WindowCall(offsets, pad=self.pad, mask=self.mask, gaps=self.gaps, step=self.step)
        made = window.apply(resolved)
        borders = made.choice.borders
        assert borders is not None
        padded = [one.window.pad for one in made.columns if one.window is not None and one.window.pad is not None]
        choice = made.choice
        if padded:
            ends = borders if padded[0].borders is None else padded[0].borders.first
            choice = choice.starting_before(ends, reach([one.window for one in made.columns])[1])
        before = np.unique(rank_of(choice.ascending(), borders))
        return replace(made, choice=choice, expected=CropStarts(before[1:], int(self.n)), windowing=None)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        raise ConfigError("random_crop() cannot follow open(..., refresh='epoch'): the last recording grows")
