"""OME-Zarr images: which levels are opened, what their axes are called, where their voxels lie, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import zarrfeed
from tests.support.pyramids import put_ome, put_pyramid
from zarrfeed import ConfigError, UnsupportedError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.patches.patch_levels import level_of
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.patches.level import Level, LevelRows

FACTORS = [(1, 1, 1), (2, 2, 2), (4, 4, 4)]
CHUNKS = [(8, 8, 8)] * 3


def put(folder: Path, *, zarr_format: Any = 3, **options: Any) -> zarr.Group:
    group = zarr.create_group(folder, zarr_format=zarr_format)
    put_pyramid(group, (20, 24, 28), FACTORS, chunks=CHUNKS, **options)
    return group


def change(group: zarr.Group, mend: Callable[[dict[str, Any]], object]) -> None:
    """Change what a group says of its image."""
    attributes = copy.deepcopy(dict(group.attrs))
    ome: Any = attributes.get("ome", attributes)
    mend(ome["multiscales"][0])
    group.attrs.put(attributes)


def levels(data: zarrfeed.Data) -> list[Level]:
    found = []
    for field in (one.field for one in data.resolved.columns[1:]):
        assert isinstance(field, StoredField)
        assert isinstance(field.rows, LevelRows)
        found.append(field.rows.level)
    return found


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_image_is_its_first_level_unless_levels_are_named(zarr_format: Any, tmp_path: Path) -> None:
    group = put(tmp_path / "i", zarr_format=zarr_format)
    for source in (tmp_path / "i", group):
        data = zarrfeed.open(source)
        assert [(one.name, one.shape) for one in data.fields] == [("samples", (24, 28))]
        assert data.resolved.items[0].dimensions == ("z", "y", "x")
        assert len(data) == 20
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", -1])
    assert [(one.name, one.shape) for one in data.fields] == [("0", (24, 28)), ("2", (6, 7))]
    assert repr(data) == f"zarrfeed.open({str(tmp_path / 'i')!r}, multiscale=['0', -1])"
    assert data == zarrfeed.open(tmp_path / "i", multiscale=("0", -1))
    assert data != zarrfeed.open(tmp_path / "i", multiscale=["0", "1"])
    along_y = zarrfeed.open(tmp_path / "i", multiscale=[0, 1], sample_dim="y")
    assert len(along_y) == 24
    assert zarrfeed.ZarrDataset(along_y)[5]["1"].shape == (10, 14)


def test_an_image_in_memory_is_read() -> None:
    group = zarr.create_group(MemoryStore())
    arrays = put_pyramid(group, (20, 24, 28), FACTORS, chunks=CHUNKS)
    data = zarrfeed.open(group, multiscale=["0", "2"])
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(data)[13]["2"].numpy(), arrays[2][3])


def test_where_voxels_lie_follows_from_the_transformations(tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    assert levels(zarrfeed.open(group, multiscale=[0, 1, 2])) == [
        Level((2, 2, 2), (0, 0, 0)),
        Level((4, 4, 4), (0, 0, 0)),
    ]
    without = put(tmp_path / "j", translated=False)  # middles of first voxels at one point: levels begin before
    assert levels(zarrfeed.open(without, multiscale=[0, 1, 2])) == [
        Level((2, 2, 2), (0, 0, 0)),
        Level((4, 4, 4), (-1, -1, -1)),
    ]

    def shift(image: dict[str, Any]) -> None:
        image["coordinateTransformations"] = [
            {"type": "identity"},
            {"type": "scale", "scale": [3.0, 2.0, 1.0]},
            {"type": "translation", "translation": [100.0, 0.0, -7.0]},
        ]

    change(group, shift)  # all levels alike
    assert levels(zarrfeed.open(group, multiscale=[0, 2])) == [Level((4, 4, 4), (0, 0, 0))]

    def move(image: dict[str, Any]) -> None:
        translation = image["datasets"][1]["coordinateTransformations"][1]["translation"]
        translation[0] += 2 * 0.325  # two voxels of level 0 behind

    change(group, move)
    assert levels(zarrfeed.open(group, multiscale=[0, 1])) == [Level((2, 2, 2), (2, 0, 0))]


def test_numbers_that_writers_rounded_are_taken() -> None:
    assert level_of([2.045454, 4.25], [0.0, 0.0], "yx", "level", (22, 12)).scale == (2, 4)
    assert Level.of((2, 4), (-0.004, 1.4999)).origin == (0, -1)
    for scale, length in ((2.4, 100), (0.5, 10), (1.5, 2000)):
        with pytest.raises(ConfigError, match=f"{scale} times as long along 'y'"):
            level_of([scale], [0.0], "y", "level", (length,))


def test_rows_of_a_level_are_those_that_samples_lie_in() -> None:
    rows = LevelRows.of(Level((4, 1), (-1, 0)), 0, [(10, 2), (5, 2)])
    assert rows.rows_of(np.arange(15)).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3]
    assert rows.num_rows == 4
    assert rows.describe(4) == "level with 1 voxel for 4 x 1 of the first"


def first_is_2(image: dict[str, Any]) -> None:
    image["datasets"][0]["coordinateTransformations"][0]["scale"] = [0.325 * 2] * 3


def set_scale(value: Any) -> Callable[[dict[str, Any]], None]:
    def mend(image: dict[str, Any]) -> None:
        image["datasets"][1]["coordinateTransformations"][0] = {"type": "scale", "scale": value}

    return mend


BAD: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (set_scale([0.65, 0.65]), "must have 3 finite numbers"),
    (set_scale([0.65, 0.65, 0]), "scales above 0"),
    (set_scale([0.65, 0.65, "2"]), "must have 3 finite numbers"),
    (set_scale([0.65, 0.65, float("nan")]), "must have 3 finite numbers"),
    (set_scale([0.65, "x", 0.65, 0.65]), "must have 3 finite numbers"),
    (set_scale([0.65, None, 0.65, 0.65]), "must have 3 finite numbers"),
    (set_scale([0.65, True, 0.65]), "must have 3 finite numbers"),
    (set_scale([0.65, 10**400, 0.65]), "must have 3 finite numbers"),
    (lambda image: image.update(coordinateTransformations={"type": "scale"}), "must be a list"),
    (lambda image: image.update(axes=["z", 5, "y", "x"]), "does not name its 3 axes"),
    (lambda image: image.update(axes=["z", {"type": "space"}, "x"]), "does not name its 3 axes"),
    (lambda image: image["datasets"][1].pop("path"), r"multiscales\[0\].datasets\[1\] has the path None, must be"),
    (lambda image: image["datasets"][1].update(path=1), r"datasets\[1\] has the path 1, must be the path of an array"),
    (lambda image: image["datasets"][1].update(path="/"), r"datasets\[1\] has the path '/'"),
    (lambda image: image["datasets"].insert(1, "0"), r"datasets\[1\] has the path None"),
    (set_scale([0.65, 0.65, 0.8125]), "2.5 times as long along 'x'"),
    (
        set_scale([0.65, 0.65, 0.975]),
        "has 14 voxels along 'x' at a scale of 3, the first array has 28; must be 9 or 10",
    ),
    (set_scale([0.65, 0.65, 0.1]), "0.307692 times as long along 'x'.*name the finest level first"),
    (lambda image: image["datasets"][1].pop("coordinateTransformations"), "has no scale among"),
    (lambda image: image.pop("axes"), "does not name its 3 axes"),
    (lambda image: image.update(axes=["z", "y"]), "does not name its 3 axes"),
    (lambda image: image.update(axes=["z", "y", "y"]), "does not name its 3 axes"),
    (lambda image: image["datasets"][1].update(path="9"), "no array is there"),
]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(("mend", "message"), BAD)
def test_levels_that_cannot_be_aligned_are_refused(
    mend: Callable[[dict[str, Any]], object], message: str, zarr_format: Any, tmp_path: Path
) -> None:
    group = put(tmp_path / "i", zarr_format=zarr_format)
    change(group, mend)
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(tmp_path / "i", multiscale=[0, 1])
    assert len(zarrfeed.open(tmp_path / "i")) == 20  # the first level alone needs none of it


@pytest.mark.parametrize("path", ["/0", "0/", "a//b", "x" * 250, "..x", "%2F", "full resolution #1", "a\\b"])
@pytest.mark.parametrize("source", ["path", "memory"])
def test_the_first_level_is_the_first_one_whatever_its_path(path: str, source: str, tmp_path: Path) -> None:
    """An entry that was left out made a coarser level the full resolution."""
    group = zarr.create_group(tmp_path / "i") if source == "path" else zarr.create_group(MemoryStore())
    arrays = put_pyramid(group, (20, 24, 28), FACTORS, chunks=CHUNKS)
    group.create_array(path, data=arrays[0] + 1000, chunks=(8, 8, 8), overwrite=True)
    change(group, lambda image: image["datasets"][0].update(path=path))
    opened = tmp_path / "i" if source == "path" else group
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(zarrfeed.open(opened))[3].numpy(), arrays[0][3] + 1000)
    data = zarrfeed.open(opened, multiscale=[0, 1])
    assert [one.name for one in data.fields] == [path, "1"]
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(data)[3][path].numpy(), arrays[0][3] + 1000)
    np.testing.assert_array_equal(zarrfeed.ZarrDataset(data)[3]["1"].numpy(), arrays[1][1])
    assert len(zarrfeed.open(opened, multiscale=[path, "2"])) == 20


@pytest.mark.parametrize("path", [None, 0, "", ".", "../i/0", "./0", ["0"], "gone", "/gone"])
def test_a_first_level_that_cannot_be_read_is_no_other_one(path: Any, tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    change(group, lambda image: image["datasets"][0].update(path=path))
    wanted: tuple[list[str | int] | None, ...] = (None, [0], [-3, "1"])
    for multiscale in wanted:
        with pytest.raises(ConfigError, match=r"multiscales\[0\]\.datasets\[0\]"):
            zarrfeed.open(tmp_path / "i", multiscale=multiscale)
    assert len(zarrfeed.open(tmp_path / "i", multiscale=["1"])) == 10  # the others keep their numbers and paths
    assert len(zarrfeed.open(tmp_path / "i", multiscale=[2])) == 5


def test_levels_of_one_path_have_the_scale_of_their_number(tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    change(group, lambda image: image["datasets"][2].update(path="1"))
    with pytest.raises(ConfigError, match="has 10 voxels along 'z' at a scale of 4"):
        zarrfeed.open(group, multiscale=[0, 2])


def test_transformations_of_other_kinds_are_refused(tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    transformations: list[dict[str, Any]] = [{"type": "affine", "affine": []}, {"type": "scale", "path": "scales"}]
    for one, message in zip(transformations, ("'affine'", "stored in an array"), strict=True):
        change(group, lambda image, one=one: image["datasets"][1].update(coordinateTransformations=[one]))  # type: ignore[misc]
        with pytest.raises(UnsupportedError, match=message):
            zarrfeed.open(group, multiscale=[0, 1])


WRONG: list[tuple[Any, str]] = [
    ("0", "must be a list of levels"),
    ([], "must be a list of levels"),
    (3, "must be a list of levels"),
    ([3], "names level 3, .* has 3: 0, 1, 2"),
    ([True], "names True, must be the path of a level"),
    ([1.0], "names 1.0, must be the path of a level"),
    (["0", 0], "names '0' twice"),
    (["0", "3"], "names '3', must be one of the levels '0', '1', '2'"),
    (["0", "labels/cats"], "the path of an image in it"),
    (["0", "labels/cells/7"], "must be one of 'labels/cells/0'"),
    (["1", "0"], "name the finest level first"),
]


@pytest.mark.parametrize(("wanted", "message"), WRONG)
def test_names_that_cannot_be_are_refused(wanted: Any, message: str, tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    put_pyramid(group.create_group("labels/cells"), (20, 24, 28), FACTORS[:1], chunks=CHUNKS[:1])
    with pytest.raises(ConfigError, match=message):
        zarrfeed.open(tmp_path / "i", multiscale=wanted)


def test_what_is_no_image_has_no_levels(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("0", data=np.zeros((4, 4)))
    for source in (group, group["0"], np.zeros(3), {"0": group["0"]}):
        with pytest.raises(ConfigError, match=r"OME-Zarr image"):
            zarrfeed.open(source, multiscale=["0"])
    image = put(tmp_path / "i")
    with pytest.raises(ConfigError, match="without variables"):
        zarrfeed.open(image, multiscale=["0"], variables=["0"])
    with pytest.raises(ConfigError, match="levels are read as they are now"):
        zarrfeed.open(image, multiscale=["0"], refresh="epoch")


def test_labels_in_other_units_or_of_another_size_are_refused(tmp_path: Path) -> None:
    group = put(tmp_path / "i")
    cells = group.create_group("labels/cells")
    put_pyramid(cells, (20, 24, 28), FACTORS[:1], chunks=CHUNKS[:1])
    for one, unit in ((group, "micrometer"), (cells, "nanometer")):
        change(one, lambda image, unit=unit: [axis.update(unit=unit) for axis in image["axes"]])  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"'z' is in nanometer, in .* in micrometer"):
        zarrfeed.open(tmp_path / "i", multiscale=["0", "labels/cells"])
    small = group.create_group("labels/small")
    put_pyramid(small, (20, 24, 27), FACTORS[:1], chunks=CHUNKS[:1])
    with pytest.raises(ConfigError, match="has 27 voxels along 'x' at a scale of 1, the first array has 28"):
        zarrfeed.open(tmp_path / "i", multiscale=["0", "labels/small"])


def test_channels_may_differ_unless_they_are_the_samples(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "i")
    once = [(1, 1, 1)]
    put_pyramid(group, (3, 24, 28), once, chunks=CHUNKS[:1], axes="cyx")
    put_pyramid(group.create_group("labels/cells"), (1, 24, 28), once, chunks=CHUNKS[:1], axes="cyx")
    data = zarrfeed.open(tmp_path / "i", multiscale=["0", "labels/cells"], sample_dim="y").patch({"y": 8, "x": 8})
    assert [one.shape for one in data.fields] == [(3, 8, 8), (1, 8, 8)]
    with pytest.raises(ConfigError, match="has 1 voxels along 'c' at a scale of 1, the first array has 3"):
        zarrfeed.open(tmp_path / "i", multiscale=["0", "labels/cells"])


def test_channels_are_not_the_samples_without_a_word(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "i")
    put_pyramid(group, (3, 12, 24, 28), [(1, 1, 1, 1)], chunks=[(1, 8, 8, 8)], axes="czyx")
    every: tuple[dict[str, Any], ...] = ({}, {"multiscale": ["0"]})
    for options in every:
        with pytest.warns(
            UserWarning, match=r"each channel is a sample: sample_dim='z' would take another axis, sample_"
        ):
            data = zarrfeed.open(tmp_path / "i", **options)
        assert len(data) == 3
        assert len(zarrfeed.open(tmp_path / "i", sample_dim="c", **options)) == 3  # a warning would be an error
        assert len(zarrfeed.open(tmp_path / "i", sample_dim="z", **options)) == 12
        assert len(zarrfeed.open(tmp_path / "i", sample_axis=1, **options)) == 12
    put_pyramid(zarr.create_group(tmp_path / "t"), (3, 12, 24, 28), [(1, 1, 1, 1)], chunks=[(1, 8, 8, 8)], axes="tzyx")
    assert len(zarrfeed.open(tmp_path / "t")) == 3


@pytest.mark.parametrize(
    ("context", "message"),
    [
        ({}, "context = {}"),
        (8, "context = 8"),
        ({"1": 8}, "context of '1' = 8"),
        ({"1": {}}, "context of '1' = {}"),
        ({"1": {"w": 8}}, "names 'w'"),
        ({"1": {"x": 0}}, "context of '1' along 'x'"),
        ({"1": {"x": 2.5}}, "context of '1' along 'x'"),
        ({"9": {"x": 8}}, "context names '9'"),
    ],
)
def test_contexts_that_cannot_be_are_refused(context: Any, message: str, tmp_path: Path) -> None:
    put(tmp_path / "i")
    data = zarrfeed.open(tmp_path / "i", multiscale=[0, 1])
    with pytest.raises(ConfigError, match=message):
        data.patch({"z": 8, "y": 8, "x": 8}, context=context)


def test_images_with_other_levels_are_not_one(tmp_path: Path) -> None:
    put(tmp_path / "a")
    put(tmp_path / "b", translated=False)
    with pytest.raises(ConfigError, match="stores must have the same levels"):
        zarrfeed.open([tmp_path / "a", tmp_path / "b"], multiscale=[0, 2])
    plain = zarr.create_group(tmp_path / "c")
    plain.create_array("0", data=np.zeros((8, 24, 28), "i4"))
    plain.create_array("2", data=np.zeros((8, 6, 7), "i4"))
    data = [zarrfeed.open(tmp_path / "a", multiscale=[0, 2]).patch({0: 4, 1: 4, 2: 4}), zarrfeed.open(tmp_path / "c")]
    with pytest.raises(ConfigError):
        zarrfeed.concat([data[0], data[1].patch({0: 4})])
    with pytest.raises(ConfigError, match="a join cannot be an input of zarrfeed"):
        zarrfeed.concat([zarrfeed.open(tmp_path / "a", multiscale=[0, 2]), data[1]])


def test_windows_along_an_axis_where_levels_differ_are_of_rows(tmp_path: Path) -> None:
    put(tmp_path / "i")
    data = zarrfeed.open(tmp_path / "i", multiscale=[0, 1]).window((-1, 0))
    sample = zarrfeed.ZarrDataset(data)[3]  # planes 3 and 4
    assert sample["1"].shape == (2, 12, 14)
    assert not np.array_equal(sample["1"][0].numpy(), sample["1"][1].numpy())
    with pytest.raises(ConfigError, match="windows are along 'z'"):
        data.patch({"y": 8, "x": 8})


def test_items_of_a_level_have_the_names_of_the_image(tmp_path: Path) -> None:
    put(tmp_path / "i", zarr_format=2)
    (one,) = zarrfeed.open(tmp_path / "i").resolved.items
    assert isinstance(one, Items)
    assert one.dimensions == ("z", "y", "x")
    put_ome(zarr.create_group(tmp_path / "old", zarr_format=2), {"multiscales": [{"datasets": [{"path": "0"}]}]})
    zarr.create_array(tmp_path / "old" / "0", data=np.zeros((4, 5)), zarr_format=2)
    assert zarrfeed.open(tmp_path / "old").resolved.items[0].dimensions is None
