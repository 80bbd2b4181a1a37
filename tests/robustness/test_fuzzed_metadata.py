"""Metadata of every format, changed at random: `open`, `verify`, `stats` and `pack` raise errors of ours alone.

Every change is made by its own seed, so that a failure names the seed that repeats it.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

import zarrfeed
from tests.support.mutations import changed_bytes, changed_json
from zarrfeed import ZarrDataset, ZarrfeedError
from zarrfeed.packing.pack import pack

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of zarr-python, xarray and anndata, about what was changed
    pytest.mark.timeout(3600),
]
#: Changes of a whole run; without --large, as many as take this long on a processor, busy with others or not.
MUTATIONS, SECONDS = 5000, 1.0
#: More addresses than any of these small stores needs: sizes that metadata declare are not trusted.
ADDRESSES = 16 << 30
MOST_ITEMS = 100_000
ROWS = np.arange(48.0, dtype="f4").reshape(12, 4)
DOCUMENTS = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")


def plain(path: Path) -> None:
    zarr.create_array(path, data=ROWS, chunks=(4, 2))


def sharded(path: Path) -> None:
    attributes: Any = {"scale_factor": 2.0, "add_offset": 1.0, "_FillValue": 0.0, "units": "K"}
    zarr.create_array(
        path, data=ROWS, chunks=(2, 2), shards=(4, 4), attributes=attributes, dimension_names=("time", "x")
    )


def format_2(path: Path) -> None:
    attributes: Any = {"_ARRAY_DIMENSIONS": ["t", "x"], "_FillValue": 3, "scale_factor": 0.5}
    zarr.create_array(path, data=ROWS.astype("i2"), chunks=(4, 4), zarr_format=2, attributes=attributes)


def records(path: Path) -> None:
    zarr.create_array(path, data=np.zeros(9, [("a", "<i4"), ("b", "<f4")]), chunks=(4,), zarr_format=2)


def text(path: Path) -> None:
    zarr.create_array(path, shape=(9,), chunks=(4,), dtype=str)[:] = np.array([f"t{i}" for i in range(9)], object)


def cube(**options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        variables = {"t2m": (("time", "lat"), ROWS), "z": (("lat",), np.arange(4.0))}
        coordinates = {"time": pd.date_range("2020", periods=12), "lat": np.arange(4.0)}
        dataset = xr.Dataset(variables, coordinates)
        if "engine" in options:
            dataset.to_netcdf(path, **options)
        else:
            dataset.to_zarr(path, **options)

    return write


def image(path: Path) -> None:
    def level(number: int, scale: float) -> dict[str, Any]:
        transformations = [{"type": "scale", "scale": [scale, scale]}, {"type": "translation", "translation": [0.5, 0]}]
        return {"path": str(number), "coordinateTransformations": transformations}

    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zy"]
    multiscales = [{"axes": axes, "datasets": [level(0, 1.0), level(1, 2.0)], "name": "image"}]
    group = zarr.create_group(path, attributes={"ome": {"version": "0.5", "multiscales": multiscales}})
    group.create_array("0", data=np.arange(64).reshape(8, 8), chunks=(4, 4))
    group.create_array("1", data=np.arange(16).reshape(4, 4), chunks=(4, 4))


def replay(path: Path) -> None:
    group = zarr.create_group(path)
    group.create_array("data/action", data=ROWS, chunks=(4, 4))
    group.create_array("meta/episode_ends", data=np.array([5, 12]))


def packed(path: Path) -> None:
    plain(path.with_name("unpacked"))
    pack(path.with_name("unpacked"), path, shuffle=3)


def cells(form: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        def names(letters: str) -> Any:
            return pd.DataFrame(index=pd.Index(list(letters), dtype=object))

        with pd.option_context("future.infer_string", False):
            made = anndata.AnnData(
                scipy.sparse.random(12, 5, 0.4, "csr", dtype="f4", random_state=0),
                names("abcdefghijkl"),
                names("vwxyz"),
            )
            made.obs["kind"] = pd.Categorical(["a", "b"] * 6)
            made.obs["age"] = pd.array([1, None] * 6, dtype="Int64")
            made.layers["dense"] = np.ones((12, 5), "f4")
            made.uns["title"] = {"a": 1, "b": np.arange(3)}
            (made.write_h5ad if form == "h5ad" else made.write_zarr)(path)

    return write


def hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["a"], file["b"] = ROWS, np.arange(12)
        file["a"].attrs["units"] = "K"


def table() -> Any:
    return pa.table({"a": np.arange(12), "b": [f"s{i}" for i in range(12)], "c": [[1, 2]] * 12})


def arrow(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table())


def archive(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(6):
            item = io.BytesIO()
            np.save(item, ROWS[number])
            for end, content in (("cls", b"3"), ("json", b'{"a": 1}'), ("npy", item.getvalue())):
                member = tarfile.TarInfo(f"{number:03}.{end}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


#: Name of a file or a store -> what writes it.
SOURCES: dict[str, Callable[[Path], object]] = {
    "plain": plain,
    "sharded": sharded,
    "format_2": format_2,
    "records": records,
    "text": text,
    "cube_2": cube(zarr_format=2, consolidated=True),
    "cube_3": cube(zarr_format=3, consolidated=True),
    "cube_open": cube(zarr_format=3, consolidated=False),
    "image": image,
    "replay": replay,
    "packed": packed,
    "cells": cells("zarr"),
    "cells.h5ad": cells("h5ad"),
    "a.h5": hdf5,
    "a.nc": cube(engine="h5netcdf"),
    "classic.nc": cube(engine="scipy"),
    "a.npy": lambda path: np.save(path, ROWS),
    "a.npz": lambda path: np.savez(path, a=ROWS, b=ROWS[:, 0]),
    "a.parquet": lambda path: pq.write_table(table(), path),
    "a.arrow": arrow,
    "a.tar": archive,
}


def ways(path: Path, out: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what is done with a source, by name."""

    def look() -> None:
        dataset = ZarrDataset(path)
        dataset[0], dataset[[len(dataset) - 1]]

    if path.is_dir():
        yield "open", look
        yield "verify", lambda: zarrfeed.verify(path)
        yield "stats", lambda: zarrfeed.stats(path)
    if path.name == "cells":
        yield "variables", lambda: zarrfeed.open(path, variables=["X", "obs/kind", "obs/age", "layers/dense"])
    if path.name == "image":
        yield "multiscale", lambda: zarrfeed.open(path, multiscale=[0, 1])
    yield "pack", lambda: pack(path, out, shuffle=3, jobs=1)


def change(path: Path, rng: random.Random) -> tuple[Path, bytes]:
    """Change one document of a source, or a file; return which one, and what it was."""
    document = path if path.is_file() else rng.choice(sorted(one for one in path.rglob("*") if one.name in DOCUMENTS))
    before = document.read_bytes()
    if path.is_file() or rng.random() < 0.05:
        document.write_bytes(changed_bytes(before, rng))
    else:
        document.write_text(json.dumps(changed_json(json.loads(before), rng)))
    return document, before


def declares_much(file: Path) -> bool:
    """Return whether a metadata document declares an axis that is longer than any of these arrays."""
    if file.name not in DOCUMENTS:
        return False
    return any(int(number) > MOST_ITEMS for number in re.findall(rb"[0-9]{6,18}", file.read_bytes()))


def try_all(folder: Path, seed: int) -> list[str]:
    """Change one source, read it in every way, and put it back; return the errors that are not ours."""
    rng = random.Random(seed)
    path = folder / list(SOURCES)[seed % len(SOURCES)]
    document, before = change(path, rng)
    wrong = []
    is_huge = path.is_dir() and any(map(declares_much, path.rglob("*")))
    for way, read in ways(path, folder / "out.zarr"):
        if is_huge and way in ("verify", "stats", "pack"):
            continue  # which would look for each of the chunks
        for left in folder.glob("out.zarr*"):
            shutil.rmtree(left)
        try:
            read()
        except (ZarrfeedError, OSError):
            pass
        except Exception as error:  # noqa: BLE001 (which is what the test is about)
            wrong.append(f"seed {seed}: {way} of {document.relative_to(folder)}: {error!r}"[:500])
    document.write_bytes(before)
    return wrong


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, write in SOURCES.items():
        write(folder / name)
    return folder


def test_no_change_of_metadata_lets_another_error_out(sources: Path, request: pytest.FixtureRequest) -> None:
    """In a process of its own, since a library that trusts what it reads may end it."""
    is_whole = request.config.getoption("--large")
    there, here = os.pipe()
    child = os.fork()
    if child == 0:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        # Libraries that other tests imported may have reserved many addresses.
        most = ADDRESSES + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (most if soft < 0 else min(soft, most), hard))
        end = time.process_time() + SECONDS
        with os.fdopen(here, "w") as told:
            for seed in range(MUTATIONS):
                told.write(f"{seed}\n")
                told.flush()
                for line in try_all(sources, seed):
                    told.write(f"{line!r}\n")
                if not is_whole and time.process_time() > end:
                    break
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as answer:
        lines = answer.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the process ended with {status} at seed {lines[-1] if lines else 'none'}"
    assert [line for line in lines if not line.isdigit()] == []
    assert len(lines) >= (MUTATIONS if is_whole else 1)
