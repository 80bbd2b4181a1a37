"""Images as ngff-zarr and ome-zarr-py write them, against what their own readers give at the same position."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.patches import Voxels, patch_of, read
from zarrfeed import ZarrIterableDataset

SIZE, CONTEXT = (8, 12, 12), (8, 12, 12)


def box(array: Voxels, begin: Voxels, size: Sequence[int]) -> Voxels:
    """Return a box of an array, 0 where it reaches beyond."""
    found = np.zeros(size, array.dtype)
    low = np.clip(begin, 0, array.shape)
    high = np.clip(begin + np.array(size), 0, array.shape)
    if (high > low).all():
        inside = tuple(slice(a - b, c - b) for a, b, c in zip(low, begin, high, strict=True))
        found[inside] = array[tuple(map(slice, low, high))]
    return found


def check(
    path: Path, levels: Mapping[str, tuple[Voxels, Sequence[float], Sequence[float]]], *, exact: bool = True
) -> None:
    """Check patches of all levels against the voxels, scales and translations of a reader.

    A box begins where the reader's transformations put it; where scales are quotients of odd lengths, less than a voxel
    beside.
    """
    first, *others = levels
    voxels, scale, translation = (np.array(one) for one in levels[first])
    around: Any = {name: dict(zip("zyx", CONTEXT, strict=True)) for name in others}
    data = zarrfeed.open(path, multiscale=[first, *others])
    data = data.patch(dict(zip("zyx", SIZE, strict=True)), context=around)
    seen = 0
    for patch, number in read(ZarrIterableDataset(data, batch_size=4, shuffle=True, return_index=True)):
        _, start = data.locate(number)
        np.testing.assert_array_equal(patch[first].numpy(), patch_of(voxels, start, SIZE))
        face = scale * (start - 0.5) + translation
        for name in others:
            array, of_level, moved = (np.array(one) for one in levels[name])
            voxel = (face - (moved - of_level / 2)) / of_level
            inside = [-(-p // round(f)) for p, f in zip(SIZE, of_level / scale, strict=True)]
            before = np.array([(q - p) // 2 for q, p in zip(CONTEXT, inside, strict=True)])
            begin = np.floor(voxel + 1e-6).astype(np.int64) - before
            found = patch[name].numpy()
            near = [begin] if exact else [begin + np.array(d) for d in np.ndindex(2, 2, 2)]
            assert any(np.array_equal(found, box(array, one, CONTEXT)) for one in near), (name, start)
        seen += 1
    assert seen > 20


def image(shape: Sequence[int]) -> Voxels:
    found: Voxels = np.random.default_rng(0).integers(1, 60_000, shape, dtype="u2")
    return found


@pytest.mark.parametrize("shape", [(32, 48, 64), (37, 45, 50)])
@pytest.mark.parametrize(("version", "options"), [("0.4", {}), ("0.5", {}), ("0.5", {"chunks_per_shard": 2})])
def test_images_of_ngff_zarr_are_cut_as_its_reader_has_them(
    version: str, options: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    ngff = pytest.importorskip("ngff_zarr")
    path = tmp_path / "i.ome.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformations = {"scale": {"z": 2.0, "y": 0.325, "x": 0.325}, "translation": {"z": 10.0, "y": 0.0, "x": 3.7}}
        made = ngff.to_ngff_image(image(shape), dims=["z", "y", "x"], **transformations)
        method = ngff.Methods.ITKWASM_BIN_SHRINK
        pyramid = ngff.to_multiscales(made, scale_factors=[2, {"z": 2, "y": 4, "x": 4}], method=method, chunks=16)
        ngff.to_ngff_zarr(str(path), pyramid, version=version, **options)
        found = ngff.from_ngff_zarr(str(path))
    levels = {}
    for dataset, level in zip(found.metadata.datasets, found.images, strict=True):
        scale, translation = ([of[dim] for dim in "zyx"] for of in (level.scale, level.translation))
        levels[dataset.path] = (np.asarray(level.data), scale, translation)
    assert len(levels) == 3
    check(path, levels)


@pytest.mark.parametrize("shape", [(32, 48, 64), (37, 45, 50)])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_images_of_ome_zarr_py_are_cut_as_its_reader_has_them(
    version: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    writer = pytest.importorskip("ome_zarr.writer")
    formats, io, reader = (pytest.importorskip(f"ome_zarr.{name}") for name in ("format", "io", "reader"))
    of_version = formats.FormatV04() if version == "0.4" else formats.FormatV05()
    path = tmp_path / "i.zarr"
    stored: dict[str, Any] = {"chunks": (8, 16, 16)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        group = zarr.open_group(path, mode="w", zarr_format=2 if version == "0.4" else 3)
        voxels = image(shape)
        if version == "0.5":
            stored["shards"] = (16, 32, 32)
        options: dict[str, Any] = {"axes": "zyx", "fmt": of_version, "scale_factors": [2, 4]}
        writer.write_image(voxels, group, storage_options=stored, **options)
        labels = (voxels > 30_000).astype("u1")
        writer.write_labels(labels, group, name="cells", storage_options={"chunks": (9, 9, 9)}, **options)
        nodes = {node.zarr.basename(): node for node in reader.Reader(io.parse_url(str(path), fmt=of_version))()}
    levels = {}
    for name, prefix in (("i.zarr", ""), ("cells", "labels/cells/")):
        node = nodes[name]
        of_levels = zip(node.data, node.metadata["coordinateTransformations"], strict=True)
        for number, (array, transformations) in enumerate(itertools.islice(of_levels, 3)):
            kinds = {one["type"]: one[one["type"]] for one in transformations}
            levels[f"{prefix}s{number}"] = (np.asarray(array), kinds["scale"], kinds.get("translation", [0.0] * 3))
    assert len(levels) >= 5
    check(path, levels, exact=not any(n % 4 for n in shape))
