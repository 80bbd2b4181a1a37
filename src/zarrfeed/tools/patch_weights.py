"""`patch_weights`: from labels or a mask, how likely each box of voxels is to be in the middle of drawn patches."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.in_order import results_in_order
from zarrfeed.base.system import usable_cores
from zarrfeed.base.validate import check_flags, check_int, check_num_threads
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.description.measured_fields import layout_fingerprint, samples_digest
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.feeding import as_options
from zarrfeed.spec.patches.patch_weights import PatchWeights
from zarrfeed.torch.datasets.iterable_dataset import ZarrIterableDataset
from zarrfeed.torch.datasets.options import as_data

__all__ = ["Progress", "patch_weights"]

_log = logging.getLogger("zarrfeed")

Float64: TypeAlias = npt.NDArray[np.float64]

#: Voxels of a cell along an axis, by its name or number; one number for all axes.
Cell: TypeAlias = int | Mapping[str | int, int]

_Found = TypeVar("_Found")

#: The key of shares that stands for all labels that they do not name.
_OTHERS = "others"

#: At most so many cells, of all labels together, unless the user names the cell.
_MOST_CELLS = 1 << 24
#: Bytes of labels that are read as one box, if their chunks are not larger.
_BOX_BYTES = 4 << 20
#: Bytes of a batch of boxes.
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class Progress:
    """Progress of `patch_weights`: the number of boxes that were counted, and of all boxes."""

    done: int
    total: int


def patch_weights(
    labels: Data | Source,
    shares: Mapping[int | str, float] | None = None,
    *,
    cell: Cell | None = None,
    output: str | Path | None = None,
    restart: bool = False,
    num_threads: int | None = None,
    memory_budget: int | str | None = None,
    faults: Faults | Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> PatchWeights:
    """Measure how likely voxels are to be in the middle of drawn patches, in one parallel pass over labels or a mask.

    Each chunk is decoded once, boxes of voxels at a time, so labels may be larger than memory. With shares of "others"
    it is decoded twice: to count the voxels of each label, then to weigh them.

    Parameters
    ----------
    labels
        An array of labels, a mask, or weights: a path, an array, several stores, or a `Data` with one array. Its axes
        are those that patches are cut along.
    shares
        The share of the drawn patches that have a voxel of a label in the middle, by label: {0: 1, 1: 3} for one patch
        of background to three of label 1, however many voxels each has. Shares need not add up to 1; labels that are
        not named are never in the middle. "others" are all labels that are not named, and share their part equally,
        each as one class: {0: 1, "others": 3} for one patch of background to three of an instance, where each instance
        is as likely as another, large or small. Padding and borders of patches move the shares where labels lie near
        the faces. None: the values are the weights, so all voxels of a mask are equally likely.
    cell
        Voxels of a cell along each axis, or by the axis: {"z": 4, "y": 16, "x": 16}. All voxels of a cell are equally
        likely, so a cell should be smaller than the labelled things. None: the least power of two, up to the length of
        an axis, that makes at most 2**24 cells, divided by the number of labels that are named.
    output
        A file that keeps the result, which `Data.patch(weights=...)` takes, too; its name ends with ".npz". If it
        holds weights of the same labels, shares and cells, they are returned, and nothing is read. None: nothing is
        kept.
    restart
        If True, measure anew, whatever the file holds.
    num_threads
        Decode threads, and threads that count. None: one for each core.
    memory_budget, faults
        Options for decoding, as in `ZarrIterableDataset`; a chunk that cannot be read is not skipped.
    on_progress
        Called after each batch.

    Returns
    -------
    Weights, `float32`, for `Data.patch(sampling="random", weights=...)`. Its `counts` are the voxels of each label.

    Raises
    ------
    ConfigError
        For a wrong argument, if there are several arrays, if no voxel has one of the labels, or if `output` is a file
        that holds something else.
    CorruptChunkError, StoreReadError
        For a chunk that cannot be decoded or read.
    OSError
        If the file cannot be written.

    Notes
    -----
    The fingerprint in the file tells the layout of the labels. It does not tell whether they were written again with
    other values: give `restart=True` then.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> tumour = np.zeros((32, 32), dtype="u1")
    >>> tumour[4:8, 4:8] = 1
    >>> weights = zarrfeed.patch_weights(zarr.array(tumour), {0: 1, 1: 1}, cell=4)
    >>> weights, weights.counts[1], round(float(weights.values[1, 1] / weights.values[0, 0]))
    (PatchWeights of 32 x 32 voxels, in 8 x 8 cells of 4 x 4, 16, 63)
    """
    check_flags(restart=restart)
    check_num_threads(num_threads)
    faults = as_options(Faults, "faults", faults)
    if faults.skips:
        raise ConfigError("on_error = 'skip', must be 'raise': weights would be those of other voxels")
    if output is not None and not str(output).endswith(".npz"):
        raise ConfigError(f"output = {str(output)!r}, must end with .npz")
    data = as_data(labels, None, faults)
    task = _Task.of(data, _parse_shares(shares), cell)
    path = None if output is None else Path(output)
    if path is not None and path.exists():
        known = PatchWeights.load(path)  # a file that is something else is not overwritten
        if known.fingerprint == task.fingerprint and not restart:
            return known
        _log.info("%s: is measured anew", path)
    elif path is not None:
        with TemporaryFile(dir=path.parent):  # a file that cannot be written is told before hours of work
            pass
    options = {"num_threads": num_threads, "memory_budget": memory_budget, "faults": faults}
    made = task.weights(options, on_progress)
    if path is not None:
        made.save(path)
    return made


@dataclass(frozen=True, eq=False)
class _Task:
    """The array to be measured, and the weights that are wanted.

    Attributes
    ----------
    data
        The boxes, as samples: they lie side by side.
    shape, cell
        Voxels of the array, and of a cell, for each axis: the sample axis first.
    dims
        Names of the axes. None: an axis has none.
    shares
        By label; those of "others" apart. None: the values are weights.
    fingerprint
        A hash of all that.
    others
        The share of all labels that have none of their own.
    """

    data: Data
    box: tuple[int, ...]
    shape: tuple[int, ...]
    cell: tuple[int, ...]
    dims: tuple[str, ...] | None
    shares: Mapping[int, float] | None
    fingerprint: str
    others: float = 0.0

    @classmethod
    def of(cls, data: Data, parsed: Mapping[int | str, float] | None, cell: Cell | None) -> _Task:
        """Find the boxes and the cells of an array."""
        shares = None if parsed is None else {label: share for label, share in parsed.items() if isinstance(label, int)}
        others = 0.0 if parsed is None else parsed.get(_OTHERS, 0.0)
        fields, all_items = data.resolved.fields, data.resolved.items
        if len(fields) != 1:
            raise ConfigError(
                f"labels: has {len(fields)} arrays, must have one; name it: zarrfeed.open(variables=[...])"
            )
        (field,), (items,) = fields, all_items
        if not (field.is_stored and field.has_numbers) or field.patch is not None:
            raise ConfigError("labels: must be a stored array of numbers, whose samples are no patches")
        kind = "" if items.dtype is None else np.dtype(items.dtype).kind
        if kind not in ("biu" if shares is not None else "biuf"):
            raise ConfigError(f"labels of dtype {items.dtype}, must be integers or a mask")
        order = [items.sample_axis, *(a for a in range(len(items.shape)) if a != items.sample_axis)]
        shape = tuple(items.shape[a] for a in order)
        names = None if items.dimensions is None else [items.dimensions[a] for a in order]
        dims = None if names is None or None in names else tuple(map(str, names))
        cells = _parse_cell(cell, items, order, shape, len(shares or (None,)))
        spec = field.layouts[0].spec
        chunk = [spec.chosen_chunk_shape[a] for a in order]
        box = _box(shape, cells, chunk, spec.decoded_bytes // math.prod(chunk))
        described = {
            "layout": layout_fingerprint(field, items, (), samples_digest(data.resolved)),
            "cell": cells,
            "shares": None if shares is None else sorted(shares.items()),
            **({_OTHERS: others} if others else {}),
        }
        fingerprint = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        boxes = data.patch(dict(zip(order, box, strict=True)), sampling="grid", border="pad")
        return cls(boxes, box, shape, cells, dims, shares, fingerprint, others)

    def _counts(self, options: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> Counter[int]:
        """Return how many voxels have each label."""
        counts: Counter[int] = Counter()
        for found in self._passed(_labels, options, on_progress):
            counts.update(found)
        return counts

    def _sums_of_labels(
        self, of_voxels: _OfVoxels, num_sums: int, options: Mapping[str, Any], on_progress: Callable[[Progress], None]
    ) -> list[Float64]:
        """Return the sums over each cell of some numbers of its voxels."""
        table = tuple(-(-n // of) for n, of in zip(self.shape, self.cell, strict=True))
        sums = [np.zeros(table) for _ in range(num_sums)]

        def added(box: _Box) -> tuple[tuple[slice, ...], list[Float64]]:
            cells, before = box.cells(self.cell)
            return cells, [_added(one, before, self.cell) for one in of_voxels(box.voxels)]

        for cells, found in self._passed(added, options, on_progress):
            for total, one in zip(sums, found, strict=True):
                total[cells] += one
        return sums

    def _passed(
        self,
        measure: Callable[[_Box], _Found],
        options: Mapping[str, Any],
        on_progress: Callable[[Progress], None],
    ) -> Iterator[_Found]:
        """Measure all boxes in several threads; yield in their order what was found."""
        size = max(1, min(len(self.data), _BATCH_BYTES // (math.prod(self.box) * _item_bytes(self.data))))
        threads = options["num_threads"] or usable_cores()
        setup = {"batch_size": size, "rank": 0, "world_size": 1, "pin_memory": False, "return_index": True, **options}
        with (
            ZarrIterableDataset(self.data, **setup) as dataset,
            ThreadPoolExecutor(threads, "zarrfeed-weights") as pool,
            closing(
                results_in_order(pool, lambda batch: [measure(one) for one in self._boxes(batch)], dataset, threads + 1)
            ) as batches,
        ):
            done = 0
            for found in batches:
                yield from found
                done += len(found)
                on_progress(Progress(done, len(self.data)))

    def _boxes(self, indexed: tuple[Any, Any]) -> list[_Box]:
        """Return the voxels of each box of a batch, which comes with the numbers of its boxes."""
        batch, numbers = indexed
        (boxes,) = batch.values() if isinstance(batch, dict) else (batch,)
        stores, starts = self.data.locate(numbers.numpy())
        opened = self.data.resolved.origin.stores
        first = np.zeros(len(stores), dtype=np.int64) if opened is None else opened.first[stores]
        volume, end = self.data.resolved.patching, np.array(self.shape)
        assert volume is not None
        found = []
        for box, start, of_store in zip(boxes.numpy(), starts, first, strict=True):
            begin = start.copy()
            begin[0] += of_store
            run = np.searchsorted(volume.volumes.begin, begin[0], side="right") - 1
            inside = np.minimum(begin + self.box, end)
            inside[0] = min(inside[0], volume.volumes.end[run])
            # the axes of a box are in the order of the array
            axes = np.moveaxis(box, self._sample_axis, 0)
            found.append(_Box(axes[tuple(map(slice, inside - begin))], begin.tolist(), inside.tolist()))
        return found

    @property
    def _sample_axis(self) -> int:
        return self.data.resolved.items[0].sample_axis

    def weights(self, options: Mapping[str, Any], on_progress: Callable[[Progress], None]) -> PatchWeights:
        """Measure the weights, in one pass over the labels, or two with `others`."""
        counts: dict[int, int] = {}
        if self.shares is None:
            (made,) = self._sums_of_labels(_as_weights, 1, options, on_progress)
        elif self.others:
            counts = dict(sorted(self._counts(options, on_progress).items()))
            shares = self._shares(counts)
            (made,) = self._sums_of_labels(_Weigh.of(counts, shares), 1, options, on_progress)
        else:
            named = list(self.shares)
            sums = self._sums_of_labels(
                lambda voxels: [voxels == label for label in named], len(named), options, on_progress
            )
            counts = {label: round(float(of.sum())) for label, of in zip(named, sums, strict=True)}
            made = sum(  # type: ignore[assignment]
                of * (share / max(1, counts[label]))
                for (label, share), of in zip(self._shares(counts).items(), sums, strict=True)
            )
        lengths = [
            np.minimum(np.arange(1, len_cells + 1) * of, n) - np.arange(len_cells) * of
            for len_cells, of, n in zip(made.shape, self.cell, self.shape, strict=True)
        ]
        for axis, length in enumerate(lengths):
            made = made / length.reshape([-1 if a == axis else 1 for a in range(made.ndim)])
        top = made.max()
        values = (made / top if top > 0 else made).astype(np.float32)  # no weight is too small for float32
        return PatchWeights(values, self.cell, self.shape, self.dims, MappingProxyType(counts), self.fingerprint)

    def _shares(self, counts: Mapping[int, int]) -> dict[int, float]:
        """Return the share of each label, given the number of voxels of each; those of none are told.

        Raises
        ------
        ConfigError
            If no voxel has a label with a share.
        """
        shares = dict(self.shares or {})
        others = [label for label in counts if label not in shares]
        shares |= dict.fromkeys(others, self.others / max(1, len(others)))
        if not any(counts.get(label) and share for label, share in shares.items()):
            others_too = {_OTHERS: self.others} if self.others else {}
            raise ConfigError(
                f"shares = {dict(self.shares or {}) | others_too}: no voxel has a label with a share, must be some"
            )
        none = [label for label in shares if not counts.get(label)]
        if none:
            _log.warning("patch_weights: no voxel has one of the labels %s; the others share the patches", none)
        return shares


@dataclass(frozen=True, eq=False)
class _Box:
    """The voxels of a box, which are those from `begin` to `end`."""

    voxels: npt.NDArray[Any]
    begin: Sequence[int]
    end: Sequence[int]

    def cells(self, cell: Sequence[int]) -> tuple[tuple[slice, ...], list[int]]:
        """Return the cells that the voxels lie in, and how many voxels of the first one lie before them, by axis."""
        box = tuple(slice(b // of, -(-e // of)) for b, e, of in zip(self.begin, self.end, cell, strict=True))
        return box, [b % of for b, of in zip(self.begin, cell, strict=True)]


#: Numbers that are added up over the voxels of a cell, given the voxels.
_OfVoxels: TypeAlias = Callable[[npt.NDArray[Any]], Sequence[npt.NDArray[Any]]]


def _as_weights(voxels: npt.NDArray[Any]) -> Sequence[npt.NDArray[Any]]:
    """Return voxels whose values are weights."""
    if voxels.dtype.kind in "if" and not (voxels.min(initial=0) >= 0 and np.isfinite(voxels.max(initial=0))):
        raise ConfigError(
            "labels: has values that are negative, NaN or infinite, must have weights that are finite and not negative"
        )
    return [voxels]


@dataclass(frozen=True, eq=False)
class _Weigh:
    """The weight of each voxel by its label: the share of the label, over the number of voxels that have it.

    Attributes
    ----------
    labels
        The labels, ascending, shape (labels,).
    weights
        The weight of a voxel of each, and that of a voxel without a label, which is NaN, shape (labels + 1,).
    """

    labels: npt.NDArray[Any]
    weights: Float64

    @classmethod
    def of(cls, counts: Mapping[int, int], shares: Mapping[int, float]) -> _Weigh:
        """Return the weights of labels in ascending order, given the voxels and the share of each."""
        return cls(np.array(list(counts)), np.array([*(shares[label] / n for label, n in counts.items()), 0]))

    def __call__(self, voxels: npt.NDArray[Any]) -> Sequence[Float64]:
        """Return the weights of voxels."""
        found, inverse = np.unique(voxels, return_inverse=True)
        of_label = self.weights[np.searchsorted(self.labels, found)]
        return [of_label[inverse].reshape(voxels.shape)]


def _labels(box: _Box) -> dict[int, int]:
    """Count the voxels of each label of a box."""
    labels, counts = np.unique(box.voxels, return_counts=True)
    are_labels = labels == labels  # and no NaN, as decoded fill values are
    return {int(label): n for label, n in zip(labels[are_labels].tolist(), counts[are_labels].tolist(), strict=True)}


def _added(voxels: npt.NDArray[Any], before: Sequence[int], cell: Sequence[int]) -> Float64:
    """Return the sums of the cells that voxels lie in; the first cell has `before` voxels in front of them."""
    pads = [(b, -(b + n) % of) for b, n, of in zip(before, voxels.shape, cell, strict=True)]
    made = np.pad(voxels, pads) if np.any(pads) else voxels
    dtype: Any = np.float64
    if voxels.dtype == bool and math.prod(cell) < 1 << 32:
        dtype = np.uint32
    for axis, of in enumerate(cell):
        shape = made.shape
        made = made.reshape(*shape[:axis], shape[axis] // of, of, *shape[axis + 1 :]).sum(axis=axis + 1, dtype=dtype)
    return made.astype(np.float64)


def _item_bytes(data: Data) -> int:
    return np.dtype(data.resolved.items[0].dtype).itemsize


def _parse_shares(shares: Any) -> Mapping[int | str, float] | None:
    if shares is None:
        return None
    if not isinstance(shares, Mapping) or not shares:
        raise ConfigError(f"shares = {shares!r}, must be a mapping of labels to shares: {{0: 1, 1: 3}}")
    made: dict[int | str, float] = {}
    for label, share in shares.items():
        if label != _OTHERS:
            check_int(f'a label of shares (or "{_OTHERS}")', label, -(2**63), 2**64 - 1)
        if isinstance(share, bool) or not isinstance(share, int | float | np.number) or not 0 <= share < math.inf:
            raise ConfigError(f"shares of label {label} = {share!r}, must be a finite number of at least 0")
        made[label if label == _OTHERS else int(label)] = float(share)
    if not any(made.values()):
        raise ConfigError(f"shares = {shares!r}: all are 0, one must not be")
    return made


def _parse_cell(
    cell: Any, items: Items, order: Sequence[int], shape: Sequence[int], num_labels: int
) -> tuple[int, ...]:
    """Return the voxels of a cell along each axis, the sample axis first."""
    if cell is None:
        side = 1
        while math.prod(-(-n // side) for n in shape) * num_labels > _MOST_CELLS:
            side *= 2
        return tuple(min(side, n) for n in shape)
    if not isinstance(cell, Mapping):
        check_int("cell", cell, 1, 2**31)
        return tuple(min(int(cell), n) for n in shape)
    made: list[int] = [1] * len(shape)
    for dim, voxels in cell.items():
        check_int(f"cell of {dim!r}", voxels, 1, 2**31)
        made[order.index(_axis(dim, items))] = int(voxels)
    return tuple(min(one, n) for one, n in zip(made, shape, strict=True))


def _axis(dim: Any, items: Items) -> int:
    axis = items.axis_of(dim) if isinstance(dim, str | int) and not isinstance(dim, bool) else None
    if axis is None:
        known = items.dimensions or items.shape
        raise ConfigError(f"cell of {dim!r}: must be a dimension or an axis of {items.name}: {known}")
    return axis


def _box(shape: Sequence[int], cell: Sequence[int], chunk: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Return the voxels of a box along each axis: whole cells, near whole chunks, of few bytes if chunks are small."""
    box = [of * max(1, length // of) for of, length in zip(cell, chunk, strict=True)]
    for axis in reversed(range(len(box))):  # small chunks are read together, neighbours in memory first
        while box[axis] < shape[axis] and 2 * math.prod(box) * item_bytes <= _BOX_BYTES:
            box[axis] *= 2
    return tuple(box)
