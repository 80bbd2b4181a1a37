"""TIFF files in place: every value is that of tifffile, by the engine where codecs say how the tiles are encoded."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
import zarr
from PIL import Image

import zarrfeed
from tests.support.examples import tries
from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.storage.files.tiff import is_tiff, open_tiff

STACK = np.arange(5 * 3 * 40 * 50, dtype="u2").reshape(5, 3, 40, 50)


def rows(data: Any) -> Any:
    """Return all samples of the only array, in order."""
    return torch.cat(list(zarrfeed.ZarrIterableDataset(data, batch_size=3))).numpy()


def write_at_random(path: Path, random: np.random.Generator) -> str:
    """Write an image of any kind, and return how."""
    kind = str(random.choice(["u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8", "c8"]))
    shape = [*random.integers(1, 5, random.integers(0, 4)), *random.integers(1, 90, 2)]
    options: dict[str, Any] = {"photometric": "minisblack", "byteorder": str(random.choice(["<", ">"]))}
    if kind in ("u1", "u2") and random.random() < 0.4:
        options |= {"photometric": "rgb", "planarconfig": str(random.choice(["contig", "separate"]))}
        shape.insert(len(shape) - (0 if options["planarconfig"] == "contig" else 2), 3)
    values = random.integers(0, 99, shape).astype(kind)
    compression = str(random.choice(["none", "zlib", "lzma"]))
    if compression != "none":
        options["compression"] = compression
    if kind[0] in "iu" and compression == "zlib" and random.random() < 0.6:
        options["predictor"] = 2
    if random.random() < 0.5:
        options["tile"] = tuple(int(n) for n in 16 * random.integers(1, 4, 2))
    elif random.random() < 0.7:
        options["rowsperstrip"] = int(random.integers(1, 40))
    tifffile.imwrite(path, values, bigtiff=bool(random.random() < 0.3), **options)
    return f"{kind} {shape} {options}"


def test_random_images_are_those_of_tifffile(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    for seed in range(tries(12, 400)):
        how = f"seed {seed}: {write_at_random(path, np.random.default_rng(seed))}"
        with tifffile.TiffFile(path) as file:
            is_plane = set(file.series[0].axes) <= set("YXS")
        expected = tifffile.imread(path)[None] if is_plane else tifffile.imread(path)
        stored: Any = zarr.open_array(open_tiff(path), mode="r")
        assert np.array_equal(stored[...], expected), how
        assert np.array_equal(rows(zarrfeed.open(path)), expected), how


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "zstd"])
@pytest.mark.parametrize("predictor", [1, 2])
def test_images_of_libtiff_are_read_by_the_engine(compression: str, predictor: int, tmp_path: Path) -> None:
    path, values = tmp_path / "x.tif", np.random.default_rng(0).integers(0, 60, (333, 257), dtype=np.uint8)
    values[100:200] = 7  # long strings of LZW
    Image.fromarray(values).save(path, compression=compression, tiffinfo={317: predictor})
    data = zarrfeed.open(path)
    assert zarrfeed.ZarrIterableDataset(data).explain().fields[0].native
    assert np.array_equal(rows(data), values[None])


def test_files_of_one_plane_are_one_sample_each(tmp_path: Path) -> None:
    """Rows of pixels were the samples: 6 planes of 16 rows came as 96 samples."""
    planes = {"grey": STACK[:, 0], "rgb": np.stack([STACK[:, 0].astype("u1")] * 3, axis=-1), "one": STACK[:1, 0]}
    for name, values in planes.items():
        photometric = "rgb" if name == "rgb" else "minisblack"
        for number, plane in enumerate(values):
            tifffile.imwrite(tmp_path / f"{name}{number}.tif", plane, photometric=photometric, compression="zlib")
        data = zarrfeed.open(str(tmp_path / f"{name}*.tif"))
        assert len(data) == len(values)
        assert np.array_equal(rows(data), values)
        crops = data.patch({"y": 16, "x": 16}, sampling="grid", border="drop")
        assert np.array_equal(rows(crops)[0], values[0, :16, :16])


def test_a_plane_of_several_resolutions_is_one_sample(tmp_path: Path) -> None:
    with tifffile.TiffWriter(tmp_path / "slide.ome.tif") as file:
        file.write(STACK[0, 0], subifds=1, tile=(16, 16), photometric="minisblack")
        file.write(STACK[0, 0, ::2, ::2], subfiletype=1, tile=(16, 16), photometric="minisblack")
    assert np.array_equal(rows(zarrfeed.open(tmp_path / "slide.ome.tif")), STACK[:1, 0])
    assert np.array_equal(rows(zarrfeed.open(tmp_path / "slide.ome.tif/1")), STACK[:1, 0, ::2, ::2])
    both = zarrfeed.open(tmp_path / "slide.ome.tif", multiscale=[0, 1]).patch({"y": 16, "x": 16}, sampling="grid")
    batch = next(iter(zarrfeed.ZarrIterableDataset(both, batch_size=2)))
    assert [tuple(one.shape[1:]) for one in batch.values()] == [(16, 16), (8, 8)]


def test_stacks_have_the_axes_of_their_writer(tmp_path: Path) -> None:
    for name, axes, options in (
        ("hyperstack.tif", "TZYX", {"imagej": True}),
        ("x.ome.tif", "TCYX", {"compression": "zlib", "predictor": True, "tile": (16, 32)}),
        ("plain.ome.tif", "ZCYX", {}),
    ):
        tifffile.imwrite(tmp_path / name, STACK, metadata={"axes": axes}, photometric="minisblack", **options)
        data = zarrfeed.open(tmp_path / name, sample_dim=axes[0].lower())
        assert np.array_equal(rows(data), STACK)
        assert np.array_equal(rows(data.isel({axes[1].lower(): 1})), STACK[:, 1])
        crops = zarrfeed.open(tmp_path / name, sample_dim="y").patch({"y": 16, "x": 16})
        assert len(crops) > 0


def test_channels_are_not_samples_without_a_word(tmp_path: Path) -> None:
    """The same holds of an array of Zarr whose dimensions are those of an image, such as a level by its path."""
    tifffile.imwrite(tmp_path / "x.ome.tif", STACK, metadata={"axes": "CZYX"}, photometric="minisblack")
    zarr.create_array(tmp_path / "x.zarr", data=STACK, dimension_names=("c", "z", "y", "x"))
    for name in ("x.ome.tif", "x.zarr"):
        with pytest.warns(UserWarning, match="'c' is the first axis of an image, so each channel is a sample"):
            zarrfeed.open(tmp_path / name)
        assert len(zarrfeed.open(tmp_path / name, sample_dim="c")) == len(STACK)


def test_levels_are_an_image_and_series_are_images(tmp_path: Path) -> None:
    path = tmp_path / "x.ome.tif"
    with tifffile.TiffWriter(path) as file:
        for number in range(2):
            file.write(STACK + number, subifds=1, tile=(16, 16), metadata={"axes": "TCYX"}, photometric="minisblack")
            file.write(STACK[..., ::2, ::2] + number, subfiletype=1, tile=(16, 16), photometric="minisblack")
    assert np.array_equal(rows(zarrfeed.open(path / "1/1")), STACK[..., ::2, ::2] + 1)
    assert np.array_equal(rows(zarrfeed.open(path / "1")), STACK + 1)
    assert np.array_equal(rows(zarrfeed.open(path)), np.concatenate([STACK, STACK + 1]))


def test_a_sparse_image_has_its_fill_value(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    tile = np.arange(1024, dtype="u1").reshape(32, 32)
    tifffile.imwrite(path, iter([tile, None, tile, None]), shape=(64, 64), dtype="u1", tile=(32, 32), photometric=1)
    assert np.array_equal(rows(zarrfeed.open(path))[0], tifffile.imread(path))
    assert open_tiff(path).table("").numbers is not None


def test_large_pages_without_compression_are_read_in_parts(tmp_path: Path) -> None:
    path, values = tmp_path / "x.tif", np.arange(3 * 1100 * 700, dtype="u4").reshape(3, 1100, 700)
    tifffile.imwrite(path, values, photometric="minisblack")
    stored: Any = zarr.open_array(open_tiff(path), mode="r")
    assert stored.chunks == (1, 256, 700)
    assert np.array_equal(rows(zarrfeed.open(path)), values)


def test_workers_get_the_list_of_tiles(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    tifffile.imwrite(path, STACK, compression="lzma", photometric="minisblack")
    store = pickle.loads(pickle.dumps(open_tiff(path)))
    stored: Any = zarr.open_array(store, mode="r")
    assert np.array_equal(stored[...], STACK)


def test_what_is_not_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.tif"
    Image.fromarray(STACK[0, 0].astype("u1")).save(path, compression="jpeg")
    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", {})  # as without imagecodecs
    with pytest.raises(UnsupportedError, match=r"x\.tif: tifffile cannot decode it"):
        zarrfeed.open(path)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(ConfigError, match=r'pip install "zarrfeed\[tiff\]"'):
        zarrfeed.open(path)


def test_damaged_files_and_tiles_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.tif"
    tifffile.imwrite(path, STACK[0, 0], compression="zlib", rowsperstrip=9)
    good = path.read_bytes()
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[1]
    path.write_bytes(good[:offset] + bytes(8) + good[offset + 8 :])
    with pytest.raises(CorruptChunkError, match=r"x\.tif"):
        rows(zarrfeed.open(path))
    path.write_bytes(good[: offset + 2])
    with pytest.raises((StoreReadError, ConfigError)):
        zarrfeed.open(path)
    path.write_bytes(good[:8])
    assert is_tiff(path)
    with pytest.raises(StoreReadError, match=r"x\.tif"):
        zarrfeed.open(path)


def test_masks_of_gdal_are_no_images(tmp_path: Path) -> None:
    values, path = np.arange(64 * 48, dtype="u2").reshape(64, 48), tmp_path / "x.tif"
    mask = values % 3 == 0
    options: dict[str, Any] = {"photometric": "minisblack", "tile": (16, 16), "metadata": None}
    with tifffile.TiffWriter(path) as file:
        file.write(values, subfiletype=0, **options)
        file.write(mask, subfiletype=4, **options)
    with tifffile.TiffFile(path) as file:
        assert len(file.series) == 2
    assert rows(zarrfeed.open(path))[0].tobytes() == values.tobytes()
    with tifffile.TiffWriter(path) as file:
        file.write(mask, subfiletype=4, **options)
    assert rows(zarrfeed.open(path))[0].tobytes() == mask.tobytes()
