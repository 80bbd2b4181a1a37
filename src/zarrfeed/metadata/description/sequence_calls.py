"""The calls of methods of `Data` for recordings, documents and other sequences of unlike length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as argument
from itertools import pairwise
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.metadata.description.method_call import MethodCall, frozen_by
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.sample_calls import WindowCall, freeze_coords, freeze_step
from zarrfeed.metadata.description.split_columns import chosen_values
from zarrfeed.metadata.group.batch_columns import Column, Origin
from zarrfeed.plan.choice.buckets import Buckets
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.choice.packed_sequences import LONGER, PackedSequences
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.sample_set import Int64, rank_of
from zarrfeed.plan.windows.gaps import GapMode
from zarrfeed.plan.windows.windows import reach
from zarrfeed.spec.samples.window import Window


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
        cropped = replace(made, choice=choice, windowing=None)
        if resolved.blend is None:
            return replace(cropped, expected=CropStarts(before[1:], int(self.n)))
        sources = rank_of(choice.ascending(), np.array(resolved.blend.first)).tolist()
        if 0 in np.diff(sources):
            short = int(np.argmin(np.diff(sources)))
            raise ConfigError(
                f"random_crop: source {short} of the mixture has no recording as long as a crop; leave it out"
            )
        each = [
            CropStarts(before[(before > begin) & (before <= end)] - begin, int(self.n))
            for begin, end in pairwise(sources)
        ]
        return replace(cropped, blend=replace(resolved.blend, expected=tuple(each)))

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
        if self.max_length is not None:
            check_int("max_length", self.max_length, 1, 2**30)
        _check_name_is_free(resolved, "length", "the lengths of sequences")
        return replace(_whole_sequences(resolved, self.value, self.max_length), has_lengths=True)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("pad_sequences")


@dataclass(frozen=True)
class PackSequencesCall(MethodCall):
    """`.pack_sequences(length, value=..., longer=..., pool=...)`."""

    function = ".pack_sequences"

    length: Any
    value: Any = 0
    longer: Any = "split"
    pool: Any = 64

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Make each sample some whole documents, side by side."""
        check_int("length", self.length, 1, 2**30)
        check_int("pool", self.pool, 1, 2**30)
        check_choice("longer", self.longer, LONGER)
        resolved.check_choice("pack_sequences")
        _check_segments(resolved, "pack_sequences")
        for name in ("segment_ids", "positions"):
            _check_name_is_free(resolved, name, "the sequences of packed samples")
        whole = _whole_sequences(resolved, self.value, 1)
        begins, lengths = _sequences_of(whole)
        if self.longer == "drop" and lengths.min() > self.length:
            raise ConfigError(f"longer = 'drop', and all {len(lengths)} sequences are longer than {self.length} rows")
        blend = resolved.blend
        source = np.searchsorted(blend.first, begins, side="right") if blend is not None else np.zeros_like(begins)
        parts = [self._packed(begins[source == one], lengths[source == one]) for one in np.unique(source)]
        if blend is not None:
            if len(parts) < blend.num_sources or any(not one.num_samples for one in parts):
                raise ConfigError("pack_sequences: a source of the mixture has no sequence; leave it out")
            blend = replace(blend, first=tuple(np.cumsum([0, *(one.axis_length for one in parts)]).tolist()))
        packed = PackedSequences.joined(parts, np.zeros(len(parts), dtype=np.int64))
        first = range(0, packed.axis_length, packed.length)
        choice = SampleChoice(packed.axis_length, first, left_out=whole.choice.left_out)
        made = whole.mapped(lambda one: _packed(one, packed))
        return replace(made, choice=choice, origin=Origin(), packed=packed, blend=blend)

    def _packed(self, begins: Int64, lengths: Int64) -> PackedSequences:
        return PackedSequences.of(begins, lengths, length=int(self.length), pool=int(self.pool), longer=self.longer)

    def check_may_grow(self) -> None:
        """Refuse every one."""
        _refuse_growth("pack_sequences")


def _packed(column: Column, packed: PackedSequences) -> Column:
    """Return a column of whole sequences as packed samples have it."""
    window, name = column.window, column.items.name
    if window is None:
        raise ConfigError(
            f"pack_sequences: {name} has one value for a sequence, and a sample has several; leave it out"
        )
    if column.field.row_map is not None:
        raise ConfigError(
            f"pack_sequences: {name} is joined, or has several sample dimensions; zarrfeed.pack the data before, or "
            "call pad_sequences()"
        )
    assert window.pad is not None
    if window.pad.mode != "fill":
        raise ConfigError(f"value of {name} = 'edge', must be a number or 'nan': no sequence ends at the last row")
    offsets = tuple(range(packed.length))
    return column.with_rows(packed.rows, Window(offsets, pad=replace(window.pad, borders=None)))


def _check_name_is_free(resolved: ResolvedData, name: str, noun: str) -> None:
    """Raise ConfigError if the samples have an array with the name of one that is added."""
    if name in resolved.taken_names():
        raise ConfigError(f"a batch has {noun} as {name!r}, and the samples have an array of this name")


def _whole_sequences(resolved: ResolvedData, value: Any, max_length: Any) -> ResolvedData:
    """Make each sample a whole recording of at most `max_length` rows, padded to the longest one."""
    borders = resolved.choice.borders
    assert borders is not None
    most = int(np.diff(borders).max())
    if max_length is not None:
        most = min(most, int(max_length))
    sides = dict.fromkeys((one.side for one in resolved.items if one.side in ("samples", "targets")), range(most))
    window = WindowCall(sides, pad=value, gaps="ignore", stride=resolved.choice.num_samples)
    return replace(window.apply(resolved), windowing=None)


@dataclass(frozen=True)
class NextTargetsCall(MethodCall):
    """`.next_targets()`."""

    function = ".next_targets"

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let batches have the rows behind those of the samples as targets."""
        resolved.check_rows("next_targets")
        if any(one.side == "targets" for one in resolved.items):
            raise ConfigError("next_targets: the samples have targets; open the array once, without targets")
        windows = [one.window for one in resolved.columns if one.window is not None and one.window.stacked]
        if not windows or min(len(window.offsets) for window in windows) < 2:
            raise ConfigError(
                "next_targets: samples have no two rows; call window(range(n + 1)), pack_sequences() or "
                "pad_sequences() before it"
            )
        record = next((one.items.name for one in resolved.columns if one.delivered().record is not None), None)
        if record is not None:
            raise ConfigError(f"next_targets: {record} has records; name the members that are needed, variables=")
        return replace(resolved, next_targets=True)


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


def _sequences_of(resolved: ResolvedData) -> tuple[Int64, Int64]:
    """Return the first row of each whole sequence, and all of its rows."""
    pad = next(one.window.pad for one in resolved.columns if one.window is not None)
    samples = np.asarray(resolved.choice.listed())
    assert pad is not None
    ends = resolved.choice.num_samples if pad.borders is None else pad.borders.around(samples)[1]
    return samples, ends - samples


def _lengths_of(resolved: ResolvedData) -> Int64:
    """Return the rows of whole sequences that are not padded."""
    if not resolved.has_lengths:
        raise ConfigError(
            "bucket_by_length: the samples have no lengths; call pad_sequences() before it, or name lengths="
        )
    most = next(len(one.window.offsets) for one in resolved.columns if one.window is not None)
    return np.minimum(_sequences_of(resolved)[1], most)


def _refuse_growth(method: str) -> None:
    raise ConfigError(f"{method}() cannot follow open(..., refresh='epoch'): the last recording grows")
