"""`stats`: mean, standard deviation, bounds and missing values of samples, in one pass over them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.executors import open_executor, run_in_order
from zarrfeed.base.validate import check_flags, check_num_threads
from zarrfeed.metadata.description.measured_fields import Axis, MeasuredField, fits, measured, sparse_names
from zarrfeed.metadata.description.normalize_by import SIDES, Sides, labels_of, parse_sides, units_of
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import as_options
from zarrfeed.spec.values.statistics import FieldStatistics, Statistics
from zarrfeed.tools.stats.moments import Moments
from zarrfeed.tools.stats.partial import PartialFile
from zarrfeed.tools.stats.sample_ranges import Lengths, measure_range, measured_batches, merged, none_yet, task_of
from zarrfeed.torch.datasets.options import as_data

__all__ = ["Axis", "Progress", "stats"]

#: Bytes of a batch, and of a range. The same for every machine: the order of merging decides on the last bit.
_BATCH_BYTES, _RANGE_BYTES = 16 << 20, 256 << 20
#: So much work is lost if the process is killed.
_SAVE_EVERY_S = 5.0


@dataclass(frozen=True)
class Progress:
    """Progress of `stats`: the number of samples that were measured, and of all samples."""

    done: int
    total: int


def stats(
    data: Data | Source,
    *,
    axis: Axis = None,
    output: str | Path | None = None,
    restart: bool = False,
    normalized: bool = False,
    sides: Sides = SIDES,
    num_threads: int | None = None,
    memory_budget: int | str | None = None,
    executor: Executor | str | None = None,
    faults: Faults | Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_message: Callable[[str], None] = lambda _: None,
) -> Statistics:
    """Measure samples in one parallel pass: mean, standard deviation, least and greatest value, and share of NaN.

    The values are measured after decoding (`scale_factor`, fill values), before `cast` and `normalize`, in float64. For
    a window, the sample's own row counts. Coordinates, text and records are left out. The result is the same, bit by
    bit, for any number of threads, for any executor, and for a run that was interrupted and went on.

    Parameters
    ----------
    data
        The samples: a `Data`, or anything that `zarrfeed.open` takes.
    axis
        The axes whose indices have statistics of their own: an axis of the array, a dimension by its name such as
        "level", or several, such as ("lat", "lon") for each grid point. Among several arrays, it holds for those that
        have the axis. None: one number for each array.
    output
        A JSON file that keeps the result. If it holds statistics of the same samples and axes, they are returned, and
        nothing is read. While the pass runs, a file beside it (`.partial` at the end of its name) keeps the partial
        result, so that a run that was killed goes on when it is called again. None: nothing is kept.
    restart
        If True, measure anew, whatever the files hold.
    normalized
        If True, measure only the arrays that `Data.normalize` changes if it is given no `sides`: the same as
        `sides="samples"`.
    sides
        Sides whose arrays are measured: "samples", "targets", or both. `Data.normalize` takes the figures of the
        sides that its own `sides` names.
    num_threads
        Decode threads, and threads that measure. None: one for each core. With an executor it is the number of both of
        a task, and None is one.
    memory_budget
        Bytes, or text such as "2GiB", for decoding, as in `ZarrIterableDataset`. With an executor, for each task.
    executor
        The executor that measures, in tasks of about 256 MiB: an executor of `concurrent.futures`' kind (of Dask, MPI,
        Parsl, processes), "dask://HOST:PORT", "ray" or "ray://HOST:PORT". All workers must be able to open the stores,
        so arrays in memory are refused. None: threads of this process.
    faults
        A `Faults`, or a mapping. A chunk that cannot be read is an error; it cannot be skipped here.
    on_progress, on_message
        Called after each batch, and with a line for people, such as that an earlier run is continued.

    Returns
    -------
    Statistics by the names of the arrays.

    Raises
    ------
    ConfigError
        For a wrong argument, if there are no arrays of numbers, or if `output` is a file that holds something else.
    CorruptChunkError, StoreReadError
        For a chunk that cannot be decoded or read.
    OSError
        If a file cannot be written.
    RuntimeError
        If workers of the executor died, again and again. What was measured is kept beside `output`.

    Notes
    -----
    The fingerprint in the file tells which samples of which layout the statistics are of. It does not tell whether the
    store was written again with other values: give `restart=True` then.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"t2m": np.array([[270.0, 280.0], [290.0, 300.0]])})
    >>> zarrfeed.stats(data)["t2m"].mean
    array([285.])
    >>> zarrfeed.stats(data, axis=1)["t2m"].max
    array([290., 300.])
    """
    check_flags(restart=restart, normalized=normalized)
    check_num_threads(num_threads)
    faults = as_options(Faults, "faults", faults)
    if faults.skips:
        raise ConfigError("on_error = 'skip', must be 'raise': statistics would be of other samples")
    data = as_data(data, None, faults)
    plain, fields = measured(data.resolved, axis, ("samples",) if normalized else parse_sides(sides))
    for name in sparse_names(data.resolved):
        on_message(f"{name} is left out: no statistics are taken of sparse matrices")
    labels = labels_of(plain, plain.items)
    file, path = None, None if output is None else Path(output)
    if path is not None:
        known = _known(path, fields, restart=restart, say=on_message)
        if known is not None:
            return known
        work = "\n".join(field.fingerprint for field in fields)
        file = PartialFile(path, hashlib.sha256(work.encode()).hexdigest())
    options = {"num_threads": num_threads, "memory_budget": memory_budget, "faults": faults}
    run = _Run(replace(data, resolved=plain, growth=None), fields, file, on_progress)
    run.all(options, executor, restart=restart, say=on_message)
    result = Statistics(
        {field.name: _result(field, of) for field, of in zip(fields, run.moments, strict=True)},
        len(data),
        str(data),
        labels,
        units_of(plain.items, labels),
    )
    if path is not None:
        result.save(path)
    if file is not None:
        file.remove()
    return result


def _known(
    path: Path, fields: Sequence[MeasuredField], *, restart: bool, say: Callable[[str], None]
) -> Statistics | None:
    """Return the statistics in a file, if they are the ones asked for."""
    if not path.exists():
        return None
    statistics = Statistics.load(path)  # a file that is something else is not overwritten
    why = "" if restart else fits(statistics.fields, fields)
    if restart or why:
        say(f"{path}: is measured anew" + f": {why}" * bool(why))
        return None
    say(f"{path}: holds these statistics")
    return statistics


class _Run:
    """One pass over samples."""

    def __init__(
        self,
        data: Data,
        fields: Sequence[MeasuredField],
        file: PartialFile | None,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._data, self._fields, self._file, self._on_progress = data, fields, file, on_progress
        self._lengths = Lengths.of(data, _BATCH_BYTES, _RANGE_BYTES)
        self.moments, self._range = none_yet(fields), none_yet(fields)
        self._done = 0
        self._saved_at = 0.0

    def all(
        self,
        options: Mapping[str, Any],
        executor: Executor | str | None,
        *,
        restart: bool,
        say: Callable[[str], None],
    ) -> None:
        """Measure the samples that were not measured yet."""
        total = len(self._data)
        found = None if restart or self._file is None else self._file.load()
        if found is not None:
            self._done, self.moments, self._range = found
            say(f"{self._done} of {total} samples were measured before")
        if self._done == total:
            return
        self._save()  # a file that cannot be written is told before hours of work
        try:
            if executor is None:
                with closing(measured_batches(self._data, self._done, self._fields, self._lengths, options)) as batches:
                    for count, moments in batches:
                        self._range = merged(self._range, moments)
                        self._advance(count)
            else:
                self._share(executor, options)
        except BaseException:
            with suppress(OSError):  # the error that ends the run is raised, and not this one
                self._save()
            raise

    def _share(self, executor: Executor | str, options: Mapping[str, Any]) -> None:
        """Let an executor measure ranges, from the beginning of the one that is not whole."""
        if self._done % self._lengths.range:
            self._done -= self._done % self._lengths.range
            self._range = none_yet(self._fields)
        bounds = [*range(self._done, len(self._data), self._lengths.range), len(self._data)]
        tasks = (
            task_of(self._data, begin, end, self._fields, self._lengths, options) for begin, end in pairwise(bounds)
        )
        with (
            open_executor(executor, None) as (pool, at_once),
            closing(run_in_order(pool, measure_range, tasks, at_once)) as ranges,
        ):
            for count, moments in ranges:
                self._range = moments
                self._advance(count)

    def _advance(self, count: int) -> None:
        """Count samples as measured; merge a range that is whole."""
        self._done += count
        if self._done % self._lengths.range == 0 or self._done == len(self._data):
            self.moments, self._range = merged(self.moments, self._range), none_yet(self._fields)
        self._on_progress(Progress(self._done, len(self._data)))
        if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
            self._save()

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._done, self.moments, self._range)
            self._saved_at = time.monotonic()


def _result(field: MeasuredField, moments: Moments) -> FieldStatistics:
    count, missing = moments.count.reshape(field.shape), moments.missing.reshape(field.shape)
    none = count == 0
    total = count + missing
    with np.errstate(invalid="ignore"):
        std = np.sqrt(moments.squares.reshape(field.shape) / np.maximum(count, 1))
    numbers = (
        moments.mean.reshape(field.shape),
        std,
        moments.low.reshape(field.shape),
        moments.high.reshape(field.shape),
    )
    mean, std, low, high = (np.where(none, np.nan, values) for values in numbers)
    return FieldStatistics(
        field.axes,
        mean,
        std,
        low,
        high,
        missing / np.maximum(total, 1),
        int(total.flat[0]),
        field.fingerprint,
        field.side,
        field.steps,
    )
