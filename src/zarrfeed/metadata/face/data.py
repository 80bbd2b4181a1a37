"""`open` and `Data`: what the samples are, described once and read by any dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.page import as_html
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.base.validate import check_flags
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face import calls
from zarrfeed.metadata.face.data_items import ItemMethods
from zarrfeed.metadata.face.data_page import data_rows
from zarrfeed.metadata.face.labels import select_labels, select_positions
from zarrfeed.metadata.group.segments import SegmentEnds, read_segment_ends
from zarrfeed.metadata.patches.patch_request import Dim, PadVoxels, PatchRequest, PatchSampling
from zarrfeed.metadata.patches.read_weights import WeightsLike, frozen_weights, read_weights
from zarrfeed.metadata.patches.store_table import locate_samples, source_of
from zarrfeed.metadata.stores.growth import Growth, Step
from zarrfeed.plan.patches.tiling import Border
from zarrfeed.plan.samples.labels import Method
from zarrfeed.plan.samples.selection import Select
from zarrfeed.plan.samples.split import By
from zarrfeed.plan.samples.window_rows import WindowRows
from zarrfeed.plan.samples.windows import Offsets, PadLike
from zarrfeed.spec.expression import Call, Expression, FieldInfo
from zarrfeed.spec.field import BlockKind
from zarrfeed.spec.version import Version


@dataclass(frozen=True, eq=False, repr=False)
class Data(ItemMethods):
    """A description of samples: which arrays, which samples of them, and how their items are converted.

    `zarrfeed.open` and `zarrfeed.from_xarray` make one; each method returns another one and leaves this one as it is.
    `ZarrIterableDataset(data, ...)` and `ZarrDataset(data, ...)` read it. A method costs no I/O, unless it says so:
    metadata were read when the arrays were opened. What cannot work is refused by the method that asks for it, with a
    ConfigError. A `Data` holds what can be settled in index space or while rows are copied into a batch; any other
    change of a sample is for the `transform` of a dataset.

    A `Data` prints as the expression that made it, can be pickled, and is immutable. Two are equal if their expressions
    are, and if the metadata, and the values of arrays in memory, were the same when the arrays were opened.

    Attributes
    ----------
    expression
        What was opened, and which methods were called.
    resolved
        What that stands for; datasets read it.
    growth
        If it was opened with `refresh`: the store that grows. Else None.
    version
        What that store held when it was opened.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"t2m": np.zeros((100, 4, 8), "f4"), "z": np.ones((100, 8), "f4")})
    >>> data = data.select(slice(0, 80)).window((-1, 0)).normalize({"t2m": (278.4, 21.1)}).cast("bfloat16")
    >>> len(data)
    79
    >>> for field in data.fields:
    ...     print(field.name, field.shape, field.dtype)
    t2m (2, 4, 8) bfloat16
    z (2, 8) bfloat16
    >>> train, validation = data.split((0.75, 0.25), by="contiguous")
    >>> len(train), len(validation)
    (60, 18)
    """

    expression: Expression
    resolved: ResolvedData
    growth: Growth | None = None
    version: Version | None = None

    def select(self, samples: Select) -> Data:
        """Choose samples by their positions in this description.

        Parameters
        ----------
        samples
            A slice, distinct indices in any order (negative ones count from the end), or a mask (bool) with a flag for
            each sample of this description. Samples are read in the order of the array or shuffled, never in the order
            of a list. They keep their index in the array, which `return_index=True` delivers.

        Notes
        -----
        Chunks without a selected sample are not read. Windows read rows of selected samples alone, so `select` precedes
        `window`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(100)).select(slice(10, 50)).select([0, 3, -1])
        >>> zarrfeed.ZarrDataset(data)[[0, 1, 2]]
        tensor([10, 13, 49])
        """
        return self._then(calls.select_call(samples), Step("select", (samples,)))

    def sel(
        self, labels: Mapping[str, Any] | None = None, *, method: Method | None = None, coords: Any = None, **named: Any
    ) -> Data:
        """Choose samples by their labels, as xarray does: `data.sel(time=slice("2015", "2018"))`.

        Parameters
        ----------
        labels
            The same as a mapping, for names that are no keywords.
        method
            "nearest": for a label that the coordinate lacks, the sample with the nearest value is taken.
        coords
            The coordinate, where none is stored: a value for each sample of the arrays, selected or not; or its array.
        **named
            The name of the sample dimension, or of another coordinate along it, with a slice of labels, both ends
            included; a list of labels; one label, which names all samples that have it; or a mask. Labels of times are
            datetime64, datetime, or text: "2015-03" names the whole month, but in a list its first instant.

        Raises
        ------
        ConfigError
            If no such coordinate is stored, a label is missing or, of a list, not unique, or a slice is taken of a
            coordinate that is not sorted.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> hours = np.arange("2015-01-01", "2017-01-01", dtype="M8[h]")
        >>> len(zarrfeed.open(np.arange(len(hours))).sel(time="2016-02", coords=hours)) // 24
        29
        """
        call, samples = select_labels(self.resolved, labels, named, method=method, coords=coords, growth=self.growth)
        return self._then(call, Step("select", (samples,)))

    def isel(self, positions: Mapping[str, Any] | None = None, **named: Any) -> Data:
        """Choose samples by position, as xarray does: `data.isel(time=slice(0, 100))` is `select(slice(0, 100))`.

        Parameters
        ----------
        positions
            The same as a mapping, {"time": slice(0, 100)}.
        **named
            The name of the sample dimension, with a position, or what `select` takes.
        """
        call, samples = select_positions(self.resolved, positions, named)
        return self._then(call, Step("select", (samples,)))

    @checks_option_names
    def blocks(self, blocks: npt.ArrayLike, *, of: BlockKind = "chunk") -> Data:
        """Choose what of the samples lies in some chunks along the sample axis.

        Parameters
        ----------
        blocks
            Indices of chunks of the array along the sample axis, or a single one; negative ones count from the end. Of
            several arrays, the chunks of the primary one count, which `explain()` of a dataset names.
        of
            "chunk": in a sharded array, an inner chunk. "shard": indices are of whole shards.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> array = zarr.array(np.arange(100), chunks=(10,))
        >>> len(zarrfeed.open(array).blocks([0, 3, -1]))
        30
        """
        return self._then(calls.blocks_call(blocks, of), Step("blocks", (blocks, of)))

    @checks_option_names
    def window(
        self,
        offsets: Offsets | Mapping[str, Offsets],
        *,
        segment_ends: SegmentEnds | None = None,
        rows: WindowRows | None = None,
        pad: PadLike | Mapping[str, PadLike] | None = None,
        mask: bool = False,
    ) -> Data:
        """Make each sample a window: the rows at some distances from its own.

        Parameters
        ----------
        offsets
            Distances along the sample axis, such as (-2, -1, 0, 1): a sample has these rows along a new first axis. A
            single integer takes that row, without the axis. The offsets hold for every array of `samples`; a mapping of
            names says which arrays they are for: {"samples": (-1, 0), "targets": 1}.
        segment_ends
            Where the array consists of segments, such as episodes: the index after the last sample of each, ascending.
            The last one is the length of the array. No window reaches from one segment into another. Or an array of
            Zarr that has these numbers, or its path: of its own, or in the same store, such as "meta/episode_ends".
        rows
            Which rows windows may read; a sample whose window has any other row is left out. "selected": all rows
            between the bounds of a selected slice, or those that a list or a mask names. "all": every row of the array.
            Or rows, as `select` names samples of the array: slice(0, 700). None: "selected", but refused where that
            leaves less than half of a list or a mask.
        pad
            What takes the place of rows beyond the ends of a segment, of a selected slice, of a store, or of the array.
            "edge": the first or the last row that is inside. "nan", or a number: a value in every item, as it stands in
            the batch. Or a mapping of names to these, as of `offsets`. None: samples that lack a row are left out.
        mask
            Whether a batch says which rows are padded: for each padded array a bool tensor of shape (batch, rows of the
            window), True where the row is padded. It is named like the array, with "_is_pad" behind. A single array
            then comes in a dict, as "samples" or "targets", beside its mask.

        Notes
        -----
        The repr of a dataset and `explain()` say how many samples are left out.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(10), np.arange(10)).window({"samples": (-1, 0), "targets": 1})
        >>> zarrfeed.ZarrDataset(data)[0]
        (tensor([0, 1]), tensor(2))
        >>> data = zarrfeed.open({"action": np.arange(6)})
        >>> data = data.window((-1, 0, 1), segment_ends=[2, 6], pad="edge", mask=True)
        >>> sample = zarrfeed.ZarrDataset(data)[1]
        >>> sample["action"], sample["action_is_pad"]
        (tensor([0, 1, 1]), tensor([False, False,  True]))
        """
        check_flags(mask=mask)
        ends = read_segment_ends(segment_ends, self.resolved.opened)
        step = Step("window", (offsets, ends, rows, pad, mask))
        resolved = step(self.resolved)  # what is wrong with the arguments is said before they are frozen
        return self._then(calls.window_call(offsets, ends, rows, pad, mask), step, resolved)

    @checks_option_names
    def patch(
        self,
        size: Mapping[Dim, int],
        *,
        context: Mapping[str, Mapping[Dim, int]] | None = None,
        sampling: PatchSampling = "tiles",
        border: Border | Mapping[Dim, Border] = "pad",
        stride: Mapping[Dim, int] | None = None,
        pad: PadVoxels = 0,
        positions: npt.ArrayLike | None = None,
        n: int | None = None,
        weights: WeightsLike | None = None,
        flip: Sequence[Dim] = (),
        rotate: Sequence[Dim] = (),
        isel: Mapping[Dim, int | slice | Sequence[int]] | None = None,
    ) -> Data:
        """Make each sample a patch: a box of the arrays, such as 64 x 64 x 64 voxels of a volume.

        Parameters
        ----------
        size
            Voxels of a patch along dimensions, by their names or the numbers of axes: {"z": 64, "y": 64, "x": 64}.
            Samples have other axes, such as channels, as a whole. The sample axis need not be named: samples of images
            over time are then (time, box), without an axis over time, or with that of a window that was called before.
            All arrays must have these dimensions, of the same lengths, and are cut alike. Of several resolutions
            (`zarrfeed.open(..., multiscale=)`), these are voxels of the first level, and each other level has the box
            of the same extent: `ceil(size / factor)` of its own voxels.
        context
            By the name of an array, how many of its own voxels a patch has along dimensions, in place of those of the
            same extent: {"2": {"z": 64, "y": 64, "x": 64}}. The box of the same extent is in the middle of them. What
            lies beyond the volume is padded, whatever `border` is, unless that is "wrap".
        sampling
            "tiles": patches lie side by side, and each epoch of a dataset moves all of them by a random distance below
            their size. "grid": patches begin at 0, `stride`, 2 `stride`, ..., the same in all epochs, as validation
            wants it. "positions": patches begin at `positions`, each once in an epoch, in shuffled order.
            "random": each epoch draws `n` patches.
        border
            What becomes of patches that reach beyond a volume; for all dimensions, or by dimension. "pad": they are
            kept, so each voxel comes exactly once in an epoch of tiles. "drop": they are left out. "shift": they are
            moved inside, so some voxels come several times. "wrap": the dimension is periodic, as longitude is.
        stride
            With "grid": voxels from one patch to the next, at most `size`. None: `size`.
        pad
            What voxels beyond the volume are, with border "pad": a number, as it stands in a batch; "nan"; "edge", the
            nearest voxel inside; or "reflect", voxels mirrored at the border.
        positions
            With "positions": the first voxel of each patch, integers of shape (patches, dimensions), as `locate` has
            it. The sample axis comes first, named in `size` or not, then the others in the order of `size`. Of several
            stores, a first column has the number of the store. Patches may begin before the first voxel and end beyond
            the last one; `border` is "pad" or "wrap". Equal positions are patches of their own.
        n
            With "random": patches of an epoch. All positions are equally likely: with border "drop" those where a patch
            lies inside, with "pad" those where it has a voxel of the volume, with "wrap" all voxels.
        weights
            With "random": how likely each voxel is to be in the middle of a patch, at `start + size // 2`: a mask, or
            numbers that are not negative; an array, an array of Zarr, or its path. Its axes are those of `positions`,
            with the samples of all stores one after another. It has a value for each voxel, or lies on a coarser grid,
            whose shape divides that of the voxels, or on that of a `PatchWeights`, which `zarrfeed.patch_weights`
            measures, or of its file. A patch begins at s with the probability
            `w[(s + size // 2) // cell] / sum(w)`, where the sum is over all voxels that may be in the middle: those
            of patches that lie inside, with border "drop"; else all. None: positions are equally likely.
        flip
            Dimensions that `size` names, such as ["z", "y", "x"]. Each patch is reversed along each of them, or not,
            with probability 1/2: all arrays alike, anew in each epoch, and with or without shuffling.
        rotate
            Two dimensions, or three, along which patches have the same size, such as ["y", "x"]. Each patch is rotated
            by 0, 90, 180 or 270 degrees in the plane of two, or is in one of the 24 orientations that rotations give a
            cube, all equally likely; then it is flipped.
        isel
            Which items samples have along other axes, such as channels, as of xarray's `isel`: {"c": [0, 2]}. An
            integer takes the axis away. Arrays without the dimension stay as they are.

        Raises
        ------
        ConfigError
            If an array lacks a dimension, lengths differ, a patch is larger than its volume and is not padded, a
            position is that of a patch without a voxel of a volume, or an array is normalised by other numbers from
            voxel to voxel along a dimension that is flipped or rotated.

        Notes
        -----
        `weights` are read at once, and kept in memory, at most 256 MiB of them; nothing else is read.

        Each store, and each run of selected samples, is a volume, which patches do not leave. Epochs differ in length,
        as tiles lie differently: `len()` of a dataset is that of its next epoch. `return_index=True` delivers numbers
        that say where patches begin, the same in all epochs: `locate` takes them apart.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> volume = zarr.array(np.arange(40**3).reshape(40, 40, 40), chunks=(20, 20, 20))
        >>> data = zarrfeed.open(volume).patch({0: 16, 1: 16, 2: 16})
        >>> dataset = zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True)
        >>> next(iter(dataset)).shape
        torch.Size([4, 16, 16, 16])
        """
        if weights is not None and self.growth is not None:
            raise ConfigError("weights of a store that is opened with refresh: it may grow, and weights do not")
        read = read_weights(weights)
        request = PatchRequest.parse(
            size, sampling, border, stride, pad, positions, n, read, context, flip, rotate, isel
        )
        call = calls.patch_call(request, size, context, border, stride, pad, positions, frozen_weights(read))
        return self._then(call, Step("patch", (request,)))

    def with_offsets(self, offsets: Offsets | Mapping[str, Offsets]) -> Data:
        """Make windows with other offsets of the same samples, in place of those of `window`.

        Parameters
        ----------
        offsets
            As of `window`, whose other arguments stay as they were.

        Raises
        ------
        ConfigError
            If the samples are no windows, or were dealt by `split` after `window`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(10)).window((0, 1))
        >>> zarrfeed.ZarrDataset(data.with_offsets((0, 1, 2)))[0]
        tensor([0, 1, 2])
        """
        resolved = self.resolved.with_offsets(offsets)
        changed = calls.with_offsets(self.expression, offsets)
        growth = None if self.growth is None else self.growth.then(Step("with_offsets", (offsets,)))
        return Data(changed, resolved, growth, self.version)

    @checks_option_names
    def split(
        self, parts: Sequence[float], *, by: By = "chunk", seed: int = 0, gap: int | None = 0
    ) -> tuple[Data, ...]:
        """Deal the samples to parts, such as training and validation, as `torch.utils.data.random_split` does.

        Parameters
        ----------
        parts
            Fractions whose sum is 1, or numbers of samples whose sum is `len(data)`; none is 0. What fractions leave
            over goes to the first parts, one sample each.
        by
            "chunk": whole blocks, drawn at random, so that no chunk is read for two parts (of windows, few are); a part
            has as many samples as blocks allow. "shard": the same with whole shards. "sample": samples drawn at random;
            most chunks are then read for every part. "contiguous": runs of samples in the order of the array.
        seed
            Key of what is drawn, in [0, 2**64): the same parts come out of the same seed, in every process.
        gap
            How many rows, at least, no part reads between the rows of one part and those of the next in the array. So
            windows stay inside of their own part: after the parts are dealt, a sample is left out if its window has a
            row of another part. None: nothing is left out, and windows may read rows of other parts.

        Raises
        ------
        ConfigError
            If the parts do not make up the samples, a part would have none, or loses more than half of its samples to
            the gap; with by="sample", if it loses any, since neighbours are dealt to different parts.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> train, test = zarrfeed.open(np.arange(1000)).split((0.8, 0.2), by="sample", seed=1)
        >>> len(train), len(test)
        (800, 200)
        """
        step = Step("split", (parts,), {"by": by, "seed": seed, "gap": gap})
        made = step(self.resolved)
        made_by = calls.split_calls(parts, by, seed, gap)
        return tuple(self._then(call, step, part) for call, part in zip(made_by, made, strict=True))

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """What a batch has of each array: its name, and of one sample the shape and the dtype."""
        return self.resolved.infos()

    @property
    def channels(self) -> dict[str, tuple[str, ...]]:
        """The names of the channels of each tensor that `stack` makes, by the name of the tensor."""
        return {field.name: field.channels for field in self.fields if field.channels}

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """The names of the categories, in the order of the codes, of each categorical column of AnnData."""
        return dict(self.resolved.opened.categories)

    @property
    def stores(self) -> tuple[str, ...]:
        """The paths or URLs of the stores that the samples are in, one after another; empty for a single store."""
        table = self.resolved.opened.stores
        return () if table is None else tuple(table.names)

    def locate(self, index: int | npt.ArrayLike) -> tuple[Any, Any]:
        """Return which store holds a sample, and its index there.

        Parameters
        ----------
        index
            Of a sample, as `return_index=True` delivers it; or an array or a tensor of such.

        Returns
        -------
        The number of the store in `stores`, and the index in that store; arrays for an array. For patches, the voxel at
        which each begins, instead of an index, the sample axis first: shape (dimensions,) for one patch, and (patches,
        dimensions) for an array. It may begin before the first voxel.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> data = zarrfeed.open([zarr.array(np.zeros(5)), zarr.array(np.zeros(7))])
        >>> data.locate(5), data.locate([4, 11])
        ((1, 0), (array([0, 1]), array([4, 6])))
        """
        if self.resolved.patching is not None:
            return self.resolved.patching.locate(index, self.resolved.opened.stores)
        return locate_samples(self.resolved.opened.stores, self.resolved.choice.num_samples, index)

    def source_of(self, index: int | npt.ArrayLike) -> Any:
        """Return which source of a mixture a sample is of.

        Parameters
        ----------
        index
            Of a sample, as `return_index=True` delivers it; or an array or a tensor of such.

        Returns
        -------
        The number of the source in what `zarrfeed.mix` was given; an array for an array.

        Raises
        ------
        ConfigError
            If this is no mixture.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.mix([np.zeros(5), np.ones(7)]).source_of([0, 4, 5])
        array([0, 0, 1])
        """
        return source_of(None if self.resolved.blend is None else self.resolved.blend.first, index)

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.resolved.length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return NotImplemented
        return self.expression == other.expression and self.resolved.holds_same(other.resolved)

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return str(self.expression)

    def _repr_html_(self) -> str:
        return as_html("Data", data_rows(self.expression, self.resolved))

    def _then(self, call: Call, step: Step, resolved: ResolvedData | None = None) -> Self:
        resolved = step(self.resolved) if resolved is None else resolved
        growth = None if self.growth is None else self.growth.then(step)
        return type(self)(self.expression.then(call), resolved, growth, self.version)
