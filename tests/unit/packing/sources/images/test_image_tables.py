"""Tables with a row for each image: what becomes a field of which dtype, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zarrfeed import ConfigError
from zarrfeed.packing.sources.images.image_tables import FILE_COLUMNS, read_targets

KEYS = ["a/0.png", "a/1.png", "b/2.png"]
#: The rows of a table, in another order than the images.
ORDER = [2, 0, 1]


def values_of(path: Path, keys: list[str] = KEYS) -> dict[str, Any]:
    return {field.name: values for field, values in read_targets(str(path), keys, "/images/")}


def csv_of(tmp_path: Path, cells: list[str], name: str = "age") -> Path:
    path = tmp_path / "targets.csv"
    path.write_text(f"file,{name}\n" + "".join(f"{KEYS[i]},{cells[i]}\n" for i in ORDER))
    return path


@pytest.mark.parametrize(
    ("cells", "dtype", "values"),
    [
        (["10", "-11", "+12"], "int64", [10, -11, 12]),
        (["0", str(2**63 - 1), str(-(2**63))], "int64", [0, 2**63 - 1, -(2**63)]),
        (["0.5", "1", "-2e3"], "float64", [0.5, 1, -2000]),
        (["0.5", "nan", "inf"], "float64", [0.5, np.nan, np.inf]),
        (["True", "False", "True"], "bool", [True, False, True]),
        (["x", "1", "2"], "object", ["x", "1", "2"]),
        (["", "", "y"], "object", ["", "", "y"]),
        (["007", "011", "012"], "object", ["007", "011", "012"]),
        (["1_0", "2", "3"], "object", ["1_0", "2", "3"]),
        ([str(2**63), "1", "2"], "object", [str(2**63), "1", "2"]),
        (["9" * 5000, "1", "2"], "object", ["9" * 5000, "1", "2"]),
        (['"one, two"', '"say ""x"""', "ü"], "object", ["one, two", 'say "x"', "ü"]),
    ],
)
def test_a_column_of_csv_is_what_all_its_cells_are(
    cells: list[str], dtype: str, values: list[Any], tmp_path: Path
) -> None:
    ((field, found),) = read_targets(str(csv_of(tmp_path, cells)), KEYS, "/images/")
    assert found.dtype == field.dtype == dtype
    assert (field.name, field.shape, field.dims) == ("age", (), ("sample",))
    assert field.kind == ("text" if dtype == "object" else "number")
    np.testing.assert_array_equal(found, np.array(values, dtype))


@pytest.mark.parametrize("column", FILE_COLUMNS)
@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".CSV", ",")])
def test_any_name_of_the_column_of_files_and_any_delimiter(
    column: str, suffix: str, delimiter: str, tmp_path: Path
) -> None:
    path = tmp_path / f"targets{suffix}"
    rows = [("left", column, "right"), *((f"{i}", f"./{KEYS[i]}", f"r{i}") for i in ORDER)]
    path.write_text("\ufeff" + "\r\n".join(delimiter.join(row) for row in rows) + "\r\n\r\n")
    found = values_of(path)
    assert found["left"].tolist() == [0, 1, 2]
    assert found["right"].tolist() == ["r0", "r1", "r2"]
    assert list(found) == ["left", "right"]


OBJECTS = [
    {
        "file_name": KEYS[i],
        "n": i,
        "x": i + 0.5,
        "ok": i > 0,
        "name": f"n{i}",
        "box": [i, i + 1.5],
        "mixed": [1, 2.5][i % 2],
    }
    for i in range(3)
]


@pytest.mark.parametrize("form", ["list", "lines", "mapping"])
def test_the_forms_of_json(form: str, tmp_path: Path) -> None:
    path = tmp_path / ("targets.jsonl" if form == "lines" else "targets.json")
    rows = [dict(OBJECTS[i]) for i in ORDER]
    if form == "mapping":
        path.write_text(json.dumps({row.pop("file_name"): row for row in rows}))
    else:
        path.write_text(json.dumps(rows) if form == "list" else "\n".join(map(json.dumps, rows)) + "\n")
    found = values_of(path)
    assert {name: (str(values.dtype), values.tolist()) for name, values in found.items()} == {
        "n": ("int64", [0, 1, 2]),
        "x": ("float64", [0.5, 1.5, 2.5]),
        "ok": ("bool", [False, True, True]),
        "name": ("object", ["n0", "n1", "n2"]),
        "box": ("float64", [[0, 1.5], [1, 2.5], [2, 3.5]]),
        "mixed": ("float64", [1, 2.5, 1]),
    }
    fields = {field.name: field for field, _ in read_targets(str(path), KEYS, "/images/")}
    assert (fields["box"].shape, fields["box"].dims) == ((2,), ("sample", "box_1"))


def test_a_mapping_to_values_is_one_field(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps({KEYS[i]: i for i in ORDER}))
    assert values_of(path)["target"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "is empty, must have a header"),
        ("t.csv", "image,age\nx,1\n", "has the columns 'image', 'age'; exactly one must be one of 'file'"),
        ("t.csv", "file,path\nx,1\n", "exactly one must be one of"),
        ("t.csv", "file,age,age\nx,1,2\n", "two columns are called 'age'"),
        ("t.csv", ",file\n0,x\n", r"column 1 has no name; .*to_csv\(index=False\)"),
        ("t.csv", "file,age\nx\n", "line 2: 1 cells, the header has 2"),
        ("t.csv", "file,age\nx,1,2\n", "line 2: 3 cells, the header has 2"),
        ("t.csv", 'file,age\n"x,1\n', "line 2: unexpected end of data"),
        ("t.csv", "file,a/b\na/0.png,1\na/1.png,1\nb/2.png,1\n", "'a/b' cannot be the name of an array"),
        ("t.csv", "file,age\na/0.png,1\na/0.png,2\n", "several rows: 'a/0.png'"),
        ("t.csv", "file,age\na/0.png,1\na/1.png,\nb/2.png,3\n", "age: the cell of 'a/1.png' is empty"),
        ("t.csv", "file,age\na/0.png,1\n", "has no row for 'a/1.png', 'b/2.png'"),
        ("t.csv", "file,age\n0.png,1\n", "'0.png': no such image below /images/; did you mean 'a/0.png'"),
        ("t.csv", "file,age\nb/2.pgn,1\n", "'b/2.pgn': no such image below /images/; did you mean 'b/2.png'"),
        ("t.json", "[1", "is not JSON"),
        ("t.json", "[]", "must be a list of objects, or a mapping"),
        ("t.json", "[1]", "must be a list of objects, or a mapping"),
        ("t.json", "7", "must be a list of objects, or a mapping"),
        ("t.json", "[" * 100_000, "is not JSON"),
        ("t.json", '{"file": "a"}\n{"file": "b"}', "is not JSON: Extra data.*name it .jsonl"),
        ("t.json", '{"images": [], "annotations": []}', "as COCO has them, are not read; write a table with one row"),
        ("t.json", '{"a/0.png": 1, "a/0.png": 2}', "'a/0.png' is there twice"),
        ("t.json", '[{"file": "a/0.png", "x": 1}, {"file": "a/1.png"}]', "'a/1.png' lacks 'x', which others have"),
        ("t.json", '{"a/0.png": {"x": 1}, "a/1.png": 3}', "'a/1.png' lacks 'x'"),
        ("t.json", '[{"file": "a/0.png"}, {"x": 1}]', "object 1 has no text 'file'"),
        ("t.json", '{"a/0.png": 1, "a/1.png": "x", "b/2.png": 2}', "target: 'x' of 'a/1.png': a column must have"),
        ("t.json", '{"a/0.png": 1, "a/1.png": null, "b/2.png": 2}', "target: None of 'a/1.png'"),
        ("t.json", '{"a/0.png": [1], "a/1.png": [1, 2], "b/2.png": [1]}', "lists of numbers of one length"),
        ("t.json", '{"a/0.png": 1, "a/1.png": 99999999999999999999, "b/2.png": 2}', "a column must have numbers"),
        ("t.json", '{"a/0.png": "\\ud800", "a/1.png": "", "b/2.png": ""}', "is not UTF-8"),
        ("t.xlsx", "", "must be a .csv, .tsv, .json or .jsonl file"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        values_of(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))


def test_a_table_that_is_not_utf8_or_missing_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"file,x\n\xff,1\n")
    with pytest.raises(ConfigError, match=r"t\.csv: is not UTF-8"):
        values_of(tmp_path / "t.csv")
    with pytest.raises(FileNotFoundError, match=r"u\.csv"):
        values_of(tmp_path / "u.csv")


def test_many_missing_files_are_named_by_some(tmp_path: Path) -> None:
    path = csv_of(tmp_path, ["1", "2", "3"])
    with pytest.raises(ConfigError, match=r"has no row for 'm0', 'm1', 'm2' and 7 more"):
        values_of(path, [*KEYS, *(f"m{i}" for i in range(10))])
