"""Groups whose arrays are not fields of one sample: what is said of them, and that the paths it names work.

The attributes are those that ome-zarr 0.12 and anndata 0.12 write, in both formats of Zarr.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.flat import iterable_dataset, map_dataset
from tests.support.oracle import ZARR_FORMATS, ZarrFormat
from zarrfeed import ConfigError, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.tools import cli

N = 12


def put_image(group: zarr.Group, *, axes: str = "tyx") -> None:
    """Write an image of OME-Zarr: version 0.4 in Zarr v2, 0.5 in v3."""
    paths = ["s0", "s1", "s2"]
    for level, path in enumerate(paths):
        size = 16 >> level
        group.create_array(path, data=np.full((N, size, size), level, "u2"), chunks=(3, size, size))
    kinds = {"t": "time", "c": "channel"}
    image = {
        "axes": [{"name": name, "type": kinds.get(name, "space")} for name in axes],
        "datasets": [
            {"path": path, "coordinateTransformations": [{"type": "scale", "scale": [1.0] * len(axes)}]}
            for path in paths
        ],
        "name": "image",
    }
    put_ome(group, {"multiscales": [image]})


def put_ome(group: zarr.Group, attributes: dict[str, Any]) -> None:
    if group.metadata.zarr_format == 3:
        group.attrs["ome"] = {"version": "0.5", **attributes}
    else:
        group.attrs.update(attributes)


def put_anndata(group: zarr.Group, *, sparse: bool) -> None:
    """Write what AnnData writes, as far as it matters: matrices, a table, and empty folders."""
    group.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    if sparse:
        put_sparse(group.create_group("X"), "csr_matrix")
    else:
        put_dense(group, "X")
    layers = put_folder(group, "layers")
    put_dense(layers, "counts")
    put_sparse(layers.create_group("spliced"), "csc_matrix")
    put_dense(put_folder(group, "obsm"), "X_pca")
    for name in ("obsp", "uns", "varm", "varp"):
        put_folder(group, name)
    raw = group.create_array("raw", shape=(), dtype="bool")
    raw.attrs.update({"encoding-type": "null", "encoding-version": "0.1.0"})
    obs = group.create_group("obs")
    obs.attrs.update({"encoding-type": "dataframe", "_index": "_index", "column-order": ["n", "cell"]})
    put_dense(obs, "n")
    cell = obs.create_group("cell")
    cell.attrs.update({"encoding-type": "categorical", "ordered": False})
    cell.create_array("codes", data=np.arange(N, dtype="i1") % 2)
    cell.create_array("categories", data=np.array([5, 7]))
    index = obs.create_group("_index")
    index.attrs.update({"encoding-type": "nullable-string-array"})
    index.create_array("values", data=np.arange(N))
    index.create_array("mask", data=np.zeros(N, bool))


def put_folder(group: zarr.Group, name: str) -> zarr.Group:
    folder = group.create_group(name)
    folder.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
    return folder


def put_dense(group: zarr.Group, name: str) -> None:
    array = group.create_array(name, data=np.arange(N * 3.0).reshape(N, 3))
    array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


def put_sparse(group: zarr.Group, kind: str) -> None:
    group.attrs.update({"encoding-type": kind, "encoding-version": "0.1.0", "shape": [N, 3]})
    # as many values as rows: nothing but the attributes tells that these are no fields
    group.create_array("data", data=np.arange(N))
    group.create_array("indices", data=np.arange(N) % 3)
    group.create_array("indptr", data=np.arange(N + 1))


def put_episodes(group: zarr.Group) -> None:
    data, meta = group.create_group("data"), group.create_group("meta")
    data.create_array("action", data=np.arange(N * 2).reshape(N, 2))
    data.create_array("state", data=np.arange(N * 5).reshape(N, 5))
    meta.create_array("episode_ends", data=np.array([5, N]))


def refusal_of(source: Any, **options: Any) -> zarrfeed.ZarrfeedError:
    """Return the error, which both datasets raise in the same words."""
    with pytest.raises(zarrfeed.ZarrfeedError) as error:
        iterable_dataset(source, batch_size=2, **options)
    with pytest.raises(type(error.value)) as other:
        map_dataset(source, **options)
    assert str(other.value) == str(error.value)
    assert "\n" not in str(error.value)
    return error.value


def paths_in(error: Exception) -> list[str]:
    """Return the paths that a message says to give: all in quotes."""
    return re.findall(r"'(/[^']*)'", str(error))


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_an_ome_zarr_image_is_its_first_level(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    """All levels have as many time steps, so that they look like fields of a sample."""
    put_image(zarr.create_group(tmp_path / "i.zarr", zarr_format=zarr_format))
    data = zarrfeed.open(tmp_path / "i.zarr", np.arange(N))
    assert [one.shape for one in data.fields] == [(16, 16), ()]
    assert len(data.isel(t=slice(2, 5))) == 3
    assert not ZarrDataset(data)[4][0].numpy().any()
    both = zarrfeed.open(np.zeros((N, 2)), targets=tmp_path / "i.zarr")
    assert [one.shape for one in both.fields] == [(2,), (16, 16)]


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_an_ome_zarr_image_among_named_arrays_names_its_resolutions(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    put_image(zarr.create_group(tmp_path / "i.zarr", zarr_format=zarr_format))
    error = refusal_of({"a": tmp_path / "i.zarr"})
    assert type(error) is ConfigError
    assert f"{tmp_path}/i.zarr: is an OME-Zarr image, whose arrays are one image at several resolutions" in str(error)
    assert "give one of multiscales[0].datasets" in str(error)
    assert "sample_axis says which of its axes (t, y, x) has the samples" in str(error)
    assert paths_in(error) == [f"{tmp_path}/i.zarr/s{level}" for level in range(3)]
    for path in paths_in(error):
        assert len(ZarrDataset(path)) == N
    assert "samples['a']: " in str(error)


def test_named_arrays_of_a_known_group_are_read(tmp_path: Path) -> None:
    """Who names arrays knows what they are."""
    put_image(zarr.create_group(tmp_path / "i.zarr"))
    assert ZarrDataset(zarrfeed.open(tmp_path / "i.zarr", variables=["s1"]))[4]["s1"].shape == (8, 8)


def put_plate(path: Path, zarr_format: ZarrFormat) -> list[str]:
    """Write a plate of three wells with two images each, in another order than that of names; return their paths."""
    root = zarr.create_group(path, zarr_format=zarr_format)
    wells = ["B/1", "A/1", "A/2"]
    put_ome(root, {"plate": {"wells": [{"path": well} for well in wells]}})
    for well in wells:
        group = root.create_group(well)
        put_ome(group, {"well": {"images": [{"path": "0"}, {"path": "1"}]}})
        for image in ("0", "1"):
            put_image(group.create_group(image))
    return [f"{path}/{well}/{image}" for well in wells for image in ("0", "1")]


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_plates_wells_and_collections_are_their_images_as_many_stores(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    path = tmp_path / "p.zarr"
    images = put_plate(path, zarr_format)
    data = zarrfeed.open(path)
    assert [str(one) for one in data.stores] == images
    assert repr(data) == f"zarrfeed.open({str(path)!r})"
    assert ZarrDataset(data)[[0, N + 1]].shape == (2, 16, 16)
    assert zarrfeed.open(path, multiscale=["s1"]).fields[0].shape == (8, 8)
    assert len(data.patch({"y": 8, "x": 8})) > 6 * N
    assert [str(one) for one in zarrfeed.open(path / "A" / "2").stores] == images[4:]
    assert [str(one) for one in zarrfeed.open(f"{path}/*/*/*").stores] == sorted(images), "zarr.json is no image"
    group = zarrfeed.open(zarr.open_group(path, mode="r"))
    assert len(group) == 6 * N
    collection = zarr.create_group(tmp_path / "c.zarr", zarr_format=zarr_format)
    put_ome(collection, {"bioformats2raw.layout": 3})
    for image in ("0", "10", "2"):
        put_image(collection.create_group(image))
    collection.create_group("OME")
    stores = zarrfeed.open(tmp_path / "c.zarr").stores
    assert [str(one)[-4:] for one in stores] == ["rr/0", "rr/2", "r/10"]


def test_a_plate_is_refused_where_one_array_is_read(tmp_path: Path) -> None:
    images = put_plate(tmp_path / "p.zarr", 3)
    for source, options in (
        ({"a": tmp_path / "p.zarr"}, {}),
        (tmp_path / "p.zarr", {"targets": np.arange(N)}),
        ([tmp_path / "p.zarr"], {}),
        (tmp_path / "p.zarr", {"refresh": "epoch"}),
    ):
        with pytest.raises(ConfigError, match="is an OME-Zarr plate") as error:
            zarrfeed.open(source, **options)
        assert paths_in(error.value)[0].startswith(f"{tmp_path}/p.zarr/")
        assert len(ZarrDataset(paths_in(error.value)[0])) == N
    zarr.open_group(images[2], mode="w")
    shutil.rmtree(tmp_path / "p.zarr" / "A" / "1")
    with pytest.raises(ConfigError, match="names the well A/1, which is not there"):
        zarrfeed.open(tmp_path / "p.zarr")


def test_groups_of_labels_and_spatial_data_name_what_can_be_opened(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "s.zarr")
    root.attrs["spatialdata_attrs"] = {"version": "0.2"}
    for kind, name in (("images", "tissue"), ("labels", "cells")):
        folder = root.create_group(kind)
        put_image(folder.create_group(name))
    put_ome(root["labels"], {"labels": ["cells"]})  # type: ignore[arg-type]
    root.create_group("points")
    error = refusal_of(tmp_path / "s.zarr")
    assert "is SpatialData, whose elements are not fields of one sample" in str(error)
    assert paths_in(error) == [f"{tmp_path}/s.zarr/{name}" for name in ("images/tissue", "labels/cells")]
    assert len(zarrfeed.open(*paths_in(error))) == N, "labels are the targets of the image"
    error = refusal_of(tmp_path / "s.zarr" / "labels")
    assert "is an OME-Zarr group of label images; give one array" in str(error)
    assert paths_in(error) == [f"{tmp_path}/s.zarr/labels/cells/s0"]


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
@pytest.mark.parametrize("sparse", [False, True])
def test_anndata_names_its_matrices(zarr_format: ZarrFormat, sparse: bool, tmp_path: Path) -> None:
    put_anndata(zarr.create_group(tmp_path / "a.zarr", zarr_format=zarr_format), sparse=sparse)
    error = refusal_of(tmp_path / "a.zarr")
    assert type(error) is ConfigError
    assert f"{tmp_path}/a.zarr: is AnnData (encoding-type)" in str(error)
    named = ["X", "layers/counts", "obsm/X_pca"]
    assert paths_in(error) == [f"{tmp_path}/a.zarr/{name}" for name in named]
    assert "or name elements: variables=['X', 'obs/cell_type']" in str(error)
    assert str(error).endswith("; matrices stored by column (csc_matrix) are not read: layers/spliced")
    for path in paths_in(error)[sparse:]:
        assert ZarrDataset(path)[2].tolist() == [6.0, 7.0, 8.0]
    if sparse:
        assert ZarrDataset(paths_in(error)[0])[2].to_dense().tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_elements_of_anndata_say_what_they_are(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    put_anndata(zarr.create_group(tmp_path / "a.zarr", zarr_format=zarr_format), sparse=True)
    error = refusal_of(tmp_path / "a.zarr" / "layers" / "spliced")
    assert type(error) is UnsupportedError
    assert "is a csc_matrix of AnnData (encoding-type), a sparse matrix that is stored column by column" in str(error)
    assert "convert it to csr_matrix" in str(error)
    for path, kind, names in (
        ("obs", "dataframe", ["n", "cell/codes"]),
        ("obs/cell", "categorical", ["codes"]),
        ("obs/_index", "nullable-string-array", ["values"]),
    ):
        error = refusal_of(tmp_path / "a.zarr" / path)
        assert type(error) is ConfigError
        assert f"is a {kind} of AnnData" in str(error)
        assert paths_in(error) == [f"{tmp_path}/a.zarr/{path}/{name}" for name in names]
        for named in paths_in(error):
            assert len(ZarrDataset(named)) == N
    assert ZarrDataset(zarrfeed.open(tmp_path / "a.zarr" / "obs", variables=["n"]))[0]["n"].tolist() == [0.0, 1.0, 2.0]
    assert list(ZarrDataset(tmp_path / "a.zarr" / "obsm")[0]) == ["X_pca"], "a folder of dense matrices is a group"


@pytest.mark.parametrize("zarr_format", ZARR_FORMATS)
def test_a_replay_buffer_opens_with_one_call(zarr_format: ZarrFormat, tmp_path: Path) -> None:
    put_episodes(zarr.create_group(tmp_path / "e.zarr", zarr_format=zarr_format))
    data = zarrfeed.open(tmp_path / "e.zarr")
    assert [field.name for field in data.fields] == ["action", "state"]
    windows = ZarrDataset(data.window((0, 1)))
    assert windows[4]["action"].tolist() == [[10, 11], [12, 13]], "the window of row 4 would leave its episode"


def test_a_zip_and_a_store_without_a_path_name_what_can_be_written(tmp_path: Path) -> None:
    put_image(zarr.create_group(tmp_path / "i"))
    with zipfile.ZipFile(tmp_path / "i.zarr.zip", "w") as file:
        for path in sorted((tmp_path / "i").rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(tmp_path / "i"))
    message = str(refusal_of({"a": str(tmp_path / "i.zarr.zip")}))
    expression = re.findall(r"(zarr\.open_group.*?\])(?:,|;| )", message)
    assert len(ZarrDataset(eval(expression[0], {"zarr": zarr}))) == N
    group = zarr.create_group(MemoryStore())
    put_image(group)
    assert "group['s0']" in str(refusal_of({"a": group}))


def test_the_command_line_says_the_same_and_verify_reads_all_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_image(zarr.create_group(tmp_path / "i.zarr"))
    put_anndata(zarr.create_group(tmp_path / "a.zarr"), sparse=True)
    for command in ("explain", "bench"):
        assert cli.main([command, str(tmp_path / "a.zarr")]) == cli.EXIT_ERROR
        assert capsys.readouterr().err == f"zarrfeed: {refusal_of(tmp_path / 'a.zarr')}\n"
    for name, arrays in (("i.zarr", 3), ("a.zarr", 14)):
        report = zarrfeed.verify(tmp_path / name, progress_file=None)
        assert report.ok
        assert len(report.arrays) == arrays


#: Metadata is anybody's: nothing of it need have the form that its specification says.
ODD: list[Any] = [None, 3, [], {}, "s0", [None], [{}], [{"datasets": None}], [{"datasets": [{"path": 3}, None]}]]


@pytest.mark.parametrize(
    "attributes",
    [{key: value} for key in ("multiscales", "ome", "encoding-type") for value in ODD]
    + [{"ome": {"multiscales": 3}}, {"encoding-type": "dict"}, {"encoding-type": "other"}]
    + [{"labels": ["cat", "dog"]}, {"plate": {"wells": [{"path": "a"}]}, "well": "A1"}],
)
def test_attributes_of_other_forms_are_no_reason_to_fail(attributes: dict[str, Any], tmp_path: Path) -> None:
    """Only a group whose kind is sure is refused: `multiscales` without paths, or `labels`, may be anybody's."""
    group = zarr.create_group(tmp_path / "g")
    group.create_array("x", data=np.arange(N))
    group.attrs.update(attributes)
    assert int(ZarrDataset(tmp_path / "g")[3]["x"]) == 3


@pytest.mark.parametrize("key", ["plate", "well"])
@pytest.mark.parametrize("value", [None, 3, [], {}, {"wells": 3, "images": [3]}, {"wells": [{"path": "no/such"}]}])
def test_plates_whose_images_are_not_found_are_refused_without_an_example(key: str, value: Any, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_group("x")
    group.attrs[key] = value
    assert str(refusal_of(tmp_path / "g")).endswith("give one array: a resolution of one image")


@pytest.mark.parametrize("path", ["../p", "/etc", "a/../..", "", "x" * 10**6, "a//b"])
def test_paths_in_attributes_do_not_lead_out_of_the_group(path: str, tmp_path: Path) -> None:
    put_image(zarr.create_group(tmp_path / "p"))
    group = zarr.create_group(tmp_path / "g")
    group.create_group("a")
    group.attrs["plate"] = {"wells": [{"path": path}]}
    message = str(refusal_of(tmp_path / "g"))
    assert message.endswith("give one array: a resolution of one image")
    group.create_array("x", data=np.arange(N))
    group.attrs["multiscales"] = [{"datasets": [{"path": path}]}]
    assert int(ZarrDataset(tmp_path / "g")[3]["x"]) == 3


def test_metadata_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_group("meta")
    (tmp_path / "g" / "data").mkdir()
    os.mkfifo(tmp_path / "g" / "data" / "zarr.json")
    group.attrs["plate"] = {"wells": [{"path": "data"}]}
    with pytest.raises(ConfigError, match="is not a regular file, metadata must be one"):
        ZarrIterableDataset(tmp_path / "g")
    group.attrs["encoding-type"] = "anndata"
    (tmp_path / "g" / "data").rename(tmp_path / "g" / "X")
    assert "it has no matrix to give" in str(refusal_of(tmp_path / "g"))


def test_a_plate_that_leads_to_itself_ends(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.attrs["plate"] = {"wells": [{"path": "a"}]}
    inner = group
    for _ in range(8):
        inner = inner.create_group("a")
        inner.attrs["plate"] = {"wells": [{"path": "a"}]}
    assert str(refusal_of(tmp_path / "g")).endswith("give one array: a resolution of one image")


def test_episodes_in_a_group_of_a_file_are_told_by_their_pattern(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "demo.zarr")
    for episode in range(3):
        root.create_array(f"data/demo_{episode}/actions", data=np.full((4 + episode, 2), episode))
    root.create_array("mask/train", data=np.arange(2))
    with pytest.raises(ConfigError, match=r"the pattern '\S*demo\.zarr/data/\*' opens the groups in data") as raised:
        zarrfeed.open(tmp_path / "demo.zarr", variables=["actions"])
    found = re.search(r"the pattern '(\S*)'", str(raised.value))
    assert found
    assert len(zarrfeed.open(found[1], variables=["actions"])) == 4 + 5 + 6
    root.create_array("data/other/x", data=np.arange(2))
    with pytest.raises(ConfigError, match="is a group without arrays") as raised:
        zarrfeed.open(tmp_path / "demo.zarr")
    assert "pattern" not in str(raised.value)
