"""`zarrfeed info --advise`: measure a store and candidates for a better layout, and describe both."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.job_memory import job_bytes
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.face.open_data import open as open_data
from zarrfeed.packing.targets.chunk_lengths import choose_chunk_rows
from zarrfeed.packing.targets.codec_trial import BUCKET_BYTES_PER_S, default_batch_size
from zarrfeed.packing.targets.layout_choice import (
    LayoutAdvice,
    SampledArray,
    choose_layouts,
    training_bytes_per_s,
)
from zarrfeed.packing.targets.timed_passes import time_passes
from zarrfeed.packing.targets.trial_store import best_rate
from zarrfeed.report.advice import advise
from zarrfeed.report.explain import Explanation
from zarrfeed.spec.fields.field import FieldSet, StoredField
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.tools.advise.advice_page import StoreAdvice
from zarrfeed.tools.advise.disk_rate import DiskRate, measure_disk
from zarrfeed.tools.advise.store_cost import StoreCost, not_tried, short_name
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset
from zarrfeed.torch.datasets.map_dataset import ZarrDataset

#: Decoded bytes of the samples that are compressed, in how many runs, and how long they are read for.
_SAMPLE_BYTES, _RUNS, _SAMPLE_S = 64 << 20, 8, 3.0
#: Decoded bytes of the part that is timed as it is stored; the time of a pass, and of a round of passes.
_PART_BYTES, _PASS_S, _ROUND_S = 128 << 20, 4.0, 0.2
#: A load average of this part of the cores disturbs the measurements.
_BUSY = 1 / 4
#: A store of less than this part of the memory is in the page cache from its second epoch on.
_OF_MEMORY = 1 / 2


@dataclass(frozen=True)
class Reading:
    """The options of the loader, as `ZarrIterableDataset` takes and chooses them."""

    batch_size: int | None = None
    seed: int = 0
    num_threads: int | None = None
    memory_budget: int | str | None = None
    mixing: Mapping[str, Any] | None = None
    faults: Mapping[str, Any] | None = None

    def dataset(self, data: Data) -> ZarrIterableDataset:
        """Return a shuffled dataset."""
        return ZarrIterableDataset(
            data,
            batch_size=self.batch_size,
            shuffle=True,
            seed=self.seed,
            rank=0,
            world_size=1,
            num_threads=self.num_threads,
            memory_budget=self.memory_budget,
            pin_memory=False,
            mixing=self.mixing,
            faults=self.faults,
        )


def advise_store(
    name: str,
    data: Data,
    stored: Data,
    *,
    reading: Reading | None = None,
    disk_bytes_per_s: float | None = None,
    choose: Callable[..., list[LayoutAdvice]] = choose_layouts,
) -> StoreAdvice:
    """Measure how a store is read, and choose a layout that is read faster.

    At most 64 MiB of samples are read for a few seconds and compressed by 8 codecs; another part of the store is
    timed as it is. Temporary stores of at most 256 MiB decoded are written to the system's temporary folder.

    Parameters
    ----------
    name
        Name of the store in the report.
    data, stored
        The samples as the loader delivers them, and as they are stored (opened with `decode_cf=False`).
    reading
        The options of the loader.
    disk_bytes_per_s
        Stored bytes a second of the disk. None: measured on the store's files, where these are local and not cached.
    choose
        The function that chooses the layouts: `choose_layouts`; tests pass another one.

    Raises
    ------
    ConfigError
        If no array of the store can be tried.
    CorruptChunkError, StoreReadError
        If a chunk cannot be read.
    """
    reading = reading or Reading()
    busy = _busy()
    fields = _fields(data)
    left_out = not_tried(fields.fields)
    wanted = [f for f in fields.fields if isinstance(f, StoredField) and short_name(f.name) not in left_out]
    if not wanted:
        why = "; ".join(f"{field}: {reason}" for field, reason in left_out.items())
        raise ConfigError(f"{name}: there is no array to choose a layout for ({why})")
    if reading.batch_size is None:
        reading = replace(reading, batch_size=default_batch_size(sum(f.spec.sample_bytes for f in wanted)))
    roots = [Path(f.spec.root) for f in wanted if f.spec.root]
    disk = None if disk_bytes_per_s is not None or not roots else measure_disk(roots)
    whole, now, tips, first = _measure_as_it_is(data, fields, reading)
    arrays = _sample(stored, wanted, reading)
    far = not roots and not any(isinstance(f.spec.source, StoreSource) and f.spec.source.file_format for f in wanted)
    in_memory = sum(_total_bytes(f) for f in wanted) * (now.stored_per_delivered or 1) < _OF_MEMORY * job_bytes()
    disk_rate = disk_bytes_per_s or (None if disk is None else disk.of_disk)
    source = BUCKET_BYTES_PER_S if far else None if in_memory and disk_bytes_per_s is None else disk_rate
    windows = max((_span(f) for f in wanted), default=1)
    layouts = choose(
        arrays,
        window_rows=windows,
        far=far,
        source_bytes_per_s=source,
        batch_size=reading.batch_size,
        num_threads=reading.num_threads,
        memory_budget=reading.memory_budget,
    )
    better = _cost_of(layouts, arrays, reading)
    reread = better.amplification
    # Compared with the rate as it is: that of a local store was measured in the page cache.
    better = replace(better, bytes_per_s=training_bytes_per_s(layouts, source if far else None, reread))
    rates = {
        "page_cache": training_bytes_per_s(layouts, None, reread),
        "disk": None if disk_rate is None else training_bytes_per_s(layouts, disk_rate, reread),
        "bucket": training_bytes_per_s(layouts, BUCKET_BYTES_PER_S, reread),
    }
    return StoreAdvice(
        store=name,
        batch_size=whole.batch_size,
        num_threads=whole.num_threads,
        now=now,
        first_bytes_per_s=first,
        better=better,
        layouts=tuple(layouts),
        left_out=left_out,
        predicted=rates,
        disk_bytes_per_s=disk_rate,
        source_bytes_per_s=source,
        tips=tuple(tips),
        assumed=tuple(_assumptions(arrays, disk, disk_bytes_per_s, far=far, in_memory=in_memory) + busy),
        is_local=not far,
    )


def _busy() -> list[str]:
    """Return a line if other programs keep the machine busy."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < _BUSY * cores:
        return []
    return [
        f"a load average of {load:.1f} on {cores} cores: the rates are lower, and less exact, than on a quiet machine"
    ]


def _fields(data: Data) -> FieldSet:
    with ZarrIterableDataset(data, batch_size=1, rank=0, world_size=1, pin_memory=False) as dataset:
        return dataset.session.schedule.fields


def _total_bytes(f: StoredField) -> int:
    return f.num_samples * f.spec.sample_bytes


def _span(f: StoredField) -> int:
    return 1 if f.window is None else max(f.window.offsets) - min(f.window.offsets) + 1


def _measure_as_it_is(
    data: Data, fields: FieldSet, reading: Reading
) -> tuple[Explanation, StoreCost, list[str], float | None]:
    """Measure the cost of the store as it is, list changes without another layout, and time the first pass."""
    with reading.dataset(data) as dataset:
        whole = dataset.explain()
        sample_bytes = whole.memory.batch_bytes / whole.batch_size
    part = _spread(len(data), max(1, int(_PART_BYTES / max(1, sample_bytes))), fields.block_rows, 32)
    with reading.dataset(data.select(part) if len(part) < len(data) else data) as dataset:
        measured = dataset.explain()
        first = time_passes(dataset, least_s=0, limit_s=_PASS_S)
        found = dataset.stats()
        per_s = first.per_s
        if first.complete:
            per_s = best_rate(lambda: time_passes(dataset, least_s=_ROUND_S, limit_s=_PASS_S).per_s)
        stats = dataset.stats()
    later = per_s / max(first.per_s, 1e-9)
    cold = not found.requests and found.chunks_waited > found.chunks_read / 10
    tips = advise(whole, measured, stats, cold_ratio=later if cold else 1.0)
    ratio = stats.chunk_bytes / stats.stored_bytes if stats.stored_bytes and stats.chunk_bytes else None
    cost = StoreCost.of(whole, fields.fields, ratio, per_s * sample_bytes if first.samples else None)
    return whole, cost, tips, first.per_s * sample_bytes if first.samples else None


def _spread(num_samples: int, most: int, block_rows: int, runs: int) -> npt.NDArray[np.int64]:
    """Return at most about `most` samples, ascending: runs that begin with a block, evenly spread."""
    if most >= num_samples:
        return np.arange(num_samples)
    length = max(1, most // runs)
    if length >= block_rows:
        length = length // block_rows * block_rows
    count = max(1, min(runs, most // length))
    begins = np.linspace(0, num_samples - length, count).astype(np.int64) // block_rows * block_rows
    return np.unique((begins[:, None] + np.arange(length)).ravel())


def _sample(stored: Data, wanted: Sequence[StoredField], reading: Reading) -> list[SampledArray]:
    """Read some samples of each array, as they are stored."""
    sample_bytes = sum(f.spec.sample_bytes for f in wanted)
    rows = choose_chunk_rows(max(f.spec.sample_bytes for f in wanted), len(stored))
    most = max(rows, _SAMPLE_BYTES // max(1, sample_bytes))
    length = max(rows, most // _RUNS // rows * rows)
    begins = np.unique(np.linspace(0, max(0, len(stored) - length), max(1, most // length)).astype(np.int64))
    begins = np.unique(begins // rows * rows)
    sides = _fields(stored).sides
    found: dict[str, list[npt.NDArray[Any]]] = {f.name: [] for f in wanted}
    begin = time.perf_counter()
    with closing(ZarrDataset(stored, num_threads=reading.num_threads, faults=reading.faults)) as dataset:
        for first in begins.tolist():
            batch: Any = dataset[range(first, min(first + length, len(stored)))]
            for field, values in _named(batch, sides):
                if field in found:
                    found[field].append(values.numpy())
            if time.perf_counter() - begin > _SAMPLE_S:
                break
    return [SampledArray(short_name(f.name), np.concatenate(found[f.name]), f.num_samples, _packing(f)) for f in wanted]


def _named(batch: Any, sides: Sequence[tuple[str, ...] | None]) -> list[tuple[str, Any]]:
    """Return the values of a batch with the names of their fields, as a `FieldSet` has them."""
    values = batch if len(sides) > 1 else (batch,)
    found: list[tuple[str, Any]] = []
    for part, keys, name in zip(values, sides, ("samples", "targets")[: len(sides)], strict=True):
        found += [(name, part)] if keys is None else [(f"{name}[{key!r}]", part[key]) for key in keys]
    return found


def _packing(f: StoredField) -> dict[str, Any]:
    """Return the attributes that make readers convert items as they convert those of a field."""
    made = None if f.conversion is None else f.conversion.decoding
    if made is None:
        return {}
    attributes: dict[str, Any] = {"scale_factor": made.scale, "add_offset": made.offset}
    attributes |= {"_FillValue": made.fills[0]} if made.fills else {}
    return {key: value for key, value in attributes.items() if value is not None}


def _cost_of(layouts: Sequence[LayoutAdvice], arrays: Sequence[SampledArray], reading: Reading) -> StoreCost:
    """Return the cost of an epoch of the advised store, of which metadata alone are written, to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="zarrfeed-advise-") as folder:
        opened: dict[str, zarr.Array[Any]] = {}
        for number, (one, array) in enumerate(zip(layouts, arrays, strict=True)):
            shape = array.rows.shape[1:]
            opened[str(number)] = zarr.create_array(
                Path(folder, str(number)),
                shape=(one.num_samples, *shape),
                chunks=(one.chunk_rows, *shape),
                shards=(one.shard_rows, *shape) if one.shard_rows else None,
                dtype=array.rows.dtype,
                compressors=one.encoding.zarr_compressors(array.rows.dtype.itemsize),
                filters=(),
                attributes=dict(array.attributes),
            )
        data = open_data(opened)
        with reading.dataset(data) as dataset:
            whole, fields = dataset.explain(), dataset.session.schedule.fields.fields
    stored = [one.sample_bytes / one.chosen.ratio for one in layouts if one.chosen is not None]
    tried = sum(one.sample_bytes for one in layouts if one.chosen is not None)
    return StoreCost.of(whole, fields, tried / sum(stored) if stored else None, None)


def _assumptions(
    arrays: Sequence[SampledArray], disk: DiskRate | None, given: float | None, *, far: bool, in_memory: bool
) -> list[str]:
    """Return lines that say which figures were measured, and which assumed."""
    samples = sum(one.rows.nbytes for one in arrays)
    lines = [
        f"measured: 8 codecs on {format_bytes(samples)} of the samples, decoded and fed by the engine from temporary "
        "stores in the page cache, on this machine as busy as it was",
        f"assumed: a bucket that brings {BUCKET_BYTES_PER_S / 1e9:.0f} GB/s of stored bytes; requests cost nothing",
    ]
    if given is not None:
        lines.append(f"assumed: a disk that brings {given / 1e9:.2f} GB/s, as --disk-rate says")
    elif far:
        lines.append("not measured: the store is not local; the codec is chosen for the bucket")
    elif disk is not None and disk.of_disk is not None:
        lines.append(
            f"measured: the disk brought {disk.bytes_per_s / 1e9:.2f} GB/s of {format_bytes(disk.read_bytes)} of the "
            "store's files"
        )
    else:
        known = disk is not None and disk.cached_share is not None
        share = f"{disk.cached_share:.0%} of what was read was" if disk is not None and known else "perhaps it was"
        lines.append(f"not measured: the disk, as {share} in the page cache; --disk-rate 1GB says what it brings")
    if not far and given is None:
        lines.append(
            "assumed: later epochs come from the page cache, for which memory has room; the codec is chosen for that"
            if in_memory
            else "the store is larger than half of the memory, so every epoch reads the disk; the codec is chosen for "
            "that rate, if it is known"
        )
    return lines
