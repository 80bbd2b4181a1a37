"""`SampleMethods`: the methods of `Data` that say which rows or voxels a sample has, and that split the samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names_of
from zarrfeed.base.validate import check_flags, check_int, check_number
from zarrfeed.metadata.description.label_weights import Balance, named_weights
from zarrfeed.metadata.description.sample_calls import (
    PatchCall,
    SplitCall,
    WindowCall,
    WithOffsetsCall,
)
from zarrfeed.metadata.description.split_columns import class_weights, labelled, sample_labels, sample_weights
from zarrfeed.metadata.description.weighting_calls import BalanceCall, WeightCall, WithWeightsCall, other_counts
from zarrfeed.metadata.face.data_methods import DataMethods
from zarrfeed.metadata.group.segments import SegmentEnds, read_segment_ends
from zarrfeed.metadata.patches.patch_request import Dim, PadVoxels, PatchSampling
from zarrfeed.metadata.patches.read_weights import WeightsLike, read_weights
from zarrfeed.plan.choice.split import By
from zarrfeed.plan.patches.tiling import Border
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.windows.gap_step import StepLike
from zarrfeed.plan.windows.gap_windows import gap_warning
from zarrfeed.plan.windows.gaps import GapMode
from zarrfeed.plan.windows.window_rows import WindowRows
from zarrfeed.plan.windows.windows import Offsets, PadLike

#: A value for each sample: the name of a column, its array, or where it is stored.
SampleColumn: TypeAlias = "str | Path | zarr.Array[Any] | npt.ArrayLike"
#: Weights in place of others: as those of `weight`; of a mixture, an array for each of some sources.
OtherWeights: TypeAlias = (
    "SampleColumn | Callable[..., npt.ArrayLike] | Mapping[str, Callable[..., npt.ArrayLike]] | Mapping[int, Any]"
)


#: Samples of an epoch of weighted samples, at most.
_MOST_SAMPLES = 2**40

_BY_LABEL = (
    "balance={'label': {0: 1, 'others': 1}}, with sampling='random': one patch of background to one of the labels"
)
#: Arguments of MONAI's RandCropByPosNegLabel and RandCropByLabelClasses, and of TorchIO's samplers.
_OF_OTHER_LIBRARIES = {
    **dict.fromkeys(("pos", "neg", "label_key", "label_name", "ratios", "label_probabilities"), _BY_LABEL),
    **dict.fromkeys(("num_samples", "samples_per_volume"), "n, with sampling='random': patches of an epoch"),
    **dict.fromkeys(("spatial_size", "roi_size", "patch_size"), "size, a mapping: {'z': 96, 'y': 96, 'x': 96}"),
}
_LEADS = "offsets: window({'z': (-1, 0), 't2m': (4, 8)}), in rows of the sample axis"
_LENGTH = "offsets: window(8), for eight rows"
#: Arguments of the windows of forecasters, of xbatcher, NumPy and tf.data -> how to say it.
_OF_OTHER_WINDOWS = {
    **dict.fromkeys(("lead", "leads", "lead_times", "horizon", "history", "input_steps", "output_steps"), _LEADS),
    **dict.fromkeys(("size", "length", "window_size", "window_shape", "window_length", "seq_len", "n"), _LENGTH),
    **dict.fromkeys(("shift", "hop", "hop_length"), "stride, in samples"),
}
#: Arguments of scikit-learn's splitters and of its train_test_split.
_OF_SPLITTERS = {
    "n_splits": "folds=5, fold=0",
    **dict.fromkeys(("test_size", "train_size"), "parts, with one number for each part: (0.8, 0.2)"),
    "random_state": "seed=",
    "shuffle": "by='sample', which draws samples at random, or by='contiguous', which keeps their order",
}


class SampleMethods(DataMethods):
    """The methods of `Data` that make samples of rows or voxels, and that split samples into subsets."""

    @checks_option_names_of("Data", _OF_OTHER_WINDOWS)
    def window(
        self,
        offsets: Offsets | Mapping[str, Offsets],
        *,
        segment_ends: SegmentEnds | None = None,
        rows: WindowRows | None = None,
        pad: PadLike | Mapping[str, PadLike] | None = None,
        mask: bool = False,
        gaps: GapMode = "drop",
        step: StepLike | None = None,
        stride: int = 1,
    ) -> Self:
        """Make each sample a window: the rows at some distances from its own.

        Parameters
        ----------
        offsets
            Distances along the sample axis, such as (-2, -1, 0, 1): a sample has these rows along a new first axis. An
            integer is a length: 8 means range(8). These hold for every array of `samples`; a mapping of names says
            which arrays they are for, and there an integer is one row, without the axis: {"x": (-1, 0), "y": 1}.
        segment_ends
            The ends of segments, such as episodes, if the array consists of them: the index after the last sample of
            each, ascending. The last one is the length of the array. No window reaches from one segment into another.
            Or an array of Zarr that has these numbers, or its path: of its own, or in the same store, such as
            "meta/episode_ends".
        rows
            The rows that windows may read; a sample whose window has any other row is left out. "selected": all rows
            between the bounds of a selected slice, or those that a list or a mask names. "all": every row of the array.
            Or rows, as `select` names samples of the array: slice(0, 700). None: "selected", but refused where that
            leaves less than half of a list or a mask.
        pad
            The values of rows beyond the ends of a segment, of a selected slice, of a store, or of the array. "edge":
            the first or the last row that is inside. "nan", or a number: a value in every item, as it stands in the
            batch. Or a mapping of names to these, as for `offsets`. None: samples that lack a row are left out.
        mask
            If True, a batch says which rows are padded: for each padded array a bool tensor of shape (batch, rows of
            the window), True where the row is padded. It is named like the array, with "_is_pad" behind. A single array
            then comes in a dict, as "samples" or "targets", beside its mask.
        gaps
            The rule for windows that span a gap: rows that are neighbours in the store and not along its coordinate,
            such as the hours before and after a day that is missing. "drop": such samples are left out, or padded at
            the gap with `pad`. "error": a gap within a window is an error. "ignore": windows span gaps. Gaps are looked
            for if a window has two rows or more, its own included, and the sample dimension has a coordinate of times
            or numbers. Values that come twice or go back within a window are an error, unless gaps are ignored.
        step
            The difference between neighbouring rows, such as "6h", "1 day", a timedelta or np.timedelta64; "month" or
            "year" by the calendar; or a number, where the coordinate has numbers. Any other difference is a gap. None:
            a difference of more than 1.5 times the commonest one of the store is a gap.
        stride
            Rows from one sample to the next: of each segment (or run of rows without a gap) the first sample whose
            window has all rows, and every `stride`-th row behind it. With windows of `stride` rows, each row is in one
            window. 1: every row with a whole window is a sample.

        Notes
        -----
        The repr of a dataset and `explain()` say how many samples are left out, and where the largest gap is. A warning
        shows three gaps if these cost more than 5 % of the samples.

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
        >>> data = zarrfeed.open(np.arange(10)).window(4, stride=3)
        >>> [window.tolist() for window in zarrfeed.ZarrDataset(data)]
        [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
        """
        check_flags(mask=mask)
        ends = read_segment_ends(segment_ends, self.resolved.columns, self.resolved.origin.stores)
        made = self._then(WindowCall(offsets, ends, rows, pad, mask, gaps, step, stride))
        text = gap_warning(made.resolved.choice.left_out)
        if text is not None:
            warnings.warn(text, stacklevel=3)  # of the caller, behind the check of option names
        return made

    @checks_option_names_of("Data", _OF_OTHER_LIBRARIES)
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
        balance: Balance | None = None,
        flip: Sequence[Dim] = (),
        rotate: Sequence[Dim] = (),
        isel: Mapping[Dim, int | slice | Sequence[int]] | None = None,
    ) -> Self:
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
            Name of an array -> the voxels that a patch has along its dimensions, in place of those of the same extent:
            {"2": {"z": 64, "y": 64, "x": 64}}. The box of the same extent is in the middle of them. Voxels beyond the
            volume are padded, whatever `border` is, unless that is "wrap".
        sampling
            "tiles": patches lie side by side, and each epoch of a dataset moves all of them by a random distance below
            their size. "grid": patches begin at 0, `stride`, 2 `stride`, ..., the same in all epochs, as validation
            wants it. "positions": patches begin at `positions`, each once in an epoch, in shuffled order.
            "random": each epoch draws `n` patches.
        border
            The rule for patches that reach beyond a volume; for all dimensions, or by dimension. "pad": they are kept,
            so each voxel comes exactly once in an epoch of tiles. "drop": they are left out. "shift": they are moved
            inside, so some voxels come several times. "wrap": the dimension is periodic, as longitude is.
        stride
            With "grid": voxels from one patch to the next, at most `size`. None: `size`.
        pad
            The values of voxels beyond the volume, with border "pad": a number, as it stands in a batch; "nan"; "edge",
            the nearest voxel inside; or "reflect", voxels mirrored at the border.
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
            numbers that are not negative; an array, an array of Zarr, its path, or the name of an array of the samples.
            Its axes are those of `positions`, with the samples of all stores one after another. It has a value for each
            voxel, or lies on a coarser grid, whose shape divides that of the voxels, or on that of a `PatchWeights`,
            which `zarrfeed.patch_weights` measures, or of its file. A patch begins at s with the probability
            `w[(s + size // 2) // cell] / sum(w)`, where the sum is over all voxels that may be in the middle: those
            of patches that lie inside, with border "drop"; else all. None: positions are equally likely.
        balance
            With "random", in place of `weights`: an array of labels, by its name among the samples' arrays, or by its
            path. Each label is equally often in the middle of a patch: each instance of a segmentation, and the
            background. Or with the shares of labels, as `zarrfeed.patch_weights` takes them, such as {"label": {0: 1,
            "others": 3}} for one patch of background to three of other labels. Labels are read at once, each chunk
            twice, boxes of voxels at a time.
        flip
            Dimensions that `size` names, such as ["z", "y", "x"]. Each patch is reversed along each of them, or not,
            with probability 1/2: all arrays alike, anew in each epoch, and with or without shuffling.
        rotate
            Two dimensions, or three, along which patches have the same size, such as ["y", "x"]. Each patch is rotated
            by 0, 90, 180 or 270 degrees in the plane of two, or is in one of the 24 orientations that rotations give a
            cube, all equally likely; then it is flipped.
        isel
            The items that samples have along other axes, such as channels, as xarray's `isel` takes them: {"c": [0,
            2]}. An integer takes the axis away. Arrays without the dimension stay as they are.

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
        if self.growth is not None and (weights is not None or balance is not None):
            raise ConfigError("weights of a store that is opened with refresh: it may grow, and weights do not")
        if balance is not None and sampling != "random":
            raise ConfigError(f'balance with sampling = "{sampling}": it is for sampling = "random"')
        read = read_weights(named_weights(self, weights, balance))
        return self._then(
            PatchCall(size, context, sampling, border, stride, pad, positions, n, read, flip, rotate, isel)
        )

    @checks_option_names_of("Data")
    def with_offsets(self, offsets: Offsets | Mapping[str, Offsets]) -> Self:
        """Make windows with other offsets of the same samples, in place of those of `window`.

        Parameters
        ----------
        offsets
            The offsets, as in `window`, whose other arguments stay as they were.

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
        return self._then(WithOffsetsCall(offsets))

    @checks_option_names_of("Data", _OF_SPLITTERS)
    def split(
        self,
        parts: Sequence[float] | None = None,
        *,
        by: By | None = None,
        seed: int = 0,
        gap: int | StepLike | None = 0,
        groups: SampleColumn | None = None,
        stratify: SampleColumn | None = None,
        folds: int | None = None,
        fold: int | None = None,
    ) -> tuple[Any, ...]:
        """Deal the samples to parts, such as training and validation, as `torch.utils.data.random_split` does.

        Parameters
        ----------
        parts
            Fractions whose sum is 1, or numbers of samples whose sum is `len(data)`; none is 0. What fractions leave
            over goes to the first parts, one sample each. Either parts or `folds` is given.
        by
            "chunk" (None): whole blocks, drawn at random, so that no chunk is read for two parts (of windows, few are);
            a part has as many samples as blocks allow, and a warning says so where that is far from its fraction.
            "shard": the same with whole shards. "sample": samples drawn at random; most chunks are then read for every
            part. "contiguous": runs of samples in the order of the array. With `groups`: None, at random; "contiguous",
            in the order of the array; or "hash", by a hash of the label, so that a group stays in its part when samples
            and groups are added.
        seed
            Key of what is drawn, in [0, 2**64): the same parts come out of the same seed, in every process.
        gap
            Rows, at least, that no part reads between the rows of one part and those of the next in the array; or a
            length of time, such as "30D" or a timedelta, by which their times differ at least. So windows stay inside
            of their own part: after the parts are dealt, a sample is left out if its window has a row of another part.
            None: nothing is left out, and windows may read rows of other parts.
        groups
            The group of each sample, such as the patient: a group comes to one part as a whole. The name of a
            coordinate; "time.year", and month, day, dayofyear, hour, date, season alike; a path in the store, such as
            "obs/donor"; or an array with the label of each sample of the arrays, or of each chosen one. Parts have
            about their fractions.
        stratify
            The class of each sample, as `groups` names the group: every part has about its fraction of each class. With
            by="sample" that is exact to two samples; whole chunks, shards and groups come as near as they can.
        folds, fold
            Deal to so many parts of one size, for cross-validation: `folds=5, fold=2` returns training, which is all
            others, and validation, which is part 2. Without `fold`, a pair of these for each fold.

        Returns
        -------
        A `Data` for each part; `explain()` and the page of each say what it has of groups and classes.

        Raises
        ------
        ConfigError
            If the parts do not make up the samples, a part would have none, or loses more than half of its samples to
            the gap; with by="sample", if it loses any, since neighbours are dealt to different parts. If a sample has
            no label, or arguments do not go together.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(1000))
        >>> train, test = data.split((0.8, 0.2), by="sample", seed=1)
        >>> len(train), len(test)
        (800, 200)
        >>> patient = np.arange(1000) // 50
        >>> [len(part) for part in data.split((0.8, 0.2), groups=patient)]
        [800, 200]
        >>> [(len(train), len(validation)) for train, validation in data.split(folds=4, by="sample")]
        [(750, 250), (750, 250), (750, 250), (750, 250)]
        """
        each: list[int | None] = [fold]
        if folds is not None and fold is None:
            check_int("folds", folds, 2, 2**20)
            each = [*range(folds)]
        found = []
        for one in each:
            call = SplitCall(parts, by, seed, gap, groups, stratify, folds, one)
            dealt = call.deal(self.resolved)
            if text := call.warning(dealt):
                warnings.warn(text, stacklevel=3)  # of the caller, behind the check of option names
            found.append(tuple(self._then(replace(call, part=i), part) for i, part in enumerate(dealt)))
        return found[0] if len(each) == 1 else tuple(found)

    @checks_option_names_of("Data")
    def balance(self, column: SampleColumn, *, power: float = 1.0, n: int | None = None) -> Self:
        """Let every class come equally often: samples of rare classes repeat, some of common ones are left out.

        This is `weight` with one over the number of samples of the class, to a power. It precedes nothing that chooses
        samples: call it after `select`, `where`, `split` and `window`.

        Parameters
        ----------
        column
            The class of each sample, as `split(stratify=)` takes it: "label", or "obs/cell_type".
        power
            1.0: classes come equally often. 0.0: as often as they are. Between them, the ratio of two classes is
            softened: 0.5 halves its logarithm, so that 100 to 1 becomes 10 to 1.
        n
            Samples of an epoch. None: as many as this description has.

        Raises
        ------
        ConfigError
            As in `weight`, or if a sample has no class.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> label = np.repeat([0, 1], [900, 100])
        >>> data = zarrfeed.open(label).balance(label)
        >>> with zarrfeed.ZarrIterableDataset(data, batch_size=1000, shuffle=True) as dataset:
        ...     [np.bincount(batch).tolist() for batch in dataset]
        [[500, 500]]
        """
        check_number("power", power, 0)

        def find() -> npt.NDArray[Any]:
            labels = sample_labels(self.resolved, "balance", column)
            assert labels is not None
            return class_weights(labels, labelled(self.resolved), float(power))

        return self._weighted(BalanceCall(column, power, n), find)

    @checks_option_names_of("Data")
    def weight(
        self,
        weights: SampleColumn | Callable[..., npt.ArrayLike] | Mapping[str, Callable[..., npt.ArrayLike]],
        *,
        n: int | None = None,
    ) -> Self:
        """Let each sample come as often in an epoch as its weight says, on average: weighted sampling without draws.

        In an epoch of n samples, a sample of weight w comes `c = n * w / sum(weights)` times, rounded up or down at
        random, and so does each chunk of 64 samples or more. The samples that come follow from the weights, the seed
        and the epoch: they are the same on any number of ranks and workers, and a checkpoint goes on exactly.

        Parameters
        ----------
        weights
            A weight for each sample of this description, finite and not negative; a sample of weight 0 never comes. An
            array, the name of a column as in `where`, or a function that makes weights of columns, which its parameters
            name: `lambda quality, label: quality * (label + 1)`. Or a mapping of columns to functions, whose results
            are multiplied, for names that are no parameters: {"obs/n_genes": np.log1p}.
        n
            Samples of an epoch. None: as many as this description has.

        Raises
        ------
        ConfigError
            If a weight is negative or not finite, all are 0, or there are more or fewer than samples. If samples are
            patches, a mixture, or of a store that grows, or are weighted already.

        Notes
        -----
        It is called last of what chooses samples. `ZarrDataset`, which has no order, refuses weights; so does
        `affinity="node"`. A mixture has weighted sources. Without shuffling, samples come in the order of the array,
        and repeat at once. Where samples come more than twice, so that their repetitions are not side by side, chunks
        are read up to 1.1 times on average, or twice if memory mixes few chunks at a time. `explain()` counts it.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(4)).weight([1, 0, 2, 5], n=8)
        >>> with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
        ...     list(dataset)
        [tensor([0, 2, 2, 3, 3, 3, 3, 3])]
        """
        return self._weighted(WeightCall(weights, n), lambda: sample_weights(self.resolved, weights))

    @checks_option_names_of("Data")
    def with_weights(self, weights: OtherWeights) -> Self:
        """Let the same samples come by other weights, in place of those of `weight` or `balance`.

        Parameters
        ----------
        weights
            The weights, as in `weight`; an epoch has as many samples as before. For a mixture, a mapping of the numbers
            of sources to weights, such as {0: losses, 1: "quality"}; columns are read of all sources, and a sample that
            comes must keep a weight above 0.

        Raises
        ------
        ConfigError
            If the samples have no weights, or as in `weight`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(4)).weight([1, 0, 2, 5], n=8).with_weights([1, 1, 1, 1])
        >>> with zarrfeed.ZarrIterableDataset(data, batch_size=8) as dataset:
        ...     list(dataset)
        [tensor([0, 0, 1, 1, 2, 2, 3, 3])]
        """
        return self._then(WithWeightsCall(weights, expected=other_counts(self.resolved, weights)))

    def _weighted(self, call: BalanceCall | WeightCall, find: Callable[[], npt.NDArray[Any]]) -> Self:
        """Let the same samples come as often as a call says, with the weights that are found for it."""
        call.check(self.resolved)
        if self.growth is not None:
            call.check_may_grow()
        if call.n is not None:
            check_int("n", call.n, 1, _MOST_SAMPLES)
        total = self.resolved.length if call.n is None else int(call.n)
        return self._then(replace(call, expected=ExpectedCounts.of(find(), total)))
