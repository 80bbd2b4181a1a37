"""docs/coming-from.md: on the data that a section names, the library and zarrfeed deliver the same samples.

Snippets run as they stand, with `train` as what collects samples. What the data are is the oracle of both, so that
snippets of zarrfeed are checked where the other library is not installed, too.
"""

from __future__ import annotations

import io
import re
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from PIL import Image

import zarrfeed.objects
from tests.repo.test_code_blocks import blocks_of
from tests.support.paths import ROOT
from tests.support.real_servers import BUCKET, NotHereError, isolate, serving_gcs

PAGE = (ROOT / "docs" / "coming-from.md").read_text()
#: Samples of most sections: no multiple of a batch or of a chunk.
N = 150

Array = npt.NDArray[Any]
#: What a sample has: arrays, compared bit by bit.
Samples = Counter[tuple[tuple[tuple[int, ...], bytes], ...]]


def samples_of(*parts: Any) -> Samples:
    """Return the samples of a batch, or of all the data, in no order; all numbers as float64, which holds them."""
    arrays = [np.asarray(part, dtype=np.float64) for part in parts]
    return Counter(tuple((row.shape, row.tobytes()) for row in rows) for rows in zip(*arrays, strict=True))


def rows_with_targets(folder: Path) -> Samples:
    x, y = np.random.default_rng(0).random((N, 3, 4), dtype=np.float32), np.arange(N, dtype=np.float32)
    group = zarr.create_group(folder / "train.zarr")
    group.create_array("samples", data=x, chunks=(16, 3, 4))
    group.create_array("targets", data=y, chunks=(16,))
    return samples_of(x, y)


def field_of_xarray(folder: Path) -> Samples:
    xarray = pytest.importorskip("xarray")
    values = np.random.default_rng(0).random((12, 16, 24), dtype=np.float32)
    field = xarray.Dataset({"t2m": (("time", "lat", "lon"), values)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata have no specification
        field.to_zarr(folder / "era5.zarr", encoding={"t2m": {"chunks": (4, 16, 12)}})
    boxes = values.reshape(3, 4, 2, 8, 3, 8).transpose(0, 2, 4, 1, 3, 5).reshape(-1, 4, 8, 8)
    return samples_of(boxes)


def archive_of_images(folder: Path) -> Samples:
    image, label = images()
    np.savez(folder / "images.npz", image=image, label=label)
    return samples_of(image, label)


def shards_of_images(folder: Path) -> Samples:
    image, label = images()
    (folder / "shards").mkdir()
    for number, chosen in enumerate(np.array_split(np.arange(N), 4)):
        write_tar(folder / "shards" / f"{number:06d}.tar", chosen.tolist(), image, label)
    return samples_of(image, label)


def images() -> tuple[Array, Array]:
    return np.random.default_rng(0).integers(0, 255, (N, 3, 32, 32), dtype=np.uint8), np.arange(N) % 7


def write_tar(path: Path, chosen: list[int], image: Array, label: Array) -> None:
    with tarfile.open(path, "w") as tar:
        for i in chosen:
            png = io.BytesIO()
            Image.fromarray(image[i].transpose(1, 2, 0)).save(png, "png")
            for name, content in ((f"{i:06d}.png", png.getvalue()), (f"{i:06d}.cls", str(label[i]).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def cells_of_anndata(folder: Path) -> Samples:
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    counts, kinds = rng.poisson(0.2, (N, 40)).astype("f4"), rng.integers(0, 3, N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pandas.option_context("future.infer_string", False):  # anndata 0.12 does not write the texts of pandas 3
            cells = anndata.AnnData(sparse.csr_matrix(counts))
            cells.obs["cell_type"] = pandas.Categorical.from_codes(kinds, ["B", "T", "NK"])
            cells.write_zarr(folder / "cells.zarr")
    return samples_of(counts, kinds)


def objects_in_a_bucket(folder: Path) -> Samples:
    values = np.random.default_rng(0).random((N // 5, 3, 4), dtype=np.float32)
    (folder / "train").mkdir()
    for i, value in enumerate(values):
        np.save(folder / "train" / f"{i:03d}.npy", value)
    return samples_of(values)


#: Heading of a section -> what its data are, and the module of the library.
SECTIONS: dict[str, tuple[Callable[[Path], Samples], str]] = {
    "Plain Zarr": (rows_with_targets, "zarr"),
    "zarr-torch-dataset": (rows_with_targets, "zarrdataset"),
    "xbatcher": (field_of_xarray, "xbatcher"),
    "MosaicML streaming": (archive_of_images, "streaming"),
    "WebDataset": (shards_of_images, "webdataset"),
    "annbatch": (cells_of_anndata, "annbatch"),
    "dataflux-pytorch": (objects_in_a_bucket, "dataflux_pytorch"),
}


def snippets(section: str) -> list[str]:
    """Return the Python blocks of a section: before, with zarrfeed, and what else there is."""
    text = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (found,) = (one for one in text if one.startswith(f"{section}\n"))
    return [block.body for block in blocks_of(found) if block.language == "python"]


def run(code: str) -> Samples:
    """Run a snippet in the current directory; return the samples that it trains on."""
    seen: Samples = Counter()

    def train(*parts: Any) -> None:
        seen.update(samples_of(*parts))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries
        names = {"__name__": "__main__", "train": train, "zarrfeed": zarrfeed}
        exec(compile(code, "docs/coming-from.md", "exec"), names)
    return seen


@pytest.fixture
def data(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Samples, dict[str, str]]]:
    """Make the data of a section in the current directory; yield its name, its samples, and texts to replace."""
    section = request.param
    monkeypatch.chdir(tmp_path)
    expected = SECTIONS[section][0](tmp_path)
    assert len(expected) > 16
    if section != "dataflux-pytorch":
        yield section, expected, {}
        return
    try:
        with serving_gcs(tmp_path) as endpoint:
            isolate(monkeypatch)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint.options["endpoint_url"])
            url = f'"gs://{BUCKET}/train"'
            yield section, expected, {url: f"zarrfeed.objects.open({url}, storage_options={endpoint.options})"}
    except NotHereError as error:
        pytest.skip(str(error))


def test_the_page_has_these_sections_and_a_pair_in_each() -> None:
    pairs = PAGE.count('<div class="pair" markdown>')
    assert re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE) == list(SECTIONS)
    assert pairs == PAGE.count("\nBefore\n") == PAGE.count("\nWith zarrfeed\n") == len(SECTIONS)
    for section, (_, module) in SECTIONS.items():
        before, after, *_ = snippets(section)
        assert re.search(rf"^(import|from) {module}\b", before, flags=re.MULTILINE)
        assert "zarrfeed" not in before
        assert "zarrfeed" in after


@pytest.mark.parametrize("data", SECTIONS, indirect=True)
def test_with_zarrfeed_each_sample_comes_once(data: tuple[str, Samples, dict[str, str]]) -> None:
    section, expected, replaced = data
    code = snippets(section)[1]
    for text, by in replaced.items():
        assert text in code
        code = code.replace(text, by)
    assert run(code) == expected


@pytest.mark.parametrize("data", SECTIONS, indirect=True)
def test_the_other_library_delivers_the_same_samples(data: tuple[str, Samples, dict[str, str]], tmp_path: Path) -> None:
    section, expected, _ = data
    pytest.importorskip(SECTIONS[section][1], exc_type=ImportError)
    before, _, *more = snippets(section)
    assert run(before) == expected
    if section == "MosaicML streaming":
        run(*more)
        copied = zarr.open_group(tmp_path / "copied.zarr", mode="r")
        assert samples_of(copied["image"], copied["label"]) == expected
    else:
        assert more == []
