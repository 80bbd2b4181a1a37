"""`CsrField`: sparse matrices whose rows are samples, as AnnData stores them (`encoding-type: csr_matrix`).

Invariant: the elements of all matrices are numbered through, row by row and store by store. An element lies in one
element block: a read chunk of the array `indices`, or `data`, of one store. `indptr` of all rows is in memory, so which
element blocks a row needs is known before any of them is read.

A row that names a column twice has the sum of both values there, as in scipy. A chunk of `indices` that the store lacks
is no data: its fill value would put all its values into one column. `absent_marker` tells such chunks apart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.dtypes import item_bytes

Int64: TypeAlias = npt.NDArray[np.int64]

#: Rows of a block, at least, as long as it has no more bytes than `_SMALL_BLOCK`: tiny chunks make no blocks of a row.
_FEW_ROWS = 32
_SMALL_BLOCK = 4 << 20
#: Rows of a block of a matrix without stored values.
_ROWS_OF_ZEROS = 1024


@dataclass(frozen=True, eq=False)
class Elements:
    """The array `indices`, or `data`, of one matrix or several.

    Attributes
    ----------
    layouts
        The forms in which stores hold the array; stores with the same form share a layout. A row of a layout is one
        read chunk.
    layout
        Number of each store's layout in `layouts`, shape (stores,).
    first_chunk
        The number of each store's first chunk in its layout, shape (stores,).
    begin
        The number of each store's first element, and of all elements, shape (stores + 1,).
    """

    layouts: tuple[Layout, ...]
    layout: Int64
    first_chunk: Int64
    begin: Int64

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Elements)
            and self.layouts == other.layouts
            and all(
                np.array_equal(getattr(self, name), getattr(other, name)) for name in ("layout", "first_chunk", "begin")
            )
        )

    def __hash__(self) -> int:
        return hash(self.layouts)

    @property
    def dtype(self) -> str:
        """The name of the dtype that holds the elements of all stores, as they are delivered."""
        names = {self.dtype_of(number) for number in range(len(self.layouts))}
        return names.pop() if len(names) == 1 else str(np.result_type(*names))

    def dtype_of(self, layout: int) -> str:
        """Return the name of the dtype of the elements of a layout, as they are delivered."""
        one = self.layouts[layout]
        return one.spec.dtype.name if one.conversion is None else one.conversion.result

    @cached_property
    def block_items(self) -> Int64:
        """Elements of a full block of each store, shape (stores,)."""
        lengths = np.array([layout.spec.chunk_shape[1] for layout in self.layouts], dtype=np.int64)
        return lengths[self.layout]

    @cached_property
    def first_block(self) -> Int64:
        """The number of each store's first block, and of all blocks, shape (stores + 1,)."""
        return np.concatenate(([0], np.cumsum(-(-np.diff(self.begin) // self.block_items))))

    @property
    def num_blocks(self) -> int:
        """Blocks of all stores."""
        return int(self.first_block[-1])

    def find(self, element: Int64) -> tuple[Int64, Int64]:
        """Return the block of each element, and its offset there."""
        if len(self.layout) == 1:
            return np.divmod(element, self.block_items[0])
        store = np.searchsorted(self.begin, element, side="right") - 1
        block, offset = np.divmod(element - self.begin[store], self.block_items[store])
        return block + self.first_block[store], offset

    def store_of(self, block: Int64) -> Int64:
        """Return the store of each block."""
        return np.searchsorted(self.first_block, block, side="right") - 1

    def chunk_of(self, block: Int64) -> tuple[Int64, Int64]:
        """Return the layout of each block, and the number of its chunk there."""
        store = self.store_of(block)
        return self.layout[store], self.first_chunk[store] + block - self.first_block[store]

    def range_of(self, block: Int64) -> tuple[Int64, Int64]:
        """Return the first element of each block, and the end of its elements."""
        store = self.store_of(block)
        begin = self.begin[store] + (block - self.first_block[store]) * self.block_items[store]
        return begin, np.minimum(begin + self.block_items[store], self.begin[store + 1])

    def splits_as(self, other: Elements) -> bool:
        """Return whether blocks of both hold the same elements, and lie alike in their layouts."""
        ours, theirs = ((one.block_items, one.layout, one.first_chunk, one.begin) for one in (self, other))
        return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def absent_marker(fill: int, dtype: np.dtype[Any], num_columns: int) -> int:
    """Return the number that `indices` have in chunks that the store lacks, in place of the fill value.

    It is no column, and `marked_fill` returns the fill value for it. If all numbers of the dtype are columns, it is the
    fill value itself.
    """
    turned = _turn_bits(fill, dtype)
    if not 0 <= turned < num_columns:
        return turned
    if 0 <= fill < num_columns:
        return fill
    return -1 if dtype.kind == "i" else num_columns  # the fill value is no column, and neither is what this stands for


def marked_fill(marker: int, dtype: np.dtype[Any], num_columns: int) -> int:
    """Return the column that a marker stands for.

    If the fill value is no column, it is a number that is none, as long as the dtype has room for twice the columns.
    """
    return marker if 0 <= marker < num_columns else _turn_bits(marker, dtype)


def _turn_bits(number: int, dtype: np.dtype[Any]) -> int:
    """Return a number with its highest bit turned over; with all bits, if the dtype is unsigned."""
    bounds = np.iinfo(dtype)
    if dtype.kind == "u":
        return int(bounds.max) - number
    return number + int(bounds.min) if number >= 0 else number - int(bounds.min)


@dataclass(frozen=True, eq=False)
class CsrField(FieldKind):
    """Sparse matrices with one sample a row, in several stores one after another.

    The engine gives the field the global sample index, and `engine/csr_reader.py` looks the rows up.

    Attributes
    ----------
    path
        Name in messages: the path or URL of the matrix.
    indptr
        The number of each row's first element, and of all elements, shape (rows + 1,).
    first_row
        Each store's first row, and the number of all rows, shape (stores + 1,).
    indices, data
        The columns of elements, and their values.
    dense
        True if batches are dense tensors.
    row_total
        The total that each row is divided to have. None: rows are as they are.
    after
        The conversion of float64 values that rows are divided to. None: values were converted while they were decoded.
    """

    name: str
    path: str
    num_columns: int
    indptr: Int64
    first_row: Int64
    indices: Elements
    data: Elements
    dense: bool = False
    row_total: float | None = None
    after: Conversion | None = None

    def __eq__(self, other: object) -> bool:
        names = ("name", "path", "num_columns", "digest", "indices", "data", "dense", "row_total", "after")
        return isinstance(other, CsrField) and all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        return hash((self.name, self.path, self.digest, self.dense))

    @cached_property
    def digest(self) -> str:
        """A hash that tells apart which rows have how many elements, and which store has which rows."""
        hashed = hashlib.sha256(self.indptr.astype("<i8").tobytes())
        hashed.update(self.first_row.astype("<i8").tobytes())
        return hashed.hexdigest()

    @property
    def array_path(self) -> str:
        """Path or URL of the matrix."""
        return self.path

    @property
    def is_sparse(self) -> bool:
        """True if batches have sparse tensors."""
        return not self.dense

    @property
    def described_items(self) -> str:
        """The field in words."""
        return "a sparse matrix"

    @property
    def lists_order(self) -> bool:
        """Always: its reader finds the element blocks of the epoch in the order of rows."""
        return True

    @property
    def is_lookup(self) -> bool:
        """Always: the engine delivers indices."""
        return True

    def describe_source(self) -> str:
        """Return the path of the matrix, and the matrix in words."""
        return f"{self.path}, {self.describe()}"

    def arrays(self) -> tuple[Layout, ...]:
        """Return the arrays of elements, one of each way of storing them."""
        return (*self.indices.layouts, *self.data.layouts)

    @property
    def dtype_name(self) -> str:
        """Name of the dtype of the values in batches."""
        return self.data.dtype if self.after is None else self.after.result

    @property
    def described_dtype(self) -> str:
        """Name of the dtype of the values, and whether batches are sparse."""
        return self.dtype_name if self.dense else f"sparse_csr of {self.dtype_name}"

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of the index of a row, and of its elements, on average."""
        return item_bytes("int64") + self.row_bytes

    @property
    def num_samples(self) -> int:
        """Rows of all matrices."""
        return len(self.indptr) - 1

    @property
    def num_elements(self) -> int:
        """Stored values of all matrices."""
        return int(self.indptr[-1])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return (self.num_columns,)

    @property
    def index_dtype(self) -> str:
        """The name of the dtype of columns and row beginnings in batches: one of the two that torch takes."""
        return "int32" if np.can_cast(self.indices.dtype, np.int32) else "int64"

    @property
    def element_bytes(self) -> int:
        """Bytes of one element: its column, and its value as it is delivered."""
        return item_bytes(self.indices.dtype) + max(item_bytes(self.data.dtype), item_bytes(self.dtype_name))

    @property
    def row_bytes(self) -> int:
        """Bytes of the elements of a row, on average."""
        return -(-self.num_elements * self.element_bytes // self.num_samples)

    @property
    def block_bytes(self) -> int:
        """Decoded bytes of an element block, over both arrays."""
        return sum(
            max(layout.spec.chunk_shape[1] for layout in one.layouts) * item_bytes(name)
            for one, name in ((self.indices, self.indices.dtype), (self.data, self.data.dtype))
        )

    @cached_property
    def sides(self) -> tuple[tuple[Elements, ...], ...]:
        """The arrays that are read together: both where their blocks hold the same elements, else each by itself."""
        if self.indices.splits_as(self.data):
            return ((self.indices, self.data),)
        return (self.indices,), (self.data,)

    def may_be_absent(self, first: int, end: int) -> bool:
        """Return whether a writer may have left out a chunk of `indices` with these elements: all have one column then.

        zarr-python does not store chunks that hold nothing but the fill value. No row names a column twice in a matrix
        that scipy made canonical, so such a chunk has one element of a row at most.
        """
        low = int(np.searchsorted(self.indptr, first, side="right")) - 1
        high = int(np.searchsorted(self.indptr, end, side="left"))
        edges = np.clip(self.indptr[low : high + 1], first, end)
        return int(np.diff(edges).max()) <= 1

    def row_of(self, element: int) -> int:
        """Return the row that has an element."""
        return int(np.searchsorted(self.indptr, element, side="right")) - 1

    @property
    def primary(self) -> Elements:
        """The array whose chunks make the blocks: the one with the longer chunks."""
        return self.data if self.data.num_blocks < self.indices.num_blocks else self.indices

    @property
    def is_sharded(self) -> bool:
        """True if every store has shards."""
        return all(layout.spec.shard is not None for layout in self.primary.layouts)

    def find_edges(self, *, of_shards: bool = False) -> Int64:
        """Return the first row of each block of rows, and the number of rows, ascending.

        A block has the rows that begin in one element block; in several, where chunks have few rows; or in a shard.
        """
        elements = self.primary
        mean = max(1.0, self.num_elements / self.num_samples)
        edges = [self.first_row]
        for store in range(len(elements.layout)):
            first, end = self.first_row[store], self.first_row[store + 1]
            spec = elements.layouts[elements.layout[store]].spec
            items = int(elements.block_items[store])
            if of_shards and spec.shard is not None:
                length = items * spec.shard.chunks[0]
            else:
                most = max(1, _SMALL_BLOCK // (items * self.element_bytes))
                length = items * max(1, min(most, int(_FEW_ROWS * mean // items)))
            if elements.begin[store] == elements.begin[store + 1]:  # zeros alone, which no chunk limits
                edges.append(np.arange(first, end, _ROWS_OF_ZEROS))
                continue
            begins = np.arange(elements.begin[store], elements.begin[store + 1], length)
            edges.append(first + np.searchsorted(self.indptr[first:end], begins))
        return np.unique(np.concatenate(edges))

    def describe(self) -> str:
        """Return the matrix in words."""
        mean = self.num_elements / self.num_samples
        density = f"{100 * mean / max(1, self.num_columns):.3g} %"
        return (
            f"{self.num_samples} rows of {self.num_columns} columns, {self.num_elements} stored values "
            f"({mean:.3g} a row, {density})"
        )
