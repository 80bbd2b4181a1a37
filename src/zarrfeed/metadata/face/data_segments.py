"""`SegmentMethods`: the methods of `Data` about segments, such as episodes, patients and documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_torch import is_tensor
from zarrfeed.base.suggestions import checks_option_names_of
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.segment_calls import SegmentFieldCall, SegmentsCall, SelSegmentsCall
from zarrfeed.metadata.description.sequence_calls import (
    BucketCall,
    NextTargetsCall,
    PackSequencesCall,
    PadSequencesCall,
    RandomCropCall,
)
from zarrfeed.metadata.face.conditions import Condition, meeting
from zarrfeed.metadata.face.data_methods import DataMethods
from zarrfeed.metadata.group.segment_columns import read_segments, read_whole_array, segment_coordinate, segments_known
from zarrfeed.metadata.group.segments import SegmentEnds, find_segments
from zarrfeed.plan.choice.labels import LabelIndex
from zarrfeed.plan.choice.packed_sequences import Longer
from zarrfeed.plan.samples.sample_set import as_index
from zarrfeed.plan.samples.selection import Int64, Select, select_samples
from zarrfeed.plan.windows.gap_step import StepLike
from zarrfeed.plan.windows.gaps import GapMode
from zarrfeed.plan.windows.windows import PadLike
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.storage.access.access import StoreAccess


class SegmentMethods(DataMethods):
    """The part of `Data` about segments: runs of samples that belong together, which windows do not leave."""

    @checks_option_names_of("Data")
    def segments(self, ends: SegmentEnds | None = None) -> Self:
        """Say where segments end, such as episodes, patients or documents; windows do not leave them.

        Replay buffers, and stores of `zarrfeed.pack`, name their segments themselves.

        Parameters
        ----------
        ends
            The index after the last sample of each segment, ascending: an array, a stored array, or its path, such as
            "meta/episode_ends", in the store of the samples. Of many stores, each has an array at the path, whose
            numbers count from its own first sample. None: each of many stores is a segment.

        Raises
        ------
        ConfigError, StoreReadError
            If these are no ends of segments, or cannot be read.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(10)).segments([4, 10])
        >>> len(data.window((-1, 0)))
        8
        """
        resolved = self.resolved
        found = find_segments(ends, resolved.columns, resolved.origin.stores)
        return self._then(SegmentsCall(ends, found=found))

    @checks_option_names_of("Data")
    def segment_field(self, *names: str, **arrays: Any) -> Self:
        """Give each sample the value of its segment: the instruction of its episode, the age of its patient.

        Parameters
        ----------
        *names
            Names of stored arrays with a row for each segment, or their paths, such as "meta/language". They are looked
            for beside the arrays of the samples, beside the ends of the segments, and in the groups above. "segment" is
            the number of the segment, if nothing else has this name.
        **arrays
            Name in the batch -> the path of such an array, a stored array, or values in memory: numbers or text.

        Notes
        -----
        Rows are read once, here, and stay in memory, with 8 bytes for each sample that say which segment it is of. A
        batch has a tensor of numbers, and a list of text. A window has its segment's row once, without an axis for its
        rows. `cast` and `normalize` leave the values as they are unless they are named. The name can be used as a
        column, in `sel_segments`, `where`, `split(groups=)` and `balance`.

        Raises
        ------
        ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
            If the samples have no segments, an array cannot be read, or it does not have one row for each segment.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"x": np.arange(5)}).segments([2, 5])
        >>> data = data.segment_field(task=["pick", "place"], age=[30.5, 41])
        >>> zarrfeed.ZarrDataset(data)[[0, 4]]
        {'x': tensor([0, 4]), 'task': ['pick', 'place'], 'age': tensor([30.5000, 41.0000], dtype=torch.float64)}
        """
        if not names and not arrays:
            raise ConfigError("segment_field() needs the name of an array, or name=values")
        origin = self.resolved.origin
        segments = segments_known(origin, "segment_field")
        decodes = bool(getattr(self.expression.opened, "decode_cf", True))
        asked = {**dict(zip(names, names, strict=True)), **arrays}
        if len(asked) < len(names) + len(arrays):
            raise ConfigError("segment_field: names an array twice")
        values = {}
        for name, source in asked.items():
            if isinstance(source, str):
                values[name] = read_segments(origin, segments, source, decodes=decodes)
                continue
            access = StoreAccess() if origin.coordinates is None else origin.coordinates.access
            opened = source if is_tensor(source) or isinstance(source, list | tuple) else open_source(source, access)
            if isinstance(opened, zarr.Array):
                values[name] = read_whole_array(opened, access, decodes=decodes)
            else:
                values[name] = np.asarray(opened)
            if values[name].ndim < 1 or len(values[name]) != len(segments):
                raise ConfigError(
                    f"segment_field: {name} has the shape {values[name].shape}, must have a row for each of "
                    f"{len(segments)} segments"
                )
        return self._then(SegmentFieldCall(names, arrays, values=values))

    @checks_option_names_of("Data")
    def random_crop(
        self,
        length: int | Mapping[str, int],
        *,
        n: int = 1,
        pad: PadLike | Mapping[str, PadLike] | None = None,
        mask: bool = False,
        gaps: GapMode = "drop",
        step: StepLike | None = None,
    ) -> Self:
        """Draw a random crop of every recording, anew in each epoch: some rows that follow each other.

        Recordings are the segments of the samples (`segments`), or the arrays that were opened as a list or a pattern.

        Parameters
        ----------
        length
            Rows of a crop, for every array of `samples`; or a mapping of names, for these arrays. Other arrays have
            their row at the start of the crop.
        n
            Crops of each recording in an epoch, drawn independently.
        pad
            The values behind the end of recordings that are shorter than a crop, as in `window`. None: these recordings
            are left out.
        mask, gaps, step
            As in `window`.

        Notes
        -----
        All starts in a recording are equally likely. Crops follow from the seed of the dataset, the epoch and the
        number of the recording: all numbers of ranks and workers have the same ones, and a resumed epoch goes on with
        them. Chunks that no crop of the epoch has a row of are not read. `weight` and `balance`, called afterwards,
        weigh recordings: each has its expected number of crops, rounded down or up.

        Raises
        ------
        ConfigError
            If nobody said where recordings end, no recording is as long as a crop, or as in `window`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(100)).segments([40, 100]).random_crop(8)
        >>> with zarrfeed.ZarrIterableDataset(data, batch_size=2, shuffle=True) as dataset:
        ...     tuple(next(iter(dataset)).shape)
        (2, 8)
        """
        return self._then(RandomCropCall(length, n, pad, mask, gaps, step))

    @checks_option_names_of("Data")
    def pad_sequences(self, value: PadLike | Mapping[str, PadLike] = 0, *, max_length: int | None = None) -> Self:
        """Make each sample a whole recording, document or episode; batches are padded to the longest one in them.

        Recordings are the segments of the samples (`segments`), or the arrays that were opened as a list or a pattern.
        A batch has the number of rows of each as "length", int64 of shape (batch,), beside its arrays of shape
        (batch, longest, ...). A single sample has its own rows alone.

        Parameters
        ----------
        value
            The values behind the end of a recording: a number, as it stands in a batch, "nan" or "edge"; or a mapping
            of names, as in `window`.
        max_length
            Rows of a sample, at most: of longer recordings, the first ones. None: those of the longest recording.

        Notes
        -----
        Memory is planned for batches of `max_length` rows a sample, and a batch is a view of these. So name
        `max_length` where few recordings are much longer than the others.

        Raises
        ------
        ConfigError
            If nobody said where recordings end, or as in `window`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"x": np.arange(6)}).segments([2, 3, 6]).pad_sequences(-1)
        >>> next(iter(zarrfeed.ZarrIterableDataset(data, batch_size=2)))
        {'x': tensor([[ 0,  1],
                [ 2, -1]]), 'length': tensor([2, 1])}
        """
        return self._then(PadSequencesCall(value, max_length))

    @checks_option_names_of("Data")
    def pack_sequences(
        self,
        length: int,
        value: PadLike | Mapping[str, PadLike] = 0,
        *,
        longer: Longer = "split",
        pool: int = 64,
    ) -> Self:
        """Make each sample `length` rows of whole documents side by side (packing), with little padding at its end.

        Documents are the segments of the samples (`segments`), or the arrays that were opened as a list or a pattern.
        A batch says which rows are whose: "segment_ids", the number of the document in its sample, from 1 on, and 0 for
        padding; and "positions", the position in the document, from 0 on. Both are int64 of shape (batch, length).

        Parameters
        ----------
        length
            Rows of a sample, such as the tokens that a model takes at once.
        value
            The values of padding: a number, as it stands in a batch, or "nan"; or a mapping of names, as in `window`.
        longer
            The rule for documents of more than `length` rows. "split": they are cut into pieces, each of which is a
            document of its own. "truncate": their first rows alone. "drop": they are left out.
        pool
            Documents are packed pool by pool. A pool has those of about so many samples, which follow one another in
            the array. A larger one pads less, and reads more chunks together.

        Notes
        -----
        Each document goes to the sample of its pool with the least room that is enough (best fit), the longest first.
        Samples are the same in all epochs and shuffled as any others, so they have positions, can be split, and come
        the same on any number of ranks and workers. `explain()` says how much is padding.

        Raises
        ------
        ConfigError
            If nobody said where documents end, an array has one value for each of them, or as in `window`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"x": np.arange(9)}).segments([3, 7, 9]).pack_sequences(6, -1)
        >>> batch = zarrfeed.ZarrDataset(data)[[0, 1]]
        >>> batch["x"].tolist(), batch["segment_ids"].tolist()
        ([[3, 4, 5, 6, 7, 8], [0, 1, 2, -1, -1, -1]], [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]])
        """
        return self._then(PackSequencesCall(length, value, longer, pool))

    @checks_option_names_of("Data")
    def next_targets(self) -> Self:
        """Give each sample its own rows, one later, as targets, as language models are trained on the next token.

        A sample of n + 1 rows becomes (x, y): its first n rows, and its last n rows. Both are views of one tensor, so
        each row is read, copied and sent to a GPU once. Hence never write into `x` or `y`: `torch.where` and
        `masked_fill` make a copy.

        Notes
        -----
        The targets have all tensors of the samples with an axis over rows, such as "segment_ids" of `pack_sequences`.
        A "length" of `pad_sequences` becomes that of `x`: one less, and at least 0.

        Raises
        ------
        ConfigError
            If samples have no two rows, have targets, or are patches.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(100)).window(range(5), stride=4).next_targets()
        >>> [part.tolist() for part in zarrfeed.ZarrDataset(data)[2]]
        [[8, 9, 10, 11], [9, 10, 11, 12]]
        """
        return self._then(NextTargetsCall())

    @checks_option_names_of("Data")
    def bucket_by_length(self, batch_size: int, *, pool: int = 64, lengths: Any = None) -> Self:
        """Let samples of about one length come in the same batch, so that little of a batch is padding.

        The samples of a pool are sorted by length and cut into batches, and these are shuffled.

        Parameters
        ----------
        batch_size
            Samples of a batch of all ranks together: `batch_size` of the dataset, times the number of ranks.
        pool
            Batches of a pool, whose samples are those of some blocks. More batches pad less and mix more chunks. A pool
            is held in memory, so that it decodes each chunk once.
        lengths
            A number for each sample of this description: an array, or the name of a column, as in `weight`. None: the
            lengths of `pad_sequences`.

        Notes
        -----
        Every sample comes once in an epoch. The batches follow from the seed and the epoch: they are the same on any
        number of ranks and workers, and after resuming. Call it last of what chooses samples.

        Raises
        ------
        ConfigError
            If samples have no lengths, or are weighted, mixed or patches.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"x": np.arange(10)}).segments([3, 4, 7, 8, 9, 10]).pad_sequences()
        >>> with zarrfeed.ZarrIterableDataset(data.bucket_by_length(2), batch_size=2, shuffle=True) as dataset:
        ...     sorted(batch["length"].tolist() for batch in dataset)
        [[1, 1], [1, 1], [3, 3]]
        """
        return self._then(BucketCall(batch_size, pool, lengths).found(self.resolved))

    @checks_option_names_of("Data")
    def sel_segments(
        self, segments: Select | str | Mapping[str, Any] | None = None, **columns: Condition | Any
    ) -> Self:
        """Choose the samples of some segments: `data.sel_segments(task="pick")`, `data.sel_segments([0, 5])`.

        Parameters
        ----------
        segments
            Numbers of segments (negative ones count from the end), a slice, or a mask with a flag for each segment.
            Or text as `pandas.DataFrame.query` takes it, "task == 'pick' and success"; or a mapping, for columns whose
            names are no keywords, {"meta/task": "pick"}.
        **columns
            The name of a column of segments, as in `segment_field`, with a label, a list or a slice of labels, as in
            `sel`; or with a function of its values that returns a mask, as in `where`. All are met.

        Notes
        -----
        Samples stay in the order of the array. Segments are numbered in the arrays, whatever was selected before.

        Raises
        ------
        ConfigError
            If the samples have no segments, there is no such column or label, or no chosen sample is in these segments.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(9)).segments([2, 5, 9]).segment_field(task=["pick", "place", "pick"])
        >>> len(data.sel_segments(task="pick")), len(data.sel_segments([1])), len(data.sel_segments(slice(1, None)))
        (6, 3, 7)
        """
        known = segments_known(self.resolved.origin, "sel_segments")
        self.resolved.choice.check_rows_are_open("sel_segments")
        named = {**segments, **columns} if isinstance(segments, Mapping) else columns
        both = isinstance(segments, Mapping) and bool({*segments} & {*columns})
        if segments is not None and columns and (both or not isinstance(segments, Mapping)):
            raise ConfigError("sel_segments: takes segments, or columns by their names, each once")
        given: Any = segments if segments is not None and not isinstance(segments, Mapping) else named
        if isinstance(given, Mapping) and not given:
            raise ConfigError("sel_segments: names nothing, must name segments, such as sel_segments(task='pick')")
        chosen = _chosen(self.resolved, known, given)
        samples = self.resolved.choice.listed()
        found: Int64 = np.flatnonzero(chosen[known.of_samples[as_index(samples)]])
        if not len(found):
            raise ConfigError(f"sel_segments: none of the {len(samples)} chosen samples is in these segments")
        return self._then(SelSegmentsCall(given, samples=found))


def _chosen(resolved: ResolvedData, segments: Segments, given: Any) -> npt.NDArray[np.bool_]:
    """Return which segments a user names."""

    def read(name: str) -> npt.NDArray[Any]:
        return segment_coordinate(resolved.origin, "sel_segments", name).values

    if isinstance(given, str):
        return meeting("sel_segments", {"": given}, read, len(segments))
    chosen = np.ones(len(segments), dtype=np.bool_)
    if not isinstance(given, Mapping):
        named = select_samples(given, len(segments))
        chosen[:] = False
        chosen[named if isinstance(named, range) else named.listed()] = True
        return chosen
    for name, one in given.items():
        if callable(one):
            chosen &= meeting("sel_segments", {name: one}, read, len(segments))
            continue
        index = LabelIndex(segment_coordinate(resolved.origin, "sel_segments", name), noun="segment")
        of_label = np.zeros(len(segments), dtype=np.bool_)
        of_label[index.find(one)] = True
        chosen &= of_label
    return chosen
