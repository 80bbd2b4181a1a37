"""AnnData packed as AnnData: the anndata library reads both sides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

import zarrfeed
from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.packing.pack import pack
from zarrfeed.packing.sources.cells.csr_rows import convert_items, from_items, to_items
from zarrfeed.packing.work.work_folder import WorkFolder
from zarrfeed.plan.order.random_bijection import RandomBijection

pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'future.infer_string'"),  # anndata 0.12.6 does not write pandas 3's texts
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::anndata.ImplicitModificationWarning"),
    pytest.mark.filterwarnings("ignore:Writing zarr v2"),
]
GENES = 30
SMALL: dict[str, Any] = {"sample_chunk": 4, "shard": 2048, "jobs": 2}


def make_cells(path: Path, first: int, count: int, kinds: str = "ab", wide: bool = False, **changed: Any) -> Path:
    """Write cells whose values are their numbers, from `first` on; each fifth cell has no stored value."""
    numbers = np.arange(first, first + count)
    lengths = np.where(numbers % 5 == 0, 0, 1 + numbers % 7)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    columns = np.concatenate(
        [[], *(np.sort((n + 3 * np.arange(k)) % GENES) for n, k in zip(numbers, lengths, strict=True))]
    )
    values = np.repeat(numbers, lengths) + 0.25
    index = "i8" if wide else "i4"
    x = scipy.sparse.csr_matrix((count, GENES), dtype="f4")
    x.data, x.indices, x.indptr = values.astype("f4"), columns.astype(index), indptr.astype(index)
    with pd.option_context("future.infer_string", False):
        obs = pd.DataFrame(
            {
                "number": numbers,
                "kind": pd.Categorical([kinds[n % len(kinds)] for n in numbers], categories=list(kinds)),
                "text": [f"t{n}" for n in numbers],
                "score": pd.array([None if n % 3 == 0 else n for n in numbers.tolist()], dtype="Int64"),
            },
            index=[f"cell-{n}" for n in numbers],
        )
        var = pd.DataFrame({"length": np.arange(GENES)}, index=[f"g{n}" for n in range(GENES)])
        cells = anndata.AnnData(
            x,
            obs=obs,
            var=var,
            uns={"title": "numbered"},
            obsm={"X_pca": numbers[:, None] + np.zeros(3)},
            layers={"twice": x * 2},
        )
        for name, value in changed.items():
            setattr(cells, name, value)
        getattr(cells, f"write_{path.suffix[1:]}")(path, convert_strings_to_categoricals=False)
    return path


def read(path: Path | str) -> Any:
    return (anndata.read_h5ad if str(path).endswith(".h5ad") else anndata.read_zarr)(path)


def check(out: Path | str, sources: list[Path], numbers: Any) -> None:
    """Compare a packed store with its sources, as anndata reads both; `numbers` are those of its cells."""
    got, wholes = read(out), [read(path) for path in sources]
    x = scipy.sparse.vstack([one.X for one in wholes], format="csr")[numbers]
    assert isinstance(got.X, scipy.sparse.csr_matrix)
    for mine, theirs in ((got.X, x), (got.layers["twice"], x * 2)):
        assert mine.dtype == theirs.dtype
        for name in ("data", "indices", "indptr"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
    assert np.array_equal(got.obsm["X_pca"], np.concatenate([one.obsm["X_pca"] for one in wholes])[numbers])
    for name in ("number", "kind", "text", "score"):
        expected = np.concatenate([one.obs[name].astype(object).to_numpy() for one in wholes])[numbers]
        assert got.obs[name].astype(object).fillna("-").tolist() == pd.Series(expected).fillna("-").tolist(), name
    assert list(got.obs.index) == [f"cell-{n}" for n in got.obs["number"]]
    assert list(got.var.index) == list(wholes[0].var.index)
    assert list(got.var["length"]) == list(range(GENES))
    assert got.uns["title"] == "numbered"


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("plates")
    nothing = scipy.sparse.csr_matrix((1, GENES), dtype="f4")
    return [
        make_cells(folder / "a.h5ad", 0, 90, "ab"),
        make_cells(folder / "empty.h5ad", 90, 1, "c", X=nothing, layers={"twice": nothing}),
        make_cells(folder / "b.zarr", 91, 60, "bdc", wide=True),
    ]


def test_files_are_packed_in_their_order_in_a_random_one_and_in_groups(plates: list[Path], tmp_path: Path) -> None:
    paths = [str(path) for path in plates]
    report = pack(paths, tmp_path / "plain.zarr", verify=True, **SMALL)
    assert report.proof is not None
    assert report.proof.ok
    assert any("first file" in note for note in report.notes)
    check(tmp_path / "plain.zarr", plates, np.arange(151))
    assert list(read(tmp_path / "plain.zarr").obs["kind"].cat.categories) == ["a", "b", "c", "d"]

    report = pack(paths, tmp_path / "out.zarr", shuffle=7, split=(0.8, 0.2), verify=True, **SMALL)
    assert report.ok
    numbers, cut = RandomBijection(151, 7).numbers(np.arange(151)), round(151 * 0.8)
    check(tmp_path / "out.zarr/train", plates, numbers[:cut])
    check(tmp_path / "out.zarr/val", plates, numbers[cut:])
    assert len(list((tmp_path / "out.zarr/train/X/data/c").iterdir())) > 1

    data = zarrfeed.open(tmp_path / "out.zarr/train", variables=["X", "obs/kind", "obs/number"]).dense("X")
    oracle = read(tmp_path / "out.zarr/train").X.toarray()
    index_of = {n: i for i, n in enumerate(numbers[:cut].tolist())}
    seen = []
    for batch in zarrfeed.ZarrIterableDataset(data, batch_size=16, shuffle=True, seed=1, drop_last=False):
        for row, number in zip(batch["X"].numpy(), batch["obs/number"].tolist(), strict=True):
            assert np.array_equal(row, oracle[index_of[number]])
            seen.append(number)
    assert sorted(seen) == sorted(index_of)


def test_a_changed_value_is_found(plates: list[Path], tmp_path: Path) -> None:
    pack(plates, tmp_path / "out.zarr", shuffle=3, **SMALL)
    for path in ("X/data", "layers/twice/indices", "X/indptr"):
        array: Any = zarr.open_array(tmp_path / "out.zarr" / path)
        kept = array[:]
        changed = kept.copy()
        at = int(np.flatnonzero(np.diff(kept))[5]) + 1 if path == "X/indptr" else 7
        changed[at] = changed[at] - 1 if path == "X/indptr" else (changed[at] + 1) % GENES
        array[:] = changed
        report = pack(plates, tmp_path / "out.zarr", shuffle=3, resume=True, verify=True, **SMALL)
        assert report.proof is not None
        assert report.proof.differing == (path.rpartition("/")[0],)
        array[:] = kept


def test_a_run_that_ends_anywhere_goes_on(plates: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run ends at its fourth file, before the record of a unit or in the middle of its files."""
    out, runs, real = tmp_path / "out.zarr", 0, WorkFolder.keep
    while not out.exists():
        runs, left = runs + 1, [3]

        def keep(*arguments: Any, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError("the disk is full")
            real(*arguments)

        monkeypatch.setattr(WorkFolder, "keep", keep)
        try:
            pack(plates, out, shuffle=7, resume=True, variables=["X"], **(SMALL | {"jobs": 1}))
        except OSError:
            assert runs < 50
    assert runs > 2
    expected = scipy.sparse.vstack([read(path).X for path in plates], format="csr")
    got = read(out).X
    assert (got != expected[RandomBijection(151, 7).numbers(np.arange(151))]).nnz == 0


def test_elements_and_dtypes_are_chosen(plates: list[Path], tmp_path: Path) -> None:
    report = pack(
        plates[0], tmp_path / "out.zarr", variables=["X", "obs/kind"], dtype={"X": "float64"}, verify=True, **SMALL
    )
    assert report.ok
    got = read(tmp_path / "out.zarr")
    assert (list(got.obs.columns), list(got.layers), list(got.obsm)) == (["kind"], [], [])
    assert got.X.dtype == np.float64
    assert (got.X != read(plates[0]).X).nnz == 0
    make_cells(tmp_path / "large.h5ad", 70_000, 10)
    with pytest.raises(ConfigError, match="float16 cannot hold a value"):
        pack(tmp_path / "large.h5ad", tmp_path / "no.zarr", variables=["X"], dtype="float16")


def test_what_cannot_be_packed_is_refused(plates: list[Path], tmp_path: Path) -> None:
    names = np.array([f"g{n}" for n in [0, 2, 1, *range(3, GENES)]], object)
    with pd.option_context("future.infer_string", False):
        genes = pd.DataFrame({"length": np.arange(GENES)}, index=names)
    dense = read(plates[0]).X.toarray()
    sparse = scipy.sparse.csc_matrix(dense)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("var", {"var": genes}, "has 'g2' as variable 1, the first file has 'g1'; anndata.concat"),
        ("obs", {"obsm": {"X_umap": np.zeros((90, 2))}}, "obsm/X_pca' is not there, in the first file number float64"),
        ("dense", {"X": dense}, "'X' is number float32 of shape \\(cells, 30\\), in the first file csr float32"),
    ]
    for name, changed, message in cases:
        path = make_cells(tmp_path / f"{name}.h5ad", 0, 90, **changed)
        with pytest.raises(ConfigError, match=message):
            pack([plates[0], path], tmp_path / "out.zarr")
    assert pack(tmp_path / "dense.h5ad", tmp_path / "dense.zarr", shuffle=1, verify=True, **SMALL).ok
    with pytest.raises(UnsupportedError, match=r"csc_matrix, stored column by column.*X\.tocsr\(\)"):
        pack(make_cells(tmp_path / "csc.h5ad", 0, 90, X=sparse), tmp_path / "out.zarr")
    with pytest.raises(ConfigError, match=r"variables: 'obs/none' is not in .*obs/kind"):
        pack(plates[0], tmp_path / "out.zarr", variables=["obs/none"])
    with pytest.raises(ConfigError, match="leave sample_dim and sample_axis out"):
        pack(plates[0], tmp_path / "out.zarr", sample_axis=1)
    lacking = make_cells(tmp_path / "lacking.h5ad", 0, 90)
    with h5py.File(lacking, "r+") as file:
        columns = file["obs"].attrs["column-order"]
        file["obs"].attrs["column-order"] = np.array([*columns, "gone"], object)
    with pytest.raises(ConfigError, match=r"lacking\.h5ad: 'obs' lists the columns 'gone', which are not there"):
        pack(lacking, tmp_path / "out.zarr")
    with h5py.File(tmp_path / "old.h5ad", "w") as file:
        file["obs"] = np.zeros(3, [("index", "i4")])
    with pytest.raises(ConfigError, match=r"read it with anndata\.read_h5ad, and write it anew"):
        pack(tmp_path / "old.h5ad", tmp_path / "out.zarr")
    (tmp_path / "no.h5ad").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="is no HDF5 file"):
        pack(tmp_path / "no.h5ad", tmp_path / "out.zarr")


def test_rows_are_items_and_back() -> None:
    indices, data = np.array([4, 1, 3], "i4"), np.array([0.5, 2, 3], "f8")
    items = to_items(np.array([0, 2, 2, 3]), indices, data)
    elements = from_items(items, 4, 8)
    assert elements.counts.tolist() == [2, 0, 1]
    assert (elements.indices, elements.data) == (indices.tobytes(), data.tobytes())
    half = from_items(convert_items(items, indices.dtype, data.dtype, lambda v: v.astype("f2")), 4, 2)
    assert np.frombuffer(half.data, "f2").tolist() == [0.5, 2, 3]
