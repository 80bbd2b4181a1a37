"""Columns of AnnData in every encoding, as column, index and categories: `open` and `pack` read what anndata reads."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import zarr

import zarrfeed
from tests.support.sparse import put_column
from zarrfeed import ConfigError, ZarrDataset
from zarrfeed.metadata.array.anndata_columns import column_at, encoding_in
from zarrfeed.packing.pack import pack

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string'"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
    pytest.mark.filterwarnings("ignore::anndata.ImplicitModificationWarning"),
]
N = 12
STRING = pd.StringDtype("python")
NUMBERS = np.arange(N)
TEXTS = np.array([f"t{n % 5}" for n in NUMBERS], object)
HOLES = NUMBERS % 3 == 0


def with_holes(values: Any, dtype: Any) -> Any:
    return pd.array([None if hole else value for hole, value in zip(HOLES, values, strict=True)], dtype=dtype)


@cache
def columns() -> dict[str, Any]:
    """Return a column of each encoding, made while pandas makes objects of text."""
    return {
        "number": NUMBERS,
        "text": TEXTS,
        "string": pd.array(TEXTS, dtype=STRING),
        "string_with_holes": with_holes(TEXTS.tolist(), STRING),
        "kind": pd.Categorical(TEXTS),
        "kind_of_string": pd.Categorical(pd.array(TEXTS, dtype=STRING)),
        "kind_with_holes": pd.Categorical(with_holes(TEXTS.tolist(), STRING)),
        "kind_of_number": pd.Categorical(NUMBERS % 4),
        "ordered": pd.Categorical(TEXTS, ordered=True),
        "integer": with_holes(NUMBERS.tolist(), "Int64"),
        "small": pd.array(NUMBERS.tolist(), dtype="UInt8"),
        "boolean": with_holes((NUMBERS % 2 == 0).tolist(), "boolean"),
        "whole_boolean": pd.array((NUMBERS % 2 == 0).tolist(), dtype="boolean"),
    }


CATEGORICAL = ["kind", "kind_of_string", "kind_with_holes", "kind_of_number", "ordered"]
INDICES = {"object": object, "string": STRING}
FORMATS = ("h5ad", 2, 3)


def write(path: Path, index: Any, form: str | int) -> Any:
    """Write cells with all columns; return them as anndata reads them."""
    with (
        pd.option_context("future.infer_string", False),
        anndata.settings.override(allow_write_nullable_strings=True, zarr_write_format=3 if form == "h5ad" else form),
    ):
        cells = anndata.AnnData(
            X=NUMBERS[:, None] + np.zeros(3, "f4"),
            obs=pd.DataFrame(columns(), index=pd.Index([f"cell-{n}" for n in NUMBERS], dtype=index)),
            var=pd.DataFrame(index=pd.Index(list("xyz"), dtype=index)),
        )
        if form == "h5ad":
            cells.write_h5ad(path, convert_strings_to_categoricals=False)
        else:
            cells.write_zarr(path, convert_strings_to_categoricals=False)
    return (anndata.read_h5ad if form == "h5ad" else anndata.read_zarr)(path)


def plain(column: Any) -> list[Any]:
    """Return a column of pandas as Python objects, None where there is no value."""
    return [None if pd.isna(value) else value for value in column.astype(object).tolist()]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("index", INDICES)
def test_every_encoding_is_packed_as_anndata_reads_it(index: str, form: str | int, tmp_path: Path) -> None:
    path = tmp_path / ("a.h5ad" if form == "h5ad" else "a.zarr")
    wanted = write(path, INDICES[index], form)
    pack(path, tmp_path / "packed.zarr", shuffle=3, verify=True, sample_chunk=4)
    got = anndata.read_zarr(tmp_path / "packed.zarr")
    order = got.X[:, 0].astype(int)
    assert sorted(order) == list(range(N))
    assert order.tolist() != list(range(N))
    assert got.obs_names.tolist() == [f"cell-{n}" for n in order]
    assert got.var_names.tolist() == list("xyz")
    assert list(got.obs.columns) == list(wanted.obs.columns)
    for name in wanted.obs.columns:
        assert plain(got.obs[name]) == plain(wanted.obs[name].iloc[order]), name
        assert name == "text" or type(got.obs[name].dtype) is type(wanted.obs[name].dtype), name
    assert got.obs["ordered"].cat.ordered


@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("index", INDICES)
def test_every_encoding_is_opened_as_anndata_reads_it(index: str, form: int, tmp_path: Path) -> None:
    wanted = write(tmp_path / "a.zarr", INDICES[index], form)
    names = ["X", *(f"obs/{name}" for name in wanted.obs.columns), "obs/_index"]
    rows = [7, 0, 11, 3]
    for source in (tmp_path / "a.zarr", zarr.open_group(tmp_path / "a.zarr", mode="r")):
        data = zarrfeed.open(source, variables=names)
        batch = ZarrDataset(data)[rows]
        assert batch["obs/_index"] == [f"cell-{n}" for n in rows]
        assert set(data.categories) == {f"obs/{name}" for name in CATEGORICAL}
        for name in wanted.obs.columns:
            expected = plain(wanted.obs[name].iloc[rows])
            values = batch[f"obs/{name}"]
            found = values if isinstance(values, list) else values.tolist()
            if name in CATEGORICAL:
                found = [None if code < 0 else data.categories[f"obs/{name}"][code] for code in found]
            mask = batch.get(f"obs/{name}/mask")
            if mask is not None:
                found = [None if masked else value for value, masked in zip(found, mask.tolist(), strict=True)]
            assert found == expected, name


def test_a_categorical_index_is_packed(tmp_path: Path) -> None:
    wanted = write(tmp_path / "a.zarr", object, 3)
    obs: Any = zarr.open_group(tmp_path / "a.zarr", mode="r+", use_consolidated=False)["obs"]
    names = np.array([f"cell-{n}" for n in NUMBERS])
    del obs["_index"]
    put_column(obs, "_index", "categorical", codes=NUMBERS[::-1].astype("i1"), categories=names[::-1].copy())
    (tmp_path / "a.zarr" / "zarr.json").write_text(
        json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"encoding-type": "anndata"}})
    )
    pack(tmp_path / "a.zarr", tmp_path / "packed.zarr", shuffle=1)
    packed = zarrfeed.open(tmp_path / "packed.zarr", variables=["X", "obs/_index", "obs/number"])
    batch = ZarrDataset(packed)[list(range(N))]
    found = [packed.categories["obs/_index"][code] for code in batch["obs/_index"].tolist()]
    assert found == [wanted.obs_names[n] for n in batch["obs/number"].tolist()]


#: Change of the group obs/kind_of_string -> words of the error of `open` and of `pack`.
BROKEN: dict[str, tuple[Any, str]] = {
    "no codes": (lambda kind: kind.__delitem__("codes"), "without the array 'codes'"),
    "no categories": (lambda kind: kind.__delitem__("categories"), "without the array 'categories'"),
    "no values": (lambda kind: kind["categories"].__delitem__("values"), "categories: .*without the array 'values'"),
    "no mask": (lambda kind: kind["categories"].__delitem__("mask"), "categories: .*without the array 'mask'"),
    "a masked category": (
        lambda kind: kind["categories"]["mask"].__setitem__(slice(None), True),
        "category 0 has no value",
    ),
    "categories of no kind": (
        lambda kind: kind["categories"].attrs.update({"encoding-type": "awkward-array"}),
        "without the array 'categories'",
    ),
    "a number as encoding": (
        lambda kind: kind["categories"].attrs.update({"encoding-type": 3}),
        "without the array 'categories'",
    ),
    "a short mask": (
        lambda kind: kind["categories"].create_array("mask", data=np.zeros(2, bool), overwrite=True),
        "must have as many in each",
    ),
    "codes with two axes": (
        lambda kind: kind.create_array("codes", data=np.zeros((N, 2), "i1"), overwrite=True),
        "codes: has the shape",
    ),
    "codes of floats": (
        lambda kind: kind.create_array("codes", data=np.zeros(N), overwrite=True),
        "codes: has the dtype float64",
    ),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "a.zarr"
    write(path, object, 3)
    return path


@pytest.mark.parametrize("what", BROKEN)
def test_a_column_without_its_arrays_is_refused_in_the_same_words(what: str, written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "a.zarr")
    root: Any = zarr.open_group(tmp_path / "a.zarr", mode="r+", use_consolidated=False)
    damage, words = BROKEN[what]
    damage(root["obs"]["kind_of_string"])
    document = json.loads((tmp_path / "a.zarr" / "zarr.json").read_bytes())
    del document["consolidated_metadata"]
    (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=f"obs/kind_of_string.*{words}"):
        zarrfeed.open(tmp_path / "a.zarr", variables=["X", "obs/kind_of_string"])
    with pytest.raises(ConfigError, match=f"obs/kind_of_string.*{words}"):
        pack(tmp_path / "a.zarr", tmp_path / "packed.zarr")


def test_what_is_no_column_is_none(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path)
    matrix = root.create_group("X", attributes={"encoding-type": "csr_matrix"})
    assert column_at(matrix, "X") is None
    assert column_at(root, "root") is None
    assert encoding_in(root) == ""
    array = root.create_array("a", data=NUMBERS)
    assert encoding_in(array) == "array"
    assert column_at(array, "a").fields == {"": array}  # type: ignore[union-attr]
