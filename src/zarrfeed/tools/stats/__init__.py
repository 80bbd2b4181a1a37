"""`stats`: mean, standard deviation, bounds and missing values of samples, in one pass over them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.in_order import results_in_order
from zarrfeed.base.system import usable_cores
from zarrfeed.base.validate import check_flags, check_num_threads
from zarrfeed.metadata.data import Data
from zarrfeed.metadata.fields import Source
from zarrfeed.metadata.resolved import ResolvedData
from zarrfeed.metadata.statistics import Axis, MeasuredField, fits, measured
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.feeding import as_options
from zarrfeed.spec.field import sample_bytes
from zarrfeed.spec.statistics import FieldStatistics, Statistics
from zarrfeed.tools.stats.moments import Moments
from zarrfeed.tools.stats.partial import PartialFile
from zarrfeed.torch.iterable_dataset import ZarrIterableDataset
from zarrfeed.torch.options import as_data

__all__ = ["Axis", "Progress", "stats"]

#: Bytes of a batch. The same for every machine: what is merged with what decides on the last bit of the result.
_BATCH_BYTES = 16 << 20
#: So much work is lost if the process is killed.
_SAVE_EVERY_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How far `stats` is: samples that were measured, of all."""

    done: int
    total: int


def stats(
    data: Data | Source,
    *,
    axis: Axis = None,
    output: str | Path | None = None,
    restart: bool = False,
    normalized: bool = False,
    num_threads: int | None = None,
    memory_budget: int | str | None = None,
    faults: Faults | Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_message: Callable[[str], None] = lambda _: None,
) -> Statistics:
    """Measure samples in one parallel pass: mean, standard deviation, least and greatest value, and share of NaN.

    Values are those after decoding (`scale_factor`, fill values), before `cast` and `normalize`, in float64. Of a
    window, the sample's own row counts. Coordinates, text and records are left out. The result is the same, bit by bit,
    for any number of threads, and of a run that was interrupted and went on.

    Parameters
    ----------
    data
        The samples: a `Data`, or what `zarrfeed.open` takes.
    axis
        What has statistics of its own: an axis of the array, a dimension by its name such as "level", or several, such
        as ("lat", "lon") for each grid point. Of several arrays, those count along it that have it. None: one number
        for each array.
    output
        A JSON file that keeps the result. If it holds statistics of the same samples and axes, they are returned, and
        nothing is read. While the pass runs, a file beside it (`.partial` at the end of its name) keeps what is known,
        so that a run that was killed goes on when it is called again. None: nothing is kept.
    restart
        Whether to measure anew, whatever the files hold.
    normalized
        Whether to measure only the arrays that `Data.normalize("auto")` is for: those of `samples`.
    num_threads
        Decode threads, and threads that measure. None: one for each core.
    memory_budget
        Bytes, or text such as "2GiB", for decoding, as of `ZarrIterableDataset`.
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
    plain, fields = measured(data.resolved, axis, normalized=normalized)
    file, path = None, None if output is None else Path(output)
    if path is not None:
        known = _known(path, fields, restart=restart, say=on_message)
        if known is not None:
            return known
        work = "\n".join(field.fingerprint for field in fields)
        file = PartialFile(path, hashlib.sha256(work.encode()).hexdigest())
    options = {"num_threads": num_threads, "memory_budget": memory_budget, "faults": faults}
    run = _Run(replace(data, resolved=plain, growth=None), fields, file, on_progress)
    run.all(options, restart=restart, say=on_message)
    result = Statistics(
        {field.name: _result(field, of) for field, of in zip(fields, run.moments, strict=True)}, len(data), str(data)
    )
    if path is not None:
        result.save(path)
    if file is not None:
        file.remove()
    return result


def _known(
    path: Path, fields: Sequence[MeasuredField], *, restart: bool, say: Callable[[str], None]
) -> Statistics | None:
    """Return what a file holds, if it is what is asked for."""
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
        self.moments = [Moments.none_yet(_kept_shape(field)) for field in fields]
        self._done = 0

    def all(self, options: Mapping[str, Any], *, restart: bool, say: Callable[[str], None]) -> None:
        """Measure what is not known."""
        total = len(self._data)
        found = None if restart or self._file is None else self._file.load()
        if found is not None:
            self._done, self.moments = found
            say(f"{self._done} of {total} samples were measured before")
        if self._done == total:
            return
        self._save()  # a file that cannot be written is told before hours of work
        rest = _from(self._data, self._done)
        largest = sum(map(sample_bytes, rest.resolved.fields))
        size = max(1, min(total, _BATCH_BYTES // max(1, largest)))
        with ZarrIterableDataset(rest, batch_size=size, rank=0, world_size=1, pin_memory=False, **options) as dataset:
            self._measure(dataset, options["num_threads"] or usable_cores(), total)

    def _measure(self, dataset: ZarrIterableDataset, num_threads: int, total: int) -> None:
        """Measure batches side by side, and merge them in order."""
        saved_at = time.monotonic()
        with ThreadPoolExecutor(num_threads, "zarrfeed-stats") as pool:
            try:
                with closing(results_in_order(pool, self._of, dataset, num_threads + 1)) as measured:
                    for count, found in measured:
                        self.moments = [a.merge(b) for a, b in zip(self.moments, found, strict=True)]
                        self._done += count
                        self._on_progress(Progress(self._done, total))
                        if time.monotonic() - saved_at > _SAVE_EVERY_S:
                            self._save()
                            saved_at = time.monotonic()
            except BaseException:
                with suppress(OSError):  # what ends the run is told, and not this
                    self._save()
                raise

    def _of(self, batch: Mapping[str, Any]) -> tuple[int, list[Moments]]:
        """Return how many samples a batch has, and their moments."""
        arrays = [_as_array(tensor) for tensor in batch.values()]
        moments = [Moments.of(array, field.kept) for array, field in zip(arrays, self._fields, strict=True)]
        return len(arrays[0]), moments

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._done, self.moments)


def _from(data: Data, done: int) -> Data:
    """Return the samples from some position on."""
    resolved: ResolvedData = data.resolved
    return replace(data, resolved=resolved.select(slice(done, None))) if done else data


def _as_array(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    array: np.ndarray[Any, np.dtype[Any]]
    array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return array


def _kept_shape(field: MeasuredField) -> tuple[int, ...]:
    return tuple(field.shape[a - 1] for a in field.kept)


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
        field.axes, mean, std, low, high, missing / np.maximum(total, 1), int(total.flat[0]), field.fingerprint
    )
