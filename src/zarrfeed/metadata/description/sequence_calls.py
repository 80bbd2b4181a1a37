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
from zarrfeed.metadata.description.sample_calls import WindowCall, freeze_coords, freeze_step
from zarrfeed.metadata.description.split_columns import chosen_values
from zarrfeed.plan.samples.buckets import Buckets
from zarrfeed.plan.samples.crop_starts import CropStarts
from zarrfeed.plan.samples.gaps import GapMode
from zarrfeed.plan.samples.sample_set import Int64, rank_of
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
        _refuse_growth("random_crop")


@dataclass(frozen=True)
class PadSequencesCall(MethodCall):
    """`.pad_sequences(value, max_length=...)`."""

    function = ".pad_sequences"

    value: Any = 0
    max_length: Any = None

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make each sample a whole recording, padded behind its end."""
        _check_segments(resolved, "pad_sequences")
        borders = resolved.choice.borders
        assert borders is not None
        most = int(np.diff(borders).max())
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1, 2**30)
            most = min(most, int(self.max_length))
        if "length" in resolved.taken_names():
            raise ConfigError(
                "a batch has the lengths of sequences as 'length', and the samples have an array of this name"
            )
        sides = dict.fromkeys((one.side for one in resolved.items if one.side in ("samples", "targets")), range(most))
        window = WindowCall(sides, pad=self.value, gaps="ignore", stride=resolved.choice.num_samples)
        return replace(window.apply(resolved), has_lengths=True, windowing=None)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("pad_sequences")


@dataclass(frozen=True)
class BucketCall(MethodCall):
    """`.bucket_by_length(batch_size, pool=..., lengths=...)`; `buckets` have the lengths, which were found once."""

    function = ".bucket_by_length"

    batch_size: Any
    pool: Any = 64
    lengths: Any = argument(default=None, metadata=frozen_by(freeze_coords))
    buckets: Buckets | None = argument(
        kw_only=True, default=None, repr=False, metadata=frozen_by(lambda one: None if one is None else one.digest)
    )

    def found(self, resolved: ResolvedData) -> BucketCall:
        """Return the call with the lengths of the samples. Reads the column of lengths, if one is named."""
        resolved.check_choice("bucket_by_length")
        check_int("batch_size", self.batch_size, 1, 2**30)
        check_int("pool", self.pool, 1, 2**30)
        if resolved.blend is not None:
            raise ConfigError("bucket_by_length: samples are a mixture, whose sources have batches of their own order")
        lengths = _lengths_of(resolved) if self.lengths is None else chosen_values(resolved, "lengths", self.lengths)[1]
        if lengths.shape != (resolved.choice.length,) or lengths.dtype.kind not in "iuf":
            raise ConfigError(
                f"lengths have the shape {lengths.shape} and dtype {lengths.dtype}, must be a number for each of "
                f"{resolved.choice.length} samples"
            )
        return replace(self, buckets=Buckets(lengths, int(self.batch_size), int(self.pool)))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let samples of about one length come together."""
        resolved.check_choice("bucket_by_length")
        return replace(resolved, expected=self.buckets)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("bucket_by_length")


def _lengths_of(resolved: ResolvedData) -> Int64:
    """Return the rows of whole sequences that are not padded."""
    if not resolved.has_lengths:
        raise ConfigError(
            "bucket_by_length: the samples have no lengths; call pad_sequences() before it, or name lengths="
        )
    window = next(one.window for one in resolved.columns if one.window is not None)
    samples = np.asarray(resolved.choice.listed())
    assert window.pad is not None
    borders = window.pad.borders
    ends = resolved.choice.num_samples if borders is None else borders.around(samples)[1]
    lengths: Int64 = np.minimum(ends - samples, len(window.offsets))
    return lengths


def _refuse_growth(method: str) -> None:
    raise ConfigError(f"{method}() cannot follow open(..., refresh='epoch'): the last recording grows")
