"""Files of tables, read block by block: Parquet by row groups, Arrow's IPC files and streams by record batches.

Arrow trusts the bytes of an IPC file: lengths that do not fit together end the process. So each batch is validated, its
lengths when it is opened, and all of it before its rows are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.packing.sources.source import library
from zarrfeed.storage.files.data_file import DataFile

#: Record batches of a compressed stream are decoded when it is opened: it has no index.
MOST_STREAM_BYTES = 1 << 30
_KIND = "arrow"


class TableFile(Protocol):
    """A file of a table. `read` may be called by several threads at once.

    Attributes
    ----------
    schema
        Schema of the table, as pyarrow has it.
    block_rows
        Number of rows of each block.
    single_rows
        True if a row can be read without the others of its block.
    """

    schema: Any
    block_rows: list[int]
    single_rows: bool

    def read(self, block: int, columns: Sequence[str]) -> Any:
        """Return the rows of a block as a table of pyarrow."""

    def mean_bytes(self, column: str) -> int:
        """Return about how many bytes a row has in a column."""

    def null_count(self, column: str) -> int | None:
        """Return how many rows have no value in a column that is not nested; None: the file does not tell."""


def open_table(file: DataFile) -> TableFile:
    """Open a file of a table; its first bytes tell the format.

    Raises
    ------
    ConfigError
        If it has none of the formats, or is damaged; or if pyarrow is missing.
    """
    pyarrow = library("pyarrow", _KIND)
    try:
        with file.path.open("rb") as stream:
            magic = stream.read(8)
        if magic.startswith(b"PAR1"):
            return _Parquet(file)
        if magic.startswith(b"ARROW1"):
            return _IpcFile(file)
        if magic.startswith(b"\xff\xff\xff\xff"):  # of a message, which a stream begins with
            return _IpcStream(file)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{file}: is damaged: {str(error).splitlines()[0]}") from error
    raise ConfigError(f"{file}: is neither Parquet nor Arrow (IPC file, stream, or Feather of version 2)")


class _Parquet:
    """Every read opens the file for itself, as a reader is for one thread."""

    single_rows = False

    def __init__(self, file: DataFile) -> None:
        self._parquet = library("pyarrow.parquet", _KIND, "pyarrow")
        self._path = file.path
        with self._parquet.ParquetFile(self._path) as opened:
            self.schema, metadata = opened.schema_arrow, opened.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            self.block_rows: list[int] = [group.num_rows for group in groups]
            self._bytes: dict[str, int] = {}
            self._nulls: dict[str, int | None] = {}
            for group in groups:
                for number in range(group.num_columns):
                    self._count(group.column(number))

    def _count(self, chunk: Any) -> None:
        """Add the facts about a column of a row group that the footer has."""
        column = chunk.path_in_schema.partition(".")[0]
        self._bytes[column] = self._bytes.get(column, 0) + chunk.total_uncompressed_size
        told = chunk.statistics.null_count if chunk.is_stats_set and chunk.statistics.has_null_count else None
        before = self._nulls.get(column, 0)
        self._nulls[column] = None if told is None or before is None or "." in chunk.path_in_schema else before + told

    def read(self, block: int, columns: Sequence[str]) -> Any:
        with self._parquet.ParquetFile(self._path) as opened:
            return opened.read_row_group(block, columns=list(columns))

    def mean_bytes(self, column: str) -> int:
        return self._bytes.get(column, 0) // max(1, sum(self.block_rows))

    def null_count(self, column: str) -> int | None:
        return self._nulls.get(column)


class _Ipc:
    """The common part of files and streams: a table of the first batch tells how large rows are."""

    schema: Any
    block_rows: list[int]
    single_rows = False

    def read(self, block: int, columns: Sequence[str]) -> Any:
        raise NotImplementedError

    def mean_bytes(self, column: str) -> int:
        first = next((number for number, rows in enumerate(self.block_rows) if rows), None)
        if first is None:
            return 0
        table = self.read(first, [column])
        return int(table.nbytes // table.num_rows)

    def null_count(self, column: str) -> int | None:  # noqa: ARG002 - of the protocol
        return None


class _IpcFile(_Ipc):
    """Batches are found by the footer; only the buffers of wanted columns are read."""

    def __init__(self, file: DataFile) -> None:
        self._arrow = library("pyarrow", _KIND)
        self._path = file.path
        with self._arrow.OSFile(str(self._path)) as opened:
            reader = self._arrow.ipc.open_file(opened)
            self.schema, count = reader.schema, reader.num_record_batches
        small = min(range(len(self.schema)), key=lambda number: _width(self.schema.types[number]), default=0)
        self.block_rows = [self._batch(number, [small]).num_rows for number in range(count)]

    def _batch(self, block: int, fields: list[int]) -> Any:
        options = self._arrow.ipc.IpcReadOptions(included_fields=fields)
        with self._arrow.OSFile(str(self._path)) as opened:
            batch = self._arrow.ipc.open_file(opened, options=options).get_batch(block)
        batch.validate()
        return batch

    def read(self, block: int, columns: Sequence[str]) -> Any:
        batch = self._batch(block, [self.schema.get_field_index(name) for name in columns])
        batch.validate(full=True)
        return self._arrow.Table.from_batches([batch]).select(list(columns))


def _width(dtype: Any) -> int:
    """Return the bits of an item, or many for items of any length."""
    try:
        return int(dtype.bit_width)
    except ValueError:
        return 1 << 20


class _IpcStream(_Ipc):
    """Batches lie in a mapped file, as Hugging Face's datasets keep them; compressed ones in memory."""

    single_rows = True

    def __init__(self, file: DataFile) -> None:
        self._arrow = library("pyarrow", _KIND)
        before = self._arrow.total_allocated_bytes()
        self._batches = []
        with self._arrow.memory_map(str(file.path)) as opened, self._arrow.ipc.open_stream(opened) as reader:
            self.schema = reader.schema
            for batch in reader:
                batch.validate()
                self._batches.append(batch)
                if self._arrow.total_allocated_bytes() - before > MOST_STREAM_BYTES:
                    raise ConfigError(
                        f"{file}: is a compressed stream, whose rows need more than {format_bytes(MOST_STREAM_BYTES)}; "
                        "write its batches to an IPC file (pyarrow.ipc.new_file) or to Parquet, which have an index"
                    )
        self.block_rows = [batch.num_rows for batch in self._batches]

    def read(self, block: int, columns: Sequence[str]) -> Any:
        self._batches[block].validate(full=True)
        return self._arrow.Table.from_batches([self._batches[block]]).select(list(columns))
