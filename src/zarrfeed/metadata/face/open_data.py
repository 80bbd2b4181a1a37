"""`zarrfeed.open`: arrays, groups or many stores as a `Data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, compress
from pathlib import Path
from typing import Any, Literal

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import knows_arguments_of_others
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.array.known_groups import ManyImagesError
from zarrfeed.metadata.array.side_by_side import side_by_side
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.batch_columns import Opened
from zarrfeed.metadata.group.field_sources import in_files, refuse_member
from zarrfeed.metadata.group.fields import Source
from zarrfeed.metadata.group.opening import Opening
from zarrfeed.metadata.group.sample_dims import ParsedDims, SampleDim, parse_sample_dim
from zarrfeed.metadata.group.source_names import name_source
from zarrfeed.metadata.group.url_patterns import is_pattern
from zarrfeed.metadata.group.variables import Variables
from zarrfeed.metadata.stores.growth import Complete, Growth, GrowthOptions, Refresh, evicted_before
from zarrfeed.metadata.stores.many_stores import as_stores, open_stores
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.spec.description.expression import Expression, OpenCall
from zarrfeed.spec.description.freeze import Secrets, freeze, freeze_levels, freeze_variables
from zarrfeed.storage.access.access import StoreAccess, ZarrFormat
from zarrfeed.storage.access.cache_options import CacheOptions
from zarrfeed.storage.access.key_urls import is_url
from zarrfeed.storage.access.memory_cache import MemoryCache
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.files.table_store import TableStore

_OF_DATASET = "an argument of ZarrIterableDataset: ZarrIterableDataset(data, batch_size=32, shuffle=True)"
#: Arguments of other functions that open arrays -> how to say it.
_OF_OTHER_LIBRARIES = {
    **dict.fromkeys(("segment_ends", "segments"), "a call of its own: zarrfeed.open('x.zarr').segments(ends)"),
    **dict.fromkeys(("engine", "backend", "chunks"), "not needed: the store says its format and its chunks"),
    **dict.fromkeys(("group", "path", "component"), "a part of the path: zarrfeed.open('all.zarr/group')"),
    **dict.fromkeys(("data_vars", "vars", "keys"), "variables: zarrfeed.open(path, variables=['t2m', 'z'])"),
    **dict.fromkeys(("dim", "concat_dim", "batch_dim"), "sample_dim: zarrfeed.open(path, sample_dim='time')"),
    **dict.fromkeys(("batch_size", "shuffle", "seed"), _OF_DATASET),
}


@knows_arguments_of_others(_OF_OTHER_LIBRARIES)
def open(
    samples: Source,
    targets: Source | None = None,
    *,
    sample_axis: int = 0,
    sample_dim: SampleDim | None = None,
    variables: Variables | None = None,
    depth: int = 0,
    multiscale: Sequence[str | int] | None = None,
    decode_cf: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
    refresh: Refresh | None = None,
    complete: Complete | None = None,
    window: int | str | None = None,
    evict: bool = False,
    cache: str | Path | MemoryCache | None = None,
    cache_limit: int | str | None = None,
    cache_version: str | None = None,
    cache_group: str | int | None = None,
    transcode: Literal["lz4"] | None = None,
    progress: bool | None = None,
) -> Data:
    """Open arrays and describe their samples; metadata are read here, and each epoch looks whether they are the same.

    Parameters
    ----------
    samples
        An array, Zarr v2 or v3: a path, a URL (`file`, `s3`, `gs`, `az`, `https`; all but the first need the extra
        `remote`), an open `zarr.Array`, a store with one at its root (of zarr-python, of obstore, a mapper of fsspec),
        an `icechunk.Repository` (its branch "main"), a NumPy array or a CPU tensor. Or several, chunked as they like: a
        group, which stands for the arrays in it but not for groups in it, or a mapping of names to arrays. Arrays in
        memory are used where they lie, if they are contiguous in native byte order; do not resize or share them. A file
        of HDF5, NetCDF or NumPy: its path, the path of an array in it ("x.h5/data/x"), the URL of either, an open file,
        group or dataset of h5py or netCDF4, or what `numpy.load(path, mmap_mode="r")` returned.
        A list of these, or a pattern such as "plates/*.zarr", is many stores as one, as in `zarrfeed.concat`; so is a
        plate of OME-Zarr, whose stores are the images of its wells, in the order of its metadata. The path
        of a URL is percent-decoded: "s3://bucket/run%231.zarr" is the key "run#1.zarr".
    targets
        The targets, given as `samples` are, with as many samples along axis 0; for many stores, those of each.
    sample_axis
        The axis of `samples`, of every array in it, whose indices are samples. A sample has the other axes, in order.
    sample_dim
        The name of that dimension, such as "time", in place of `sample_axis`; of targets too, where those are named.
        Arrays of a group that lack it are left out; others are refused. Or several, such as ("member", "time"): every
        combination is a sample, numbered in C order, and windows lie along the last one. A named array may lack some.
    variables
        Names of the arrays of `samples`, a group or a mapping, that are read (of an array of records: of the members);
        those in groups of the group by their paths, such as "s1/x"; or for both sides, {"samples": [...], "targets":
        [...]}. None: all; of a group as xarray writes it, data variables but scalars.
    depth
        Depth to which groups in the group `samples` are entered: their arrays have names such as "s1/x". 0: none.
    multiscale
        Levels of `samples`, an OME-Zarr image, by their paths or their numbers, the finest one first: ["0", "2"]. Paths
        of labels in it, such as "labels/cells" or "labels/cells/1", may be among them. Each is an array of the samples;
        `Data.patch` aligns them by the image's transformations, and without patches a sample of the first level has the
        index of each other level that it lies in. None: of an OME-Zarr image, its first level.
    decode_cf
        If True, stored arrays are unpacked as xarray does it, by their `scale_factor`, `add_offset`, `_FillValue`,
        `missing_value` and `_Unsigned`: packed data and integers with a fill value become float32, NaN for fill.
    storage_options
        Options of the stores of URLs, by the names of fsspec or obstore, such as {"anon": True}. None: the environment.
        `forbidden_is_missing` is one of ours: chunks that the server refuses (403) are missing.
    zarr_format
        2 or 3: documents of the other format are not looked for, in a store that has both. None: format 3 before 2.
    retries
        Most retries of a read of metadata after a transient error, with pauses that grow from 0.1 to 10 s.
    timeout
        Seconds that a read of metadata may take, retries included. The connections of a URL are made with it: no
        request to its store takes longer, whatever the `faults` of a dataset allow.
    refresh
        "epoch", for a store that grows: a `ZarrIterableDataset` looks at the store when an epoch begins, and reads the
        samples that are complete in every array then. None: the samples that there are now, in every epoch; an
        array whose shape, dtype, chunks or codecs change is then an error of the next epoch.
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
        If True, the chunks of samples that are older than the window are deleted when an epoch begins, for ever: only
        in a store that `Appender(..., disposable=True)` made, and never what an epoch of any process still reads.
    cache
        A local directory in which stored bytes are kept, such as "/scratch/cache": the node cache. It is for far
        stores, and for local ones on another file system than the cache, such as Lustre. All processes of a machine
        that name the directory share it, and fetch each chunk once. It is made if it is missing, and must be empty or a
        cache otherwise. A cache that cannot be used is no error: `stats()` says why. Or `zarrfeed.MemoryCache("8GB")`:
        in the memory of the machine, as long as processes use it, for data that fit.
    cache_limit
        Bytes that the directory may use, such as "200GiB". Chunks are kept until it is full; none is evicted. None:
        90 % of what its file system has free.
    cache_version
        The version of all stored objects, such as "immutable", for a server that tells none. You answer for it: give
        another one when the data change. None: versions are asked of the store, by one listing, or over HTTP by a HEAD
        request for each object.
    cache_group
        Name or number of the group whose members share the directory, such as "ml-team"; each of them names it. None:
        the directory is for this user alone, nobody else can read it, and that of another user is refused.
    transcode
        "lz4": the cache keeps chunks of slow codecs (gzip, zlib, zstd, and all that zarr-python decodes) as Blosc-lz4
        with shuffle, so that epochs from the second on decode those; of local stores and files, too. None: it keeps the
        bytes as they are stored.
    progress
        If True, show how many of many stores are open. None: where stderr is a terminal and rich is installed.

    Returns
    -------
    A description of all samples.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If an array cannot be read, or the arrays have different numbers of samples, or other files lie in the place of
        all chunks of an array; the message names the array.

    Warns
    -----
    StaleMetadataWarning
        If consolidated metadata are older than an array: what they say is read.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"x": np.zeros((50, 3), "f4")}, np.arange(50))
    >>> data
    zarrfeed.open({'x': <numpy.ndarray (50, 3) float32>}, targets=<numpy.ndarray (50,) int64>)
    >>> len(data)
    50
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise ConfigError(f"storage_options: got a {type(storage_options).__name__}, must be a dict")
    options = CacheOptions.parse(cache, cache_limit, cache_version, cache_group, transcode)
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options, options, zarr_format)
    grows = None if refresh is None else GrowthOptions(refresh, complete, window, evict)
    for name, value in (("complete", complete), ("window", window), ("evict", evict or None)):
        if grows is None and value is not None:
            raise ConfigError(f"{name} = {value!r} is for stores that grow: give refresh='epoch', too")
    if grows is not None and cache_version is not None:
        raise ConfigError(
            f"cache_version = {cache_version!r} declares that objects never change; with refresh = {refresh!r}, the "
            "last chunk may"
        )
    if grows is not None and multiscale is not None:
        raise ConfigError(f"multiscale = {multiscale!r} with refresh = {refresh!r}: levels are read as they are now")
    sample_dim = _checked_sample_dim(sample_axis, sample_dim)
    samples, targets = in_files(samples), in_files(targets, "targets")
    refuse_member(samples, targets)
    opening = Opening(
        samples, targets, sample_axis, sample_dim, variables, multiscale, decode_cf, access, grows is not None, depth
    )
    stores = as_stores(samples, access)
    if stores is not None:
        if grows is not None:
            raise ConfigError(f"refresh = {refresh!r}: many stores, a list or a pattern, are read as they are now")
        of_targets = None if targets is None else as_stores(targets, access) or [targets]
        samples, targets = stores, of_targets
    call = OpenCall(
        name_source(samples),
        name_source(targets),
        int(sample_axis),
        sample_dim,
        freeze_variables(variables),
        freeze_levels(multiscale),
        bool(decode_cf),
        Secrets.of(storage_options) if storage_options else None,
        zarr_format=zarr_format,
        refresh=refresh,
        complete=complete,
        window=freeze(window),
        evict=bool(evict),
        cache=str(cache) if isinstance(cache, Path) else cache,
        depth=int(depth),
    )
    if stores is None:
        try:
            opened = opening.open()
        except ManyImagesError as many:
            if grows is not None or targets is not None or isinstance(sample_dim, tuple):
                raise
            stores, of_targets = list(many.images), None
    if stores is not None:
        shared = SharedAccess()
        open_one = replace(opening, access=replace(access, shared=shared)).open_pair
        return Data(Expression(call), open_stores(stores, of_targets, open_one, _describe, progress, shared))
    if grows is None:
        return Data(Expression(call), _describe(opened))
    for array in chain.from_iterable(one.stored for one in opened.arrays):
        if isinstance(array.store, TableStore):
            raise ConfigError(f"refresh = {refresh!r}: the file {array.store} is read as it is now")
    growth = Growth(opened, access, grows, opening=opening if opening.repositories else None)
    version = growth.look()
    return Data(Expression(call), growth.at(version), growth, version)


def _checked_sample_dim(sample_axis: int, sample_dim: SampleDim | None) -> ParsedDims:
    """Return the dimension of samples, or several; raise ConfigError if it is none."""
    if isinstance(sample_axis, list | tuple):
        raise ConfigError(
            f"sample_axis = {sample_axis!r}, must be an integer; several dimensions are named: "
            "sample_dim=('member', 'time')"
        )
    check_int("sample_axis", sample_axis, -(2**31), 2**31 - 1)
    return parse_sample_dim(sample_dim)


def open_each(sources: Sequence[Source]) -> list[Data]:
    """Open several sources, each as `open` does without options; stores of URLs side by side, over one client.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        As in `open`, for the first one that cannot be opened.
    """
    shared = SharedAccess()
    access = StoreAccess(shared=shared)

    def open_url(url: Source) -> Data:
        opening = Opening(url, None, 0, None, None, None, decode_cf=True, access=access, may_grow=False)
        return Data(Expression(OpenCall(name_source(url))), _describe(opening.open()))

    far = [is_url(source) and not is_pattern(str(source)) for source in sources]
    urls = list(compress(sources, far))
    with closing(side_by_side(open_url, urls, shared)) as opened:
        from_urls = iter(list(opened))
    return [next(from_urls) if is_far else open(source) for source, is_far in zip(sources, far, strict=True)]


def _describe(opened: Opened) -> ResolvedData:
    """Return the description of all samples of a store that are still there."""
    first, resolved = evicted_before(opened.arrays), ResolvedData.of(opened)
    return resolved.select(slice(first, None)) if first else resolved
