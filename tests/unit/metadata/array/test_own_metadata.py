"""Consolidated metadata that are older than an array: who says so, and what is no difference."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import zarrfeed
from tests.support.counting_server import CountingServer
from zarrfeed import StaleMetadataWarning, ZarrIterableDataset
from zarrfeed.metadata.stores.array_watch import ArrayWatch
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.tools import cli

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata is currently not part:zarr.errors.ZarrUserWarning"
)


def _group(store: Any, zarr_format: Any, names: str = "x") -> zarr.Group:
    group = zarr.create_group(store, zarr_format=zarr_format, overwrite=True)
    for name in names:
        attributes: Any = {"units": "K"}
        group.create_array(name, data=np.arange(20, dtype="f4"), chunks=(5,), attributes=attributes)
    zarr.consolidate_metadata(store)
    return group


def _look(data: zarrfeed.Data) -> list[str]:
    fields = data.resolved.planned(room=0)[0].fields
    return ArrayWatch(Faults()).look(fields, 0, lambda: False, SharedAccess())


def _append(path: Path) -> None:
    zarr.open_array(path, mode="r+").append(np.arange(20, 30, dtype="f4"))


def _read(data: zarrfeed.Data) -> list[float]:
    with ZarrIterableDataset(data, batch_size=10) as dataset:
        return [value for batch in dataset for value in (batch["x"] if isinstance(batch, dict) else batch).tolist()]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_samples_that_consolidated_metadata_do_not_know_are_left_out_without_a_word(
    tmp_path: Path, zarr_format: int
) -> None:
    path = tmp_path / "g.zarr"
    _group(path, zarr_format)
    fresh: tuple[Any, ...] = (path, zarr.open_group(path, mode="r"), {"x": path / "x"})
    for source in fresh:
        assert _read(zarrfeed.open(source)) == list(range(20)), "a warning here is an error"
    opened_before = zarr.open_array(path / "x", mode="r")
    _append(path / "x")
    consolidated = zarr.open_group(path, mode="r")
    xarray_like = {"x": consolidated["x"]}
    stale: tuple[Any, ...] = (path, consolidated, consolidated["x"], opened_before, xarray_like)
    for source in stale:
        with pytest.warns(StaleMetadataWarning, match=r"/x: stale metadata: .*consolidated.*\(20,\), and \(30,\)"):
            data = zarrfeed.open(source)
        for _ in range(2):
            assert _read(data) == list(range(20))  # the same difference is no change
    _append(path / "x")
    with pytest.raises(zarrfeed.StoreReadError, match=r"shape is \(40,\), was \(30,\)"):
        _read(data)
    assert len(zarrfeed.open(path / "x")) == 40
    assert len(zarrfeed.open(path, refresh="epoch", complete="shape")) == 40  # which looks at the array itself


def test_a_difference_in_what_decides_how_an_array_is_read_is_not_seen(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        path = tmp_path / f"v{zarr_format}.zarr"
        for change, text in (
            ({"dtype": "i4"}, "dtype"),
            ({"chunks": (10,)}, "chunk"),
            ({"fill_value": 3}, "fill value"),
            ({"compressors": None}, "codecs|compressor"),
            ({"attributes": {"units": "K", "scale_factor": 0.5}}, "attribute scale_factor None, and 0.5"),
        ):
            _group(path, zarr_format)
            options: dict[str, Any] = {"dtype": "f4", "chunks": (5,), "attributes": {"units": "K"}} | change
            array = zarr.create_array(path / "x", shape=(20,), overwrite=True, zarr_format=zarr_format, **options)
            array[:] = 1
            with pytest.warns(StaleMetadataWarning, match=text):
                zarrfeed.open(path)


def test_a_document_that_says_the_same_in_other_words_is_a_difference(tmp_path: Path) -> None:
    zarr.create_group(tmp_path).create_array("x", data=np.arange(4.0), chunks=(2,), fill_value=np.nan)
    zarr.consolidate_metadata(tmp_path)
    own = tmp_path / "x" / "zarr.json"
    written = json.loads(own.read_text())
    changes: tuple[dict[str, Any], ...] = (
        {"dimension_names": [None]},
        {"fill_value": "0x7ff8000000000000"},
        {"chunk_key_encoding": {"name": "default"}},
        {"storage_transformers": []},
        {"attributes": {"history": "somebody looked"}},
    )
    for change in changes:
        own.write_text(json.dumps(dict(reversed((written | change).items()))))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            zarrfeed.open(tmp_path)
        assert zarrfeed.verify(tmp_path).ok, change


def test_an_own_document_that_is_absent_or_forbidden_is_a_difference(tmp_path: Path) -> None:
    for zarr_format, name in ((2, ".zarray"), (3, "zarr.json")):
        path = tmp_path / f"v{zarr_format}.zarr"
        _group(path, zarr_format)
        (path / "x" / name).unlink()
        (path / "x" / ("2" if zarr_format == 2 else "c/2")).unlink()
        data = zarrfeed.open(path)  # a warning is an error
        assert _read(data) == [*range(10), *[0] * 5, *range(15, 20)], zarr_format

    class Forbidding(LocalStore):
        async def get(self, key: str, *args: Any, **options: Any) -> Any:
            if key.endswith("x/zarr.json"):
                raise PermissionError(13, "not yours")
            return await super().get(key, *args, **options)

        async def exists(self, key: str) -> bool:
            if key.endswith("x/zarr.json"):
                raise PermissionError(13, "not yours")
            return await super().exists(key)

    _group(tmp_path / "f.zarr", 3)
    assert _read(zarrfeed.open(Forbidding(tmp_path / "f.zarr", read_only=True))) == list(range(20))


def test_each_array_costs_more_than_one_request(tmp_path: Path) -> None:
    _group(tmp_path / "g.zarr", 3, "xyz")
    with CountingServer(tmp_path) as server:
        for names in (["x"], ["x", "y"]):
            server.chunk_gets()
            zarrfeed.open(f"{server.url}/g.zarr", variables=names)
            own = {path: n for path, n in server.gets.items() if path.count("/") == 3}
            assert own == {f"/g.zarr/{name}/zarr.json": 1 for name in names}, own


def test_many_stores_hide_the_stale_one(tmp_path: Path) -> None:
    for zarr_format in (2, 3):
        folder = tmp_path / str(zarr_format)
        for number in range(4):
            _group(folder / f"{number}.zarr", zarr_format)
        _append(folder / "2.zarr" / "x")
        with pytest.warns(StaleMetadataWarning, match=r"2\.zarr/x"):
            data = zarrfeed.open(str(folder / "*.zarr"))
        assert len(data) == 80
        for _ in range(2):
            assert _read(data) == [*range(20)] * 4
        array = zarr.create_array(
            folder / "0.zarr" / "x", data=np.arange(20), chunks=(5,), overwrite=True, zarr_format=zarr_format
        )
        assert array.shape == (20,)  # the first one is stale, and no example for the others
        with pytest.warns(StaleMetadataWarning, match=r"0\.zarr/x: .*dtype"):
            stale_first = zarrfeed.open([folder / f"{number}.zarr" for number in (0, 1, 3)])
        assert _look(stale_first) == []
        document = folder / "3.zarr" / "x" / ("zarr.json" if zarr_format == 3 else ".zarray")
        document.unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            zarrfeed.open([folder / f"{number}.zarr" for number in (1, 3)])


def test_a_sparse_matrix_of_a_consolidated_store_is_taken_for_another_one(tmp_path: Path) -> None:
    path = tmp_path / "m.zarr"
    group = zarr.create_group(path)
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 3]})
    for name, values in {"data": [7.0, 8.0], "indices": [2, 0], "indptr": [0, 1, 2]}.items():
        group.create_array(name, data=np.array(values), chunks=(1,))
    zarr.consolidate_metadata(path)
    data = zarrfeed.open(path)
    assert _look(data) == []
    document = json.loads((path / "data" / "zarr.json").read_text())
    (path / "data" / "zarr.json").write_text(json.dumps(document | {"shape": [3]}))
    with pytest.warns(StaleMetadataWarning, match="m.zarr/data"):
        zarrfeed.open(path)


def test_a_store_in_memory_is_not_compared() -> None:
    store = MemoryStore()
    group = _group(store, 3)
    consolidated = zarr.open_group(store, mode="r")
    group["x"].resize((30,))  # type: ignore[union-attr]
    with pytest.warns(StaleMetadataWarning, match=r"\(20,\), and \(30,\)"):
        zarrfeed.open(consolidated)


def test_a_proof_is_given_of_what_old_consolidated_metadata_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for zarr_format in (2, 3):
        path = tmp_path / f"v{zarr_format}.zarr"
        _group(path, zarr_format, "xy")
        out = tmp_path / f"{zarr_format}.packed"
        assert zarrfeed.verify(path).ok
        assert cli.main(["verify", str(path)]) == 0
        _append(path / "x")
        for source in (path, zarr.open_group(path, mode="r"), zarr.open_group(path, mode="r")["x"]):
            report = zarrfeed.verify(source)
            assert report.problems == ("1 array with stale consolidated metadata",)
            assert r"differ: shape (20,), and (30,)" in str(report)
            assert [bool(one.stale) for one in report.arrays] == [True, False][: len(report.arrays)]
        capsys.readouterr()
        assert cli.main(["verify", str(path)]) == cli.EXIT_FAILED
        assert "consolidated metadata" in capsys.readouterr().out
        assert cli.main(["info", str(path)]) == 0
        assert "x: stale metadata: the consolidated metadata" in capsys.readouterr().out
        with (
            pytest.warns(StaleMetadataWarning),
            pytest.raises(zarrfeed.StoreReadError, match=r"verify = True: .*stale"),
        ):
            zarrfeed.pack(path, out, verify=True)
        assert not list(tmp_path.glob(f"*{out.name}*")), "nothing is left of a refused run"
        with pytest.warns(StaleMetadataWarning):
            assert zarrfeed.pack(path, out).complete
        assert len(zarrfeed.open(out)) == 20


def test_a_constant_of_a_packed_store_is_proved_by_old_metadata(tmp_path: Path) -> None:
    path = tmp_path / "g.zarr"
    group = zarr.create_group(path)
    group.create_array("x", data=np.zeros((6, 2)), dimension_names=("time", "lat"), chunks=(2, 2))
    group.create_array("lat", data=np.arange(2.0), dimension_names=("lat",))
    zarr.consolidate_metadata(path)
    assert zarrfeed.pack(path, tmp_path / "good", verify=True).proof
    zarr.create_array(path / "lat", data=np.arange(2), dimension_names=("lat",), overwrite=True)
    with pytest.raises(zarrfeed.StoreReadError, match=r"lat: stale metadata: .*dtype"):
        zarrfeed.pack(path, tmp_path / "out", verify=True)


def test_a_group_that_was_consolidated_by_itself_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "root.zarr"
    zarr.create_group(path)
    _group(path / "inside", 3)
    _append(path / "inside" / "x")
    assert zarrfeed.verify(path).problems == ("1 array with stale consolidated metadata",)
    assert zarrfeed.verify(path, ["inside/x"]).ok, "which was opened by its own document"


def test_attributes_that_nobody_compared_are_taken_for_a_change() -> None:
    store = MemoryStore()
    group = _group(store, 2)
    consolidated = zarr.open_group(store, mode="r")
    group["x"].attrs["units"] = "degC"
    data = zarrfeed.open(consolidated)  # of Zarr v2 only the document that describes the array is asked for
    assert _look(data) == []
