"""`ArrowSource`: rows of tables, in Parquet files, Arrow's IPC files and streams, and Hugging Face's datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.packing.sources.file_source import FileSource, data_files, same_in_all
from zarrfeed.packing.sources.items import names_attributes
from zarrfeed.packing.sources.open_files import OpenFiles
from zarrfeed.packing.sources.source import Int64, Rows, SourceField, SourceOptions, chosen, library
from zarrfeed.packing.sources.tables.arrow_columns import Column, columns_of
from zarrfeed.packing.sources.tables.arrow_files import TableFile, open_table
from zarrfeed.packing.sources.tables.block_cache import BlockCache
from zarrfeed.storage.files.data_file import DataFile

#: Metadata of a schema that say how others read the table, and nothing about its samples.
_FOREIGN = (b"pandas", b"huggingface", b"ARROW:schema")
#: A column with more names than this is text, and no category.
MOST_NAMES = 1 << 20


class ArrowSource(FileSource):
    """Rows of tables with the same columns.

    Numbers, bool and lists of one length become arrays of numbers; dates and times become int64 with CF's units; texts
    and bytes stay. A column with a dictionary of texts becomes codes, whose attribute `names` has the texts.

    Parameters
    ----------
    paths
        Files or folders of them; a folder that `Dataset.save_to_disk` of Hugging Face wrote, too.
    options
        Options of the source; `variables` chooses columns.

    Raises
    ------
    ConfigError
        If a file is no table, or has other columns than the first one; if a column has nulls or a type that has no
        place in Zarr; if pyarrow is missing.
    """

    kind = "arrow"

    def __init__(self, paths: Sequence[str], options: SourceOptions) -> None:
        super().__init__()
        library("pyarrow", self.kind)
        files = _samples_only(paths, data_files(paths, self.kind, (".parquet", ".pq", ".arrow", ".feather", ".ipc")))
        self._block_starts: list[Int64] = []  # (blocks + 1,) of each file: the number of the first row of each block
        columns: list[Column] = []
        names: list[str] = []
        bytes_of: dict[str, int] = {}
        single_rows, attributes, largest = True, {}, 1
        for file in files:
            table = open_table(file)
            if not self._block_starts:
                names = chosen(table.schema.names, options, str(file))
                columns = list(_columns_in(file, table, names))
                attributes = _attributes(table.schema.metadata or {})
            _check_same(file, table, names, columns, options)
            self._block_starts.append(np.cumsum([0, *table.block_rows]))
            single_rows, largest = single_rows and table.single_rows, max(largest, *table.block_rows, 1)
            if not bytes_of and self._block_starts[-1][-1]:
                bytes_of = {name: table.mean_bytes(name) for name in names}
        self.files = tuple(files)
        self._names = names
        self._blocks: BlockCache[Any] = BlockCache()
        self._tables: OpenFiles[TableFile] = OpenFiles(lambda number: open_table(self.files[number]), lambda _: None)
        self._columns = [self._completed(column) for column in columns]
        fields = [
            SourceField(
                column.name,
                column.item.dtype,
                column.sample_shape,
                column.item.kind,
                None if column.dims is None else (None, *column.dims),
                column.item.attributes,
                mean_bytes=bytes_of.get(column.path[0], 0),
            )
            for column in self._columns
        ]
        self._describe(
            files,
            [starts[-1] for starts in self._block_starts],
            fields,
            block_samples=1 if single_rows else largest,
            attributes=attributes,
        )

    def _completed(self, column: Column) -> Column:
        """Return a column with what its rows alone can tell: the lengths of lists, and the names in dictionaries."""
        if None in column.lengths:
            number = next((n for n, starts in enumerate(self._block_starts) if starts[-1]), None)
            if number is not None:
                block = int(np.flatnonzero(np.diff(self._block_starts[number]))[0])
                with self._tables.use(number) as table:
                    column = column.with_lengths(table.read(block, [column.path[0]]), str(self.files[number]))
        if column.names is None:
            return column
        names: dict[str, None] = {}  # in the order in which they are met
        for number, starts in enumerate(self._block_starts):
            for block in range(len(starts) - 1):
                with self._tables.use(number) as table:
                    chunks = table.read(block, list(column.path[:1])).column(0).chunks
                names.update(dict.fromkeys(name for chunk in chunks for name in chunk.dictionary.to_pylist()))
                if None in names or len(names) > MOST_NAMES:
                    why = "a null" if None in names else f"more than {MOST_NAMES} texts"
                    raise ConfigError(
                        f"{self.files[number]}: the dictionary of {column.name!r} has {why}: cast it to text"
                    )
        return column.with_names(list(names))

    def _read_file(self, number: int, begin: int, end: int) -> list[Rows]:
        starts, file = self._block_starts[number], self.files[number]
        parts: list[list[Rows]] = []
        block = int(np.searchsorted(starts, begin, "right")) - 1
        while begin < end:
            first, stop = int(starts[block]), min(end, int(starts[block + 1]))
            if begin < stop:
                rows = self._block(number, block).slice(begin - first, stop - begin)
                parts.append([column.rows(rows, str(file), begin) for column in self._columns])
            begin, block = max(begin, stop), block + 1
        return parts[0] if len(parts) == 1 else [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _block(self, number: int, block: int) -> Any:
        def decode() -> Any:
            with self._tables.use(number) as table:
                return table.read(block, self._names)

        return self._blocks.get((number, block), decode)

    def close(self) -> None:
        """Let go of files and of cached rows."""
        self._blocks.clear()
        self._tables.close()


def _samples_only(paths: Sequence[str], files: Sequence[DataFile]) -> list[DataFile]:
    """Return files without those that Hugging Face's datasets left beside the ones of a data set.

    Raises
    ------
    ConfigError
        If a folder's name has the value of a column: such a column is in no file.
    """
    given = {str(Path(path).absolute()) for path in paths}
    found, of_folder = [], {}
    for file in files:
        folder = file.path.parent
        if "=" in folder.name and given.isdisjoint((str(file.path), str(folder))):
            raise ConfigError(
                f"{file}: the folder's name has a column, which is not read: write the table without partitions, or "
                "pass the files of each partition"
            )
        if folder not in of_folder:
            state = folder / "state.json"
            of_folder[folder] = _files_in(state) if state.exists() else set()
        if not of_folder[folder] or file.path.name in of_folder[folder]:
            found.append(file)
    return found


def _files_in(state: Path) -> set[str]:
    """Return the names of the files of a dataset of Hugging Face, by its state.json."""
    try:
        return {one["filename"] for one in parse_json(state.read_bytes()).get("_data_files", ())}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{printable(state)}: does not name the files of a dataset of Hugging Face") from error


def _features_in(notes: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """Return Hugging Face's note about the columns; {} if it is damaged, or of another program."""
    try:
        features = parse_json(notes.get(b"huggingface", b"{}"))["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}


def _columns_in(file: DataFile, table: TableFile, names: Sequence[str]) -> list[Column]:
    types = library("pyarrow", "arrow").types
    features = _features_in(table.schema.metadata or {})
    columns = []
    for name in names:
        if table.schema.names.count(name) > 1:
            raise ConfigError(f"{file}: has several columns {name!r}: rename them")
        field = table.schema.field(name)
        attributes = _attributes(field.metadata or {})
        feature = features.get(name)
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
            attributes |= names_attributes(feature["names"])
        for column in columns_of((name,), field.type, attributes, str(file)):
            is_category = types.is_dictionary(field.type) and column.item.kind == "text"
            columns.append(column.with_names([]) if is_category else column)
    return columns


def _attributes(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return metadata of a schema or of a column that are texts, and not for others who read the table."""
    own = {
        key: value
        for key, value in metadata.items()
        if key not in _FOREIGN and not key.startswith((b"PARQUET:", b"ARROW:"))
    }
    return {
        key.decode("utf-8", "backslashreplace"): value.decode("utf-8", "backslashreplace") for key, value in own.items()
    }


def _check_same(
    file: DataFile, table: TableFile, names: Sequence[str], first: Sequence[Column], options: SourceOptions
) -> None:
    """Raise ConfigError if a file has not the columns of the first one, or nulls where there is no NaN."""
    same_in_all(file, "the list of columns", sorted(chosen(table.schema.names, options, str(file))), sorted(names))
    for column, other in zip(_columns_in(file, table, names), first, strict=True):
        same_in_all(file, f"the type of {column.name!r}", _told(column), _told(other))
        count = table.null_count(column.path[0])
        if count and column.item.dtype.kind != "f":
            raise ConfigError(
                f"{file}: column {column.name!r} has {count} rows without a value (null), for which only floats have "
                "one (NaN): fill them in, or leave the column out with `variables`"
            )


def _told(column: Column) -> str:
    lists = "".join(f"[{'any' if length is None else length}]" for length in column.lengths)
    units = {key: value for key, value in column.item.attributes.items() if key in ("units", "names")}
    return f"{column.type}{lists}{units or ''}{'' if column.names is None else ' in a dictionary'}"
