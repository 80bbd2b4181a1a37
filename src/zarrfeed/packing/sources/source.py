"""`Source`: samples that `pack` reads, whatever they are stored in.

Invariants of every source: the samples are numbered from 0, and a number always means the same sample, in every process
that opens the same paths. Reading changes nothing. `fingerprint` changes if the samples could be others.
"""

from __future__ import annotations

import errno
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError, printable
from zarrfeed.spec.description.error_policy import DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access.access import StoreAccess, ZarrFormat
from zarrfeed.storage.access.store_errors import reason_of

#: The kind of an item of a field: a number, bytes or text of any length, or a row of a sparse matrix.
Kind: TypeAlias = Literal["number", "bytes", "text", "csr"]
#: The meaning of a source's file: one of the samples, or a run of samples.
FilesAre: TypeAlias = Literal["samples", "runs"]
#: The samples of one field: an array of shape (samples, *shape of a sample). Bytes and text have the dtype object, and
#: so have rows of a sparse matrix: the bytes of the columns of a row, and then of its values.
Rows: TypeAlias = npt.NDArray[Any]
Int64: TypeAlias = npt.NDArray[np.int64]
#: Reads the decoded values of all samples of a field, by its name.
ByValue: TypeAlias = Mapping[str, Callable[[], Rows]]


def bytes_of(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Return the bytes of a sample of numbers."""
    return math.prod(shape) * dtype.itemsize


def as_bytes(item: str | bytes) -> bytes:
    """Return an item of bytes or text as it is stored."""
    return item.encode() if isinstance(item, str) else bytes(item)


def objects_of(values: Sequence[Any]) -> Rows:
    """Return bytes or text as an array of dtype object, of shape (values,)."""
    return np.fromiter(values, object, len(values))


@dataclass(frozen=True, eq=False)
class CsrRows:
    """Rows of a sparse matrix.

    Attributes
    ----------
    columns
        Number of columns of the matrix.
    index, pointer, value
        Dtypes of the columns, of the beginnings of rows, and of the values, in the packed store before `--dtype`.
    lengths
        Number of stored values of each row, shape (samples,).
    """

    columns: int
    index: np.dtype[Any]
    pointer: np.dtype[Any]
    value: np.dtype[Any]
    lengths: Int64


@dataclass(frozen=True)
class SourceField:
    """One array of a source.

    Attributes
    ----------
    name
        Name of the array in the packed store.
    dtype
        Dtype of an item, as it is stored; object for bytes, text and rows of a sparse matrix.
    shape
        Shape of a sample.
    kind
        Kind of an item.
    dims
        Names of the dimensions, that of the samples first; None: they have no names.
    attributes
        Attributes of the array; JSON.
    fill_value
        Fill value of the array; None: zero, or empty.
    mean_bytes
        Mean bytes of a sample: exact for numbers, about right for the others.
    csr
        The rows, if the field is a sparse matrix; else None.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    kind: Kind = "number"
    dims: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = None
    mean_bytes: int = 0
    csr: CsrRows | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.kind == "number":
            object.__setattr__(self, "mean_bytes", bytes_of(self.shape, self.dtype))


@dataclass(frozen=True, eq=False)
class Runs:
    """Samples of several files, one file after the other.

    Attributes
    ----------
    names
        A key for each file: its path below the folder that all are in.
    ends
        The number of the sample after the last one of each file, shape (files,).
    segment_ends
        The numbers of samples where windows must end: ends of files, but not where a coordinate goes on from one file
        to the next. None: nowhere.
    """

    names: tuple[str, ...]
    ends: Int64
    segment_ends: Int64 | None = None


@dataclass(frozen=True)
class Constant:
    """An array that is the same for all samples, such as the latitudes of a grid: it is copied as it is."""

    name: str
    values: npt.NDArray[Any]
    dims: tuple[str | None, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Source(ABC):
    """Samples that can be read by their numbers. `read` and `take` may be called by several threads at once.

    Attributes
    ----------
    kind
        Name of the kind of source in `KINDS`.
    fields
        The arrays of a sample.
    num_samples
        Number of samples.
    block_samples
        Number of samples that are read together, such as those of a chunk or a row group; 1: each is read by itself.
    attributes
        Attributes of the whole source; JSON.
    constants
        Arrays without an axis of samples.
    fingerprint
        A text that tells this source from another one, or from an earlier state: paths, sizes, times, shapes.
    by_value
        Names of fields whose stored numbers are not copied, since they mean something else in each store: for each,
        what reads the decoded values of all samples anew, by the attributes of each store.
    not_proved
        Sentences about the parts of the source that a comparison with the packed store does not compare.
    runs
        Names and ends of the files that samples lie in. None: there is one file, or they are not needed.
    notes
        Sentences for the report, such as about files that were left out.
    """

    kind: str
    fields: tuple[SourceField, ...]
    num_samples: int
    block_samples: int = 1
    attributes: Mapping[str, Any] = MappingProxyType({})
    constants: tuple[Constant, ...] = ()
    fingerprint: str
    by_value: ByValue = MappingProxyType({})
    not_proved: tuple[str, ...] = ()
    runs: Runs | None = None
    notes: tuple[str, ...] = ()

    def read(self, begin: int, end: int) -> list[Rows]:
        """Return the samples [begin, end): an array for each field, which no one else writes to.

        Raises
        ------
        CorruptChunkError, StoreReadError, OSError
            If they cannot be read; the message names the file or the chunk.
        """
        return self.take(np.arange(begin, end))

    @abstractmethod
    def take(self, samples: Int64) -> list[Rows]:
        """Return the samples of some numbers, in their order; only if `block_samples` is 1.

        Raises
        ------
        CorruptChunkError, StoreReadError, OSError
            As in `read`.
        """

    def close(self) -> None:  # noqa: B027 - not every source keeps files open
        """Let go of files."""


@dataclass(frozen=True)
class SourceOptions:
    """The options that open a source, beside its paths.

    Attributes
    ----------
    variables
        Names of the arrays or columns that are packed. None: all.
    sample_dim
        The dimension, by its name, that counts samples.
    sample_axis
        The axis that counts samples, for arrays without names.
    files_are
        The meaning of each of several files: one of the "samples", or one of the "runs" of samples. None: the only
        possible one.
    targets
        A CSV or JSON file with further fields of image folders.
    size
        (height, width) that encoded images are decoded and resized to. None: their bytes are kept.
    storage_options
        Options of the stores of URLs.
    timeout
        Seconds that a read of a Zarr store may take.
    zarr_format
        Zarr format of the stores, 2 or 3; documents of the other format are not looked for. None: either.
    """

    variables: tuple[str, ...] | None = None
    sample_dim: str | None = None
    sample_axis: int = 0
    targets: str | None = None
    size: tuple[int, int] | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout: float = DEFAULT_TIMEOUT_S
    files_are: FilesAre | None = None
    zarr_format: ZarrFormat | None = None

    @property
    def access(self) -> StoreAccess:
        """Options by which Zarr stores are reached."""
        return StoreAccess(Faults(timeout=self.timeout), self.storage_options, zarr_format=self.zarr_format)


@dataclass(frozen=True)
class SourceCall:
    """A source by its configuration, which other processes open again.

    Attributes
    ----------
    kind
        Name of the kind of source in `KINDS`.
    paths
        Paths and URLs; for a `Data` its expression, for messages and the manifest.
    options
        The options that open the paths.
    data
        The `Data`; None for paths.
    """

    kind: str
    paths: tuple[str, ...]
    options: SourceOptions = SourceOptions()
    data: Any = field(default=None, repr=False)

    def open(self) -> Source:
        """Open the source.

        Raises
        ------
        ConfigError
            If it is none, or a library is missing; the message has the line that installs it.
        """
        module, name = OF_DATA if self.data is not None else KINDS[self.kind]
        opener: Callable[..., Source] = getattr(import_module(f"{__package__}.{module}"), name)
        try:
            return opener(self.paths, self.options) if self.data is None else opener(self.data, self.options.timeout)
        except (ZarrfeedError, OSError, MemoryError):
            raise
        except Exception as error:  # what the parsers of libraries raise on damaged files is of any class
            more = f" and {len(self.paths) - 1} more" * (len(self.paths) > 1)
            raise ConfigError(
                f"{printable(self.paths[0])}{more}: cannot be read as {self.kind}, maybe it is damaged: "
                f"{reason_of(error)}"
            ) from error


#: Kind of source -> its module in this folder, and its class there.
KINDS: dict[str, tuple[str, str]] = {
    "zarr": ("arrays.zarr_source", "ZarrSource"),
    "npy": ("arrays.npy_source", "NpySource"),
    "xarray": ("arrays.xarray_source", "XarraySource"),
    "hdf5": ("arrays.hdf5_source", "Hdf5Source"),
    "arrow": ("tables.arrow_source", "ArrowSource"),
    "images": ("images.image_folder", "ImageFolder"),
    "webdataset": ("images.webdataset_source", "WebDatasetSource"),
    "anndata": ("cells.anndata_source", "AnnDataSource"),
}


#: The same of a `Data`.
OF_DATA = ("arrays.data_source", "DataSource")

#: Kinds of files that may be one sample each.
READ_WHOLE = ("npy", "hdf5", "xarray")


def library(name: str, kind: str, install: str | None = None) -> Any:
    """Import the library that a kind of source is read with.

    Raises
    ------
    ConfigError
        If it is not installed; the message has the line that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{kind} sources need {name}: pip install {install or name.partition('.')[0]}") from error


def chosen(names: Sequence[str], options: SourceOptions, what: str) -> list[str]:
    """Return the names that `variables` chooses, in the order of `names`.

    Raises
    ------
    ConfigError
        If one is not there.
    """
    if options.variables is None:
        return list(names)
    for name in options.variables:
        if name not in names:
            raise ConfigError(f"variables: {name!r} is not in {what}, which has {', '.join(names)}")
    return [name for name in names if name in options.variables]


def refuse_stale(source: Source) -> None:
    """Raise StoreReadError if a source is read by stale metadata: a proof would compare the copy with itself."""
    stale: tuple[str, ...] = getattr(source, "stale", ())
    if stale:
        raise StoreReadError(errno.ESTALE, f"verify = True: {stale[0]}")
