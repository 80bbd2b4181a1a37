"""Tables with a row for each image: CSV, or JSON. Each column becomes a field, in the order of the images.

A column of CSV holds integers, numbers, or True and False, if all its cells do; else it is text. Integers that begin
with a zero, as numbers of patients do, or that int64 has no room for, are text. No cell is guessed: a column of numbers
with an empty cell is an error.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.packing.sources.files import check_field_name, check_text, some_of
from zarrfeed.packing.sources.source import Rows, SourceField, objects_of

#: Names that the column with the names of files may have.
FILE_COLUMNS = ("file", "filename", "file_name", "path")
_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_MOST_DIGITS = 20  # with the sign, of int64
#: An integer that begins with a zero.
_ZEROS = re.compile(r"[+-]?0[0-9]+")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class _Table:
    """Rows of a file: which image each is of, and the columns."""

    files: list[str]
    columns: dict[str, list[Any]]


def read_targets(path: str, keys: Sequence[str], root: str) -> list[tuple[SourceField, Rows]]:
    """Return the columns of a table as fields, each with its values in the order of `keys`.

    Parameters
    ----------
    path
        Path of a `.csv` or `.tsv` file with a header; or of a `.json` or `.jsonl` file with a list of objects, a line
        for each object, or a mapping of files to values or to objects.
    keys
        The images, by their paths below `root`, as the column `file`, `filename`, `file_name` or `path` names them.
    root
        The folder of the images, for messages.

    Raises
    ------
    ConfigError
        If it is no such table, or lacks an image, or has a file that is none of the images.
    OSError
        If it cannot be read.
    """
    where = printable(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: is not UTF-8: {error}") from error
    suffix = Path(path).suffix.lower()
    if suffix in (".csv", ".tsv"):
        table = _read_csv(text, "\t" if suffix == ".tsv" else ",", where)
    elif suffix in (".json", ".jsonl", ".ndjson"):
        table = _read_json(text, suffix != ".json", where)
    else:
        raise ConfigError(f"{where}: targets must be a .csv, .tsv, .json or .jsonl file")
    order = _row_of_each(keys, [str(PurePosixPath(file)) for file in table.files], where, root)
    made = []
    for name, cells in table.columns.items():
        check_field_name(name, where)
        values = _typed(name, [cells[row] for row in order], keys, suffix in (".csv", ".tsv"), where)
        kind = "text" if values.dtype == object else "number"
        dims = ("sample", *(f"{name}_{axis}" for axis in range(1, values.ndim)))
        mean = sum(map(len, values)) // len(values) if kind == "text" else 0
        field = SourceField(name, values.dtype, values.shape[1:], kind, dims, mean_bytes=mean)  # type: ignore[arg-type]
        made.append((field, values))
    return made


def _row_of_each(keys: Sequence[str], files: list[str], where: str, root: str) -> list[int]:
    """Return the row of each image."""
    rows = {file: row for row, file in enumerate(files)}
    if len(rows) < len(files):
        twice = [file for row, file in enumerate(files) if rows[file] != row]
        raise ConfigError(f"{where}: files have several rows: {some_of(twice)}")
    missing = [key for key in keys if key not in rows]
    known = set(keys)
    surplus = [file for file in files if file not in known]
    if surplus:
        same_name = [key for key in keys if PurePosixPath(key).name == PurePosixPath(surplus[0]).name]
        advice = f"; did you mean {same_name[0]!r}?" if same_name else did_you_mean(surplus[0], missing[:1000])
        raise ConfigError(f"{where}: {some_of(surplus)}: no such image below {printable(root)}{advice}")
    if missing:
        raise ConfigError(f"{where}: has no row for {some_of(missing)}")
    return [rows[key] for key in keys]


def _read_csv(text: str, delimiter: str, where: str) -> _Table:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise ConfigError(f"{where}: is empty, must have a header")
        rows = []
        for row in reader:
            if len(row) != len(header) and row:
                raise ConfigError(f"{where}, line {reader.line_num}: {len(row)} cells, the header has {len(header)}")
            if row:
                rows.append(row)
    except csv.Error as error:
        raise ConfigError(f"{where}, line {reader.line_num}: {error}") from error
    if "" in header:
        advice = "give it one, or write the table without an index (pandas: to_csv(index=False))"
        raise ConfigError(f"{where}: column {header.index('') + 1} has no name; {advice}")
    if len(set(header)) < len(header):
        raise ConfigError(f"{where}: two columns are called {next(n for n in header if header.count(n) > 1)!r}")
    columns: dict[str, list[Any]] = {name: [row[i] for row in rows] for i, name in enumerate(header)}
    return _Table(columns.pop(_file_column(header, where)), columns)


def _read_json(text: str, has_lines: bool, where: str) -> _Table:
    try:
        if has_lines:
            found = [parse_json(line, _unique) for line in text.splitlines() if line.strip()]
        else:
            found = parse_json(text, _unique)
    except ValueError as error:
        advice = "; name it .jsonl if each line is an object" if str(error).startswith("Extra data") else ""
        raise ConfigError(f"{where}: is not JSON: {error}{advice}") from error
    if isinstance(found, dict):
        if isinstance(found.get("images"), list) or isinstance(found.get("annotations"), list):
            advice = "write a table with one row for each image"
            raise ConfigError(f"{where}: lists of images and annotations, as COCO has them, are not read; {advice}")
        values = list(found.values())
        if not any(isinstance(value, dict) for value in values):
            return _Table(list(found), {"target": values})
        return _Table(list(found), _columns(values, list(found), where))
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise ConfigError(f"{where}: must be a list of objects, or a mapping of files to values or objects")
    column = _file_column(list(found[0]), where)
    files = [one.pop(column, None) for one in found]
    if not all(isinstance(file, str) for file in files):
        number = next(i for i, file in enumerate(files) if not isinstance(file, str))
        raise ConfigError(f"{where}: object {number} has no text {column!r}")
    return _Table(files, _columns(found, files, where))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in made if names.count(name) > 1)!r} is there twice")
    return made


def _columns(objects: Sequence[Any], files: Sequence[str], where: str) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for one in objects if isinstance(one, Mapping) for name in one))
    for one, file in zip(objects, files, strict=True):
        if not isinstance(one, Mapping) or len(one) < len(names):
            lacking = [name for name in names if not isinstance(one, Mapping) or name not in one]
            raise ConfigError(f"{where}: {printable(file)!r} lacks {some_of(lacking)}, which others have")
    return {name: [one[name] for one in objects] for name in names}


def _file_column(names: Sequence[str], where: str) -> str:
    found = [name for name in names if name in FILE_COLUMNS]
    if len(found) != 1:
        allowed = ", ".join(map(repr, FILE_COLUMNS))
        has = ", ".join(map(repr, names))
        raise ConfigError(f"{where}: has the columns {has}; exactly one must be one of {allowed}")
    return found[0]


def _typed(name: str, cells: list[Any], keys: Sequence[str], is_csv: bool, where: str) -> npt.NDArray[Any]:
    """Return a column as an array; texts have the dtype object."""
    if is_csv:
        cells = _parsed(name, cells, keys, where)
    kinds = {type(cell) for cell in cells}
    if kinds == {bool}:
        return np.array(cells, bool)
    if kinds == {int} and all(cell in _INT64 for cell in cells):
        return np.array(cells, np.int64)
    if kinds in ({float}, {float, int}):
        return np.array(cells, np.float64)
    if kinds == {str}:
        for cell in cells:
            check_text(cell, f"{where}: {name}:")
        return objects_of(cells)
    if kinds == {list}:
        try:
            made = np.array(cells)
        except ValueError:  # of different lengths
            made = np.empty(0, object)
        if made.dtype.kind in "bif" and made.size:
            return made
    first = next((i for i, cell in enumerate(cells) if type(cell) is not type(cells[0])), 0)
    odd = f"{cells[first]!r}"[:60]
    allowed = "numbers, text, or lists of numbers of one length"
    raise ConfigError(f"{where}: {name}: {odd} of {printable(keys[first])!r}: a column must have {allowed}")


def _parsed(name: str, cells: list[str], keys: Sequence[str], where: str) -> list[Any]:
    """Return the cells of CSV as what all of them are."""
    filled = [cell for cell in cells if cell]
    parsed: list[Any] | None = None
    if filled and all(map(_is_int64, filled)):
        parsed = [int(cell) for cell in filled]
    elif filled and set(filled) <= {"True", "False"}:
        parsed = [cell == "True" for cell in filled]
    elif filled and not any(_ZEROS.fullmatch(cell) for cell in filled):
        parsed = _floats(filled)
    if parsed is None:
        return cells
    if len(filled) < len(cells):
        key = printable(keys[cells.index("")])
        raise ConfigError(f"{where}: {name}: the cell of {key!r} is empty, others are numbers; write nan, or a number")
    return parsed


def _is_int64(cell: str) -> bool:
    return len(cell) <= _MOST_DIGITS and _INTEGER.fullmatch(cell) is not None and int(cell) in _INT64


def _floats(cells: list[str]) -> list[float] | None:
    """Return numbers; None if a cell is none, or they are integers without end, which float has no room for."""
    if any("_" in cell for cell in cells) or all(_INTEGER.fullmatch(cell) for cell in cells):
        return None
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return None
