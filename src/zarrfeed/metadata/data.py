"""`open` and `Data`: what the samples are, described once and read by any dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.page import as_html
from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.metadata.conversion import Normalization, TorchDtypeLike, parse_dtype
from zarrfeed.metadata.data_page import data_rows
from zarrfeed.metadata.fields import Source, Variables
from zarrfeed.metadata.growth import Complete, Growth, GrowthOptions, Refresh, Step, evicted_before
from zarrfeed.metadata.opening import Opening
from zarrfeed.metadata.resolved import ResolvedData
from zarrfeed.metadata.source_names import name_source
from zarrfeed.plan.selection import Select
from zarrfeed.plan.split import By
from zarrfeed.plan.window_rows import WindowRows
from zarrfeed.plan.windows import Offsets
from zarrfeed.spec.data import (
    BlocksCall,
    Call,
    CastCall,
    Expression,
    FieldInfo,
    FrozenArray,
    NormalizeCall,
    OpenCall,
    Secrets,
    SelectCall,
    SplitCall,
    WindowCall,
    freeze,
    freeze_offsets,
    freeze_pairs,
    freeze_rows,
    freeze_variables,
)
from zarrfeed.spec.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.spec.field import BlockUnit
from zarrfeed.spec.version import Version
from zarrfeed.storage.access import StoreAccess
from zarrfeed.storage.cache_options import CacheOptions


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """A description of samples: which arrays, which samples of them, and how their items are converted.

    `zarrfeed.open` and `zarrfeed.from_xarray` make one; each method returns another one and leaves this one as it is.
    `ZarrIterableDataset(data, ...)` and `ZarrDataset(data, ...)` read it. A method costs no I/O: metadata were read
    when the arrays were opened. What cannot work is refused by the method that asks for it, with a ConfigError. A
    `Data` holds what can be settled in index space or while rows are copied into a batch; any other change of a sample
    is for the `transform` of a dataset.

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
        return self._then(SelectCall(freeze_rows(samples)), Step("select", (samples,)))

    @checks_option_names
    def blocks(self, blocks: npt.ArrayLike, *, of: BlockUnit = "chunk") -> Data:
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
        return self._then(BlocksCall(FrozenArray.of(blocks), of), Step("blocks", (blocks, of)))

    @checks_option_names
    def window(
        self,
        offsets: Offsets | Mapping[str, Offsets],
        *,
        segment_ends: npt.ArrayLike | None = None,
        rows: WindowRows | None = None,
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
            The last one is the length of the array. No window reaches from one segment into another.
        rows
            Which rows windows may read; a sample whose window has any other row is left out. "selected": all rows
            between the bounds of a selected slice, or those that a list or a mask names. "all": every row of the array.
            Or rows, as `select` names samples of the array: slice(0, 700). None: "selected", but refused where that
            leaves less than half of a list or a mask.

        Notes
        -----
        Samples that lack a row are left out; the repr of a dataset and `explain()` say how many.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(10), np.arange(10)).window({"samples": (-1, 0), "targets": 1})
        >>> zarrfeed.ZarrDataset(data)[0]
        (tensor([0, 1]), tensor(2))
        """
        step = Step("window", (offsets, segment_ends, rows))
        resolved = step(self.resolved)  # what is wrong with the arguments is said before they are frozen
        call = WindowCall(freeze_offsets(offsets), freeze_rows(segment_ends), freeze_rows(rows))
        return self._then(call, step, resolved)

    def cast(self, dtype: TorchDtypeLike | Mapping[str, TorchDtypeLike]) -> Data:
        """Convert items to a dtype on the way into the batch.

        Parameters
        ----------
        dtype
            Torch's, NumPy's, or a name such as "bfloat16": for the arrays of `samples`, but for coordinates such as
            "time". Or a mapping of names to dtypes, where "samples" and "targets" stand for all other arrays of that
            side. Any float dtype is possible, and values are rounded once; an integer one where no value is lost. A
            second cast of an array replaces the first.

        Examples
        --------
        >>> import numpy as np, torch, zarrfeed
        >>> data = zarrfeed.open({"x": np.zeros((4, 3)), "label": np.zeros(4, "i2")})
        >>> [field.dtype for field in data.cast({"x": torch.bfloat16, "label": "int64"}).fields]
        ['bfloat16', 'int64']
        """
        step = Step("cast", (dtype,))
        resolved = step(self.resolved)
        named = dtype if isinstance(dtype, Mapping) else {"": dtype}
        names = {key: None if one is None else parse_dtype("dtype", one) for key, one in named.items()}
        return self._then(CastCall(freeze(names if isinstance(dtype, Mapping) else names[""])), step, resolved)

    @checks_option_names
    def normalize(
        self, mean_std: Normalization | Mapping[str, Normalization], *, axis: int | str | None = None
    ) -> Data:
        """Subtract a mean and divide by a standard deviation: batches have (x - mean) / std.

        Parameters
        ----------
        mean_std
            A pair (mean, std) of numbers, or of arrays with one number for each channel; or a mapping of names to such
            pairs, as of `cast`. Values are those after decoding. An array can be normalised once.
        axis
            The axis of the array, or dimension by its name, that the channels are along. Needed for arrays of numbers.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> images = np.full((2, 3), 7, "u1")  # 3 channels
        >>> zarrfeed.ZarrDataset(zarrfeed.open(images).normalize(([1, 4, 7], [2, 3, 1]), axis=1))[0]
        tensor([3., 1., 0.])
        """
        step = Step("normalize", (mean_std, axis))
        resolved = step(self.resolved)
        return self._then(NormalizeCall(freeze_pairs(mean_std), freeze(axis)), step, resolved)

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
        frozen = tuple(map(freeze, parts))
        return tuple(
            self._then(SplitCall(frozen, by, freeze(seed), freeze(gap), number), step, part)
            for number, part in enumerate(made)
        )

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """What a batch has of each array: its name, and of one sample the shape and the dtype."""
        return self.resolved.infos()

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.resolved.choice.length

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

    def _then(self, call: Call, step: Step, resolved: ResolvedData | None = None) -> Data:
        resolved = step(self.resolved) if resolved is None else resolved
        growth = None if self.growth is None else self.growth.then(step)
        return Data(self.expression.then(call), resolved, growth, self.version)


@checks_option_names
def open(
    samples: Source,
    targets: Source | None = None,
    *,
    sample_axis: int = 0,
    sample_dim: str | None = None,
    variables: Variables | None = None,
    decode_cf: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
    refresh: Refresh | None = None,
    complete: Complete | None = None,
    window: int | str | None = None,
    evict: bool = False,
    cache: str | Path | None = None,
    cache_limit: int | str | None = None,
    cache_version: str | None = None,
) -> Data:
    """Open arrays and describe their samples; metadata are read here, and again only with `refresh`.

    Parameters
    ----------
    samples
        An array, Zarr v2 or v3: a path, a URL (`file`, `s3`, `gs`, `az`, `https`; all but the first need the extra
        `remote`), an open `zarr.Array`, a store with one at its root (of zarr-python, of obstore, a mapper of fsspec),
        an `icechunk.Repository` (its branch "main"), a NumPy array or a CPU tensor. Or several, chunked as they like: a
        group, which stands for the arrays in it but not for groups in it, or a mapping of names to arrays. Arrays in
        memory are used where they lie, if they are contiguous in native byte order; do not resize or share them.
    targets
        The same, with as many samples along axis 0.
    sample_axis
        The axis of `samples`, of every array in it, whose indices are samples. A sample has the other axes, in order.
    sample_dim
        The name of that dimension, such as "time", in place of `sample_axis`; of targets too, where those are named.
        Arrays of a group that lack it are left out; others are refused.
    variables
        Names of the arrays of `samples`, a group or a mapping, that are read (of an array of records: of the members);
        or for both sides, {"samples": [...], "targets": [...]}. None: all; of a group as xarray writes it, data
        variables but scalars.
    decode_cf
        Whether stored arrays are unpacked as xarray does it, by their `scale_factor`, `add_offset`, `_FillValue`,
        `missing_value` and `_Unsigned`: packed data and integers with a fill value become float32, NaN for fill.
    storage_options
        Options of the stores of URLs, by the names of fsspec or obstore, such as {"anon": True}. None: the environment.
    retries
        How often a read of metadata is retried after a transient error, with pauses that grow from 0.1 to 10 s.
    timeout
        Seconds that a read of metadata may take, retries included. The connections of a URL are made with it: no
        request to its store takes longer, whatever the `faults` of a dataset allow.
    refresh
        "epoch", for a store that grows: a `ZarrIterableDataset` looks at the store when an epoch begins, and reads the
        samples that are complete in every array then. None: the samples that there are now, in every epoch.
    complete
        With `refresh`, what tells that samples are complete. "chunks": every chunk exists, counted from the first; only
        whole chunks (shards) count. "shape": the shape of the array, for writers that set it last, and that leave out
        chunks of nothing but the fill value. None: the shape of a store that an `Appender` writes, "chunks" for others.
        A chunk that is missing when it is read is an error, but for "shape".
    window
        With `refresh`, how many of the newest samples are read: a number, or text such as "1TiB" of decoded samples.
        Samples keep their index in the array. Methods of the `Data` count positions from the oldest sample that is
        read. None: all.
    evict
        Whether the chunks of samples that are older than the window are deleted when an epoch begins, for ever: only in
        a store that `Appender(..., disposable=True)` made, and never what an epoch of any process still reads.
    cache
        A local directory in which stored bytes of far stores are kept, such as "/scratch/cache": the node cache. All
        processes of a machine that name the directory share it, and fetch each chunk once. It is made if it is missing,
        and must be empty or a cache otherwise. A cache that cannot be used is no error: `stats()` says why.
    cache_limit
        Bytes that the directory may use, such as "200GiB". Chunks are kept until it is full; none is evicted. None:
        90 % of what its file system has free.
    cache_version
        The version of all stored objects, such as "immutable", for a server that tells none. You answer for it: give
        another one when the data change. None: versions are asked of the store, by one listing, or over HTTP by a HEAD
        request for each object.

    Returns
    -------
    A description of all samples.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If an array cannot be read, or the arrays have different numbers of samples; the message names the array.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"x": np.zeros((50, 3), "f4")}, np.arange(50))
    >>> data
    zarrfeed.open({'x': <numpy.ndarray (50, 3) float32>}, targets=<numpy.ndarray (50,) int64>)
    >>> len(data)
    50
    """
    options = CacheOptions.parse(cache, cache_limit, cache_version)
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options, options)
    grows = None if refresh is None else GrowthOptions(refresh, complete, window, evict)
    for name, value in (("complete", complete), ("window", window), ("evict", evict or None)):
        if grows is None and value is not None:
            raise ConfigError(f"{name} = {value!r} is for stores that grow: give refresh='epoch', too")
    if grows is not None and cache_version is not None:
        raise ConfigError(
            f"cache_version = {cache_version!r} declares that objects never change; with refresh = {refresh!r}, the "
            "last chunk may"
        )
    opening = Opening(samples, targets, sample_axis, sample_dim, variables, decode_cf, access, grows is not None)
    opened = opening.open()
    call = OpenCall(
        name_source(samples),
        name_source(targets),
        int(sample_axis),
        sample_dim,
        freeze_variables(variables),
        bool(decode_cf),
        Secrets.of(storage_options) if storage_options else None,
        refresh=refresh,
        complete=complete,
        window=freeze(window),
        evict=bool(evict),
        cache=None if cache is None else str(cache),
    )
    if grows is None:
        first, resolved = evicted_before(opened), ResolvedData.of(opened)
        return Data(Expression(call), resolved.select(slice(first, None)) if first else resolved)
    growth = Growth(opened, access, grows, opening=opening if opening.repositories else None)
    version = growth.look()
    return Data(Expression(call), growth.at(version), growth, version)
