"""`zarrfeed bench`: the speed of reading a user's store, beside plain zarr and beside the machine's limits.

Invariants, for a store of any size: the measurements read a part of the store again and again, chosen at random, whose
decoded size is bounded; each of the three measurements is given a time, after which it is stopped; memory is bounded by
the dataset's budget, and two buffers of plain zarr. Both loaders read the same blocks, and before times are taken they
must deliver the same.

Plain zarr is the loader of the benchmark suite (`plain.py`), with as many threads, or worker processes, as zarrfeed has
decode threads: both are tried for a turn, and the faster one is compared.
"""

from __future__ import annotations

import multiprocessing
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.base.native import core
from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import format_bytes
from zarrfeed.engine.stats import Stats
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.face.data import Data
from zarrfeed.packing.targets.timed_passes import Rate, time_passes
from zarrfeed.report.advice import advise
from zarrfeed.report.describe import describe
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import Mixing
from zarrfeed.spec.fields.field import streamed
from zarrfeed.storage.access.access import StoreAccess, ZarrFormat
from zarrfeed.storage.chunks.codec_configs import as_meant
from zarrfeed.tools.bench.plain import PlainLoader
from zarrfeed.tools.bench.plain_fields import PlainField, plain_field
from zarrfeed.torch.batches.batch import Values
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset

#: Decoded bytes, and samples, of the part that is measured.
_PART_BYTES, _PART_SAMPLES = 512 << 20, 1 << 22
#: Decoded bytes, and samples, of the blocks that are compared, at most; one block is always compared.
_CHECK_BYTES, _CHECK_SAMPLES = 16 << 20, 4096
#: So many blocks or shards are measured, if there are, however slow it is: few say little of many.
_LEAST_UNITS = 32
#: Rounds in which zarrfeed, plain zarr and the ceiling take turns; the median counts.
_ROUNDS = 3
#: A round of a fast loader is several passes, as long as this.
_LEAST_S = 0.3
#: The ceiling scatters over the memory of so many blocks, as far as the dataset has that much open.
_MOST_WINDOW = 64


@dataclass(frozen=True)
class PlainMode:
    """The mode in which plain zarr reads: threads of one process, or worker processes with a thread each."""

    num_workers: int
    num_threads: int

    def __str__(self) -> str:
        """Return the kind of reader, with the number of readers."""
        if self.num_workers:
            return f"{self.num_workers} worker process{'es' * (self.num_workers > 1)}"
        return f"{self.num_threads} thread{'s' * (self.num_threads > 1)}"


def plain_modes(num_threads: int) -> tuple[PlainMode, ...]:
    """Return the ways in which plain zarr uses as many cores as `num_threads` decode threads do.

    Worker processes are never more than the cores: torch warns that such a loader may freeze.
    """
    return PlainMode(0, num_threads), PlainMode(min(num_threads, usable_cores()), 1)


@dataclass
class StoreBench:
    """The comparison of loaders on one store.

    Parameters
    ----------
    path, targets
        Paths or URLs, which plain zarr opens.
    data
        The same arrays, as zarrfeed reads them.
    batch_size, shuffle
        Options of the dataset.
    seconds
        Seconds that each of the three measurements takes.
    say
        A function that takes a line of the report as soon as it is known.
    num_threads, memory_budget, mixing, faults
        Options of the dataset.
    storage_options
        Options of the stores of URLs.
    zarr_format
        2 or 3, the only format that plain zarr looks for. None: either.
    """

    path: str
    targets: str | None
    data: Data
    batch_size: int
    shuffle: bool
    seconds: float
    say: Callable[[str], None]
    num_threads: int | None = None
    memory_budget: int | str | None = None
    mixing: Mixing | None = None
    faults: Faults | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    zarr_format: ZarrFormat | None = None
    _first: Rate = field(init=False)
    _first_stats: Stats = field(init=False)
    _stats: Stats = field(init=False)
    _rates: dict[str, list[Rate]] = field(init=False)

    def __post_init__(self) -> None:
        with self._dataset(None) as dataset:  # reads metadata alone
            self._fields = dataset.session.schedule.fields
            if any(f.record is not None for f in self._fields.fields):
                raise UnsupportedError(f"{self.path}: bench does not measure records (structured dtypes)")
            if any(f.is_sparse for f in self._fields.fields):
                raise UnsupportedError(f"{self.path}: bench does not measure sparse matrices")
            if self.data.stores:
                first, count = next(iter(self.data.stores)), len(self.data.stores)
                raise UnsupportedError(f"{self.path}: bench measures one store, and these are {count}: give {first}")
            self._describe(dataset)
        self._units = self._choose_units()
        self._plain_fields = self._open_plain()

    def run(self) -> list[str]:
        """Check, measure and report; return the faults: an empty result, unless the loaders deliver different data."""
        problems = self._check()
        self._warm_up()
        with self._dataset(self._samples_of(self._units)) as dataset:
            explanation = dataset.explain()
            self._measure(dataset, explanation.num_threads, explanation.max_open_batches)
        self._report(explanation.num_threads)
        ceiling = self._ratio("zarrfeed", "ceiling")
        first, later = self._first_stats, self._per_s("zarrfeed") / max(self._first.per_s, 1e-9)
        cold = not first.requests and first.chunks_waited > first.chunks_read / 10
        tips = advise(self._whole, explanation, self._stats, cold_ratio=later if cold else 1.0, of_ceiling=ceiling)
        for number, tip in enumerate(tips or ["nothing that these figures show"]):
            self._row("change" if number == 0 else "", tip)
        return problems

    def _row(self, name: str, text: str) -> None:
        self.say(f"{name:<11} {text}")

    def _dataset(self, samples: npt.NDArray[np.int64] | None, *, return_index: bool = False) -> ZarrIterableDataset:
        return ZarrIterableDataset(
            self.data if samples is None else self.data.select(samples),
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            return_index=return_index,
            num_threads=self.num_threads,
            memory_budget=self.memory_budget,
            pin_memory=False,
            mixing=self.mixing,
            faults=self.faults,
        )

    def _describe(self, dataset: ZarrIterableDataset) -> None:
        self._row("store", describe(self._fields))
        self._whole = dataset.explain()
        for f in self._whole.fields:
            self._row(f.name if len(self._fields.fields) > 1 else "", f.description)

    # -- which part of the store ---------------------------------------------------------------------------------------

    @property
    def _sample_bytes(self) -> int:
        return max(1, sum(f.sample_bytes for f in self._fields.fields))

    def _choose_units(self) -> npt.NDArray[np.int64]:
        """Return the measured blocks, or shards if they are small enough, as rows of (begin, end) in samples."""
        n, rows = self._fields.num_samples, self._fields.block_rows
        primary = None if self._fields.primary is None else self._fields.fields[self._fields.primary]
        most = max(1, min(_PART_SAMPLES, _PART_BYTES // self._sample_bytes))
        if primary is not None and primary.layouts:
            spec = primary.layouts[0].spec
            whole = spec.shard_shape[spec.sample_axis]
            rows *= max(1, whole // rows) if whole <= most else 1
        count = -(-n // rows)
        chosen = np.random.default_rng(0).permutation(count)[: max(1, most // rows)] * rows
        return np.stack([chosen, np.minimum(chosen + rows, n)], axis=1)

    def _samples_of(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Return the samples in units, ascending; None if these are all."""
        if self._count(units) == self._fields.num_samples:
            return None
        return np.concatenate([np.arange(begin, end) for begin, end in units[np.argsort(units[:, 0])]])

    @staticmethod
    def _count(units: npt.NDArray[np.int64]) -> int:
        return int((units[:, 1] - units[:, 0]).sum())

    def _blocks(self, units: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        rows = self._fields.block_rows
        return [(i, min(i + rows, int(end))) for begin, end in units for i in range(int(begin), int(end), rows)]

    # -- what is compared ----------------------------------------------------------------------------------------------

    @property
    def _access(self) -> StoreAccess:
        return StoreAccess(storage_options=self.storage_options, zarr_format=self.zarr_format)

    def _open_plain(self) -> list[PlainField]:
        """Return the fields, as zarr-python alone delivers them."""
        arrays = _open_arrays(self.path, self.targets, self._fields.sides, self._access)
        opened = []
        for f, array in zip(self._fields.fields, arrays, strict=True):
            opened.append(plain_field(f, array))
        return opened

    def _plain(self, blocks: list[tuple[int, int]], mode: PlainMode, *, return_index: bool = False) -> PlainLoader:
        # Not a forked process: the clients of object stores do not survive a fork. Workers unpickle the arrays.
        multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
        return PlainLoader(
            partial(_open_arrays, self.path, self.targets, self._fields.sides, self._access),
            self._plain_fields,
            blocks,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            num_workers=mode.num_workers,
            num_threads=mode.num_threads,
            return_index=return_index,
            context="forkserver",
        )

    def _check(self) -> list[str]:
        """Compare the loaders' samples of some blocks, one by one; return the differences."""
        most = min(_CHECK_SAMPLES, _CHECK_BYTES // self._sample_bytes)
        blocks = self._blocks(self._units)
        size = blocks[0][1] - blocks[0][0]
        blocks = blocks[: max(1, most // size)]
        with self._dataset(self._samples_of(np.array(blocks, dtype=np.int64)), return_index=True) as dataset:
            ours = _checksums(_flat(batch) for batch in dataset)
            num_threads = dataset.explain().num_threads
        wrong = 0
        for mode in plain_modes(num_threads):
            with closing(self._plain(blocks, mode, return_index=True)) as loader:
                plain = _checksums(loader.epoch(0))
            wrong = max(wrong, sum(ours.get(i) != crc for i, crc in plain.items()) + len(ours.keys() - plain.keys()))
        self._row(
            "checked",
            f"{len(plain)} samples, CRC-32 of each: "
            + (f"{wrong} differ" if wrong else f"both deliver the same, sum {sum(plain.values()):#x}"),
        )
        return [f"zarrfeed and plain zarr deliver different data: {wrong} of {len(plain)} samples"] if wrong else []

    # -- times ---------------------------------------------------------------------------------------------------------

    @property
    def _turn_s(self) -> float:
        return self.seconds / _ROUNDS

    def _warm_up(self) -> None:
        """Read the part once, which brings it to the page cache, and less of it if that takes too long."""
        units = self._units
        for attempt in range(2):
            with self._dataset(self._samples_of(units)) as dataset:
                rate = time_passes(dataset, least_s=0, limit_s=self._turn_s)
            if attempt == 0:
                self._first, self._first_stats = rate, dataset.stats()
            if rate.complete or len(units) <= _LEAST_UNITS:
                break
            share = rate.samples / self._count(units)
            units = units[: max(_LEAST_UNITS, int(len(units) * share / 2))]
        self._units = units
        self._complete = rate.complete

    def _measure(self, dataset: ZarrIterableDataset, num_threads: int, max_open: int) -> None:
        blocks = self._blocks(self._units)
        part, n = self._count(self._units), self._fields.num_samples
        size = f"{format_bytes(part * self._sample_bytes)} as delivered"
        where = f"all {len(blocks)} blocks" if part == n else f"{len(blocks)} of {self._num_blocks} blocks, at random"
        order = "shuffled" if self.shuffle else "in order"
        self._row("measured", f"{where}: {part} samples, {size}; batches of {self.batch_size}, {order}")
        plain, self._plain_mode, self._other_plain = self._choose_plain(blocks, num_threads)
        self._no_ceiling = self._why_no_ceiling()
        rates: dict[str, list[Rate]] = {"zarrfeed": [], "plain": [], "ceiling": []}
        before = dataset.stats()
        with closing(plain):
            for number in range(_ROUNDS):
                least_s = min(_LEAST_S, self._turn_s)
                rates["zarrfeed"].append(time_passes(dataset, least_s=least_s, limit_s=self._turn_s))
                rates["plain"].append(Rate(*plain.time(number, self._turn_s)))
                if not self._no_ceiling:
                    rates["ceiling"].append(self._time_ceiling(num_threads, max_open))
        self._stats = dataset.stats() - before
        self._rates = rates
        self._plain_blocks = plain.blocks_together

    def _choose_plain(self, blocks: list[tuple[int, int]], num_threads: int) -> tuple[PlainLoader, PlainMode, str]:
        """Return the faster loader of plain zarr, its mode, and the rate of the other one: each has a turn."""
        loaders = {mode: self._plain(blocks, mode) for mode in plain_modes(num_threads)}
        tried: dict[PlainMode, Rate] = {}
        for mode, loader in loaders.items():
            loader.start()
            tried[mode] = Rate(*loader.time(_ROUNDS, self._turn_s))
        best, *others = sorted(tried, key=lambda mode: tried[mode].per_s, reverse=True)
        for mode in others:
            loaders[mode].close()
        lost = ", ".join(f"{mode}: {tried[mode].per_s / (tried[best].per_s or 1):.2f} of that" for mode in others)
        return loaders[best], best, lost

    @property
    def _num_blocks(self) -> int:
        return -(-self._fields.num_samples // self._fields.block_rows)

    def _why_no_ceiling(self) -> str:
        """Return the reason why no ceiling is measured; "" if one is measured."""
        for f in self._fields.fields:
            if f.item_type:
                return f"{f.name} is text, which zarr-python decodes"
            for spec in (layout.spec for layout in f.layouts):
                if spec.slow_codecs:
                    return f"{f.name} is decoded by zarr-python ({', '.join(spec.slow_codecs)})"
                if spec.in_python:
                    return f"{f.name} is not in a local directory"
        return (
            ""
            if self._complete
            else f"a pass takes longer than the {self._turn_s:.1f} s of a turn; give more --seconds"
        )

    def _time_ceiling(self, num_threads: int, max_open: int) -> Rate:
        """Read, decode and scatter the same chunks in bare loops, one field after the other."""
        seconds = 0.0
        blocks = self._blocks(self._units)
        open_bytes = max_open * self.batch_size * self._sample_bytes
        for f in streamed(self._fields.fields):
            rows = f.spec.rows_per_chunk
            chunks = sorted({i for begin, end in blocks for i in range(begin // rows, (end - 1) // rows + 1)})
            window = max(1, min(_MOST_WINDOW, open_bytes // (rows * f.sample_bytes)))
            seconds += core.measure_ceiling(
                f.to_core(), num_threads=num_threads, window_chunks=window, scatter=True, blocks=chunks
            )[0]
        return Rate(self._count(self._units), seconds)

    # -- the report ----------------------------------------------------------------------------------------------------

    def _per_s(self, name: str) -> float:
        return median(rate.per_s for rate in self._rates[name])

    def _ratio(self, name: str, other: str) -> float | None:
        """Return the median of the ratios within the rounds."""
        pairs = list(zip(self._rates[name], self._rates[other], strict=False))
        return median(a.per_s / b.per_s for a, b in pairs if b.per_s) if any(b.per_s for _, b in pairs) else None

    def _rate_text(self, per_s: float) -> str:
        return f"{per_s * self._sample_bytes / 1e9:7.3f} GB/s {per_s:11.1f} samples/s"

    def _report(self, num_threads: int) -> None:
        of_plain, of_ceiling = self._ratio("zarrfeed", "plain"), self._ratio("zarrfeed", "ceiling")
        threads = f"{num_threads} thread{'s' * (num_threads > 1)}"
        self._row("first pass", f"{self._rate_text(self._first.per_s)}   zarrfeed, as the store was found")
        ahead = f": {of_plain:.1f} times plain zarr" if of_plain else ""
        self._row("zarrfeed", f"{self._rate_text(self._per_s('zarrfeed'))}   {threads}{ahead}")
        together = f"{self._plain_blocks} permuted together" if self.shuffle else "in order"
        how = f"zarr-python: whole blocks, read ahead by {self._plain_mode} ({self._other_plain}), {together}"
        self._row("plain zarr", f"{self._rate_text(self._per_s('plain'))}   {how}")
        if of_ceiling is None:
            self._row("ceiling", f"not measured: {self._no_ceiling or 'nothing is read from disk'}")
        else:
            how = f"bare C++ loops on {threads}: zarrfeed reaches {of_ceiling:.2f} of it"
            self._row("ceiling", f"{self._rate_text(self._per_s('ceiling'))}   {how}")
        self._row("", f"Medians of {_ROUNDS} rounds, ratios within a round; nothing is computed with the batches.")
        limit = self._stats.limit
        self._row("limit", f"{limit.stage}: {limit.reason}")


def _flat(batch: Any) -> list[Any]:
    """Return the values of a batch, one a field."""
    if isinstance(batch, dict):
        return list(batch.values())
    if isinstance(batch, tuple):
        return [value for part in batch for value in _flat(part)]
    return [batch]


def _open_arrays(
    path: str, targets: str | None, sides: Sequence[tuple[str, ...] | None], access: StoreAccess
) -> list[zarr.Array[Any]]:
    """Open the arrays of all fields with zarr-python, in the order of the fields."""
    opened = []
    for source, keys in zip((path, targets), sides, strict=False):
        assert source is not None
        node: Any = open_source(source, access)
        for array in [node] if keys is None else [node[key] for key in keys]:
            assert isinstance(array, zarr.Array)
            opened.append(as_meant(array))
    return opened


def _checksums(batches: Iterable[Sequence[Values]]) -> dict[int, int]:
    """Return sample index -> checksum over all fields; the indices are the last value of each batch."""
    found = {}
    for *values, index in batches:
        rows = [v if isinstance(v, list) else list(_plain_bytes(v)) for v in values]
        for i, sample in zip(np.asarray(index).tolist(), zip(*rows, strict=True), strict=True):
            crc = 0
            for value in sample:
                crc = zlib.crc32(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode(), crc)
            found[i] = crc
    return found


def _plain_bytes(values: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of each sample, in which all NaNs are one."""
    if values.is_floating_point():
        values = torch.where(values.isnan(), torch.full((), torch.nan, dtype=values.dtype), values)
    flat: npt.NDArray[np.uint8] = values.contiguous().view(len(values), -1).view(torch.uint8).numpy()
    return flat
