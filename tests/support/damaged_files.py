"""Damaged array files, read by zarrfeed and by the library of their format.

python -m tests.support.damaged_files FOLDER FIRST LAST writes good files into a folder and, for each number, damages a
copy of one of them: bits that flip, a file that is cut or grows, parts that change places, numbers that are 0, -1 or
10**12, and addresses that lead to other parts, as in trees with circles. A process of its own reads each. The last
line of the output counts outcomes; each line before it is a fault: a signal, an error of another class, or a wrong
value.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
import tifffile
from scipy.io import netcdf_file

import zarrfeed
from tests.support.oracle import numbered
from zarrfeed.base.errors import ZarrfeedError
from zarrfeed.metadata.face import open_data  # noqa: F401 - so that each process need not
from zarrfeed.torch.datasets import indexed  # noqa: F401 - so that each process need not

_MOST_ITEMS = 1 << 20
_MOST_ADDRESSES, _MOST_SECONDS = 8 << 30, 60


def _write_hdf5(path: Path, version: str) -> list[str]:
    with h5py.File(path, "w", libver=version, userblock_size=512 if version == "earliest" else 0) as file:
        options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("checked", data=numbered((30, 6), "i4"), chunks=(7, 3), **options)
        file.create_dataset("g/many", data=numbered((90,), "f4"), chunks=(3,), maxshape=(None,))
        file.create_dataset("g/both", data=numbered((20, 12), "i4"), chunks=(4, 3), maxshape=(None, None))
        file.create_dataset(
            "other", data=numbered((20, 9), "i4"), chunks=(4, 3), maxshape=(20, None), compression="lzf"
        )
        file.create_dataset("holes", shape=(40,), chunks=(4,), dtype="i4", fillvalue=7)[8:12] = 3
        file["whole"] = numbered((25, 4), "f8")
    return ["checked", "g/many", "g/both", "other", "holes", "whole"]


def _write_netcdf3(path: Path) -> list[str]:
    with netcdf_file(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 5)
        for name, kind in {"a": "f4", "b": "i2"}.items():
            file.createVariable(name, kind, ("time", "x"))[:] = numbered((12, 5), kind)
        file.createVariable("fixed", "f8", ("x",))[:] = numbered((5,), "f8")
    return ["a", "b", "fixed"]


def _write_npz(path: Path) -> list[str]:
    np.savez(path, x=numbered((40, 5), "i4"), y=numbered((30,), "f8"))
    return ["x", "y"]


def _write_npy(path: Path) -> list[str]:
    np.save(path, numbered((40, 5), "f4"))
    return [""]


def _write_tiff(path: Path, **options: Any) -> list[str]:
    tifffile.imwrite(path, numbered((5, 32, 48), "u2"), photometric="minisblack", **options)
    return [""]


_FILES: dict[str, Callable[[Path], list[str]]] = {
    "old.h5": partial(_write_hdf5, version="earliest"),
    "new.h5": partial(_write_hdf5, version="latest"),
    "classic.nc": _write_netcdf3,
    "a.npy": _write_npy,
    "a.npz": _write_npz,
    "strips.tif": partial(_write_tiff, compression="zlib", rowsperstrip=7),
    "tiles.tif": partial(_write_tiff, tile=(16, 16)),
}


def _by_library(path: Path, name: str) -> Any:
    """Return the values that the library of the format reads."""
    match path.suffix:
        case ".h5":
            with h5py.File(path) as file:
                return file[name][()] if file[name].size <= _MOST_ITEMS else None
        case ".nc":
            return netcdf_file(path, mmap=False).variables[name][...]
        case ".npy":
            return np.load(path)
        case ".npz":
            with np.load(path) as archive:
                return archive[name]
    with tifffile.TiffFile(path) as tiff:
        return tiff.series[0].asarray() if tiff.series[0].size <= _MOST_ITEMS else None


def _by_zarrfeed(path: Path, name: str) -> Any:
    data = zarrfeed.open(path / name if name else path, decode_cf=False)
    if len(data) * int(np.prod(data.fields[0].shape)) > _MOST_ITEMS:
        return None
    got = zarrfeed.ZarrDataset(data)[list(range(len(data)))]
    return got.numpy() if hasattr(got, "numpy") else None


def _read(read: Callable[[Path, str], Any], path: Path, name: str) -> tuple[str, Any]:
    """Return the bytes of values, or the class and the text of an error."""
    try:
        values = read(path, name)
    except ZarrfeedError as error:
        return "error", str(error)
    except Exception as error:  # noqa: BLE001 - libraries raise errors of any class
        return "other error", repr(error)
    if values is None:
        return "too large", None
    return "values", np.ascontiguousarray(values, np.asarray(values).dtype.newbyteorder("=")).tobytes()


def _read_both(pipe: IO[bytes], path: Path, name: str) -> None:
    for read in (_by_library, _by_zarrfeed):
        pickle.dump(_read(read, path, name), pipe)
        pipe.flush()


def _in_a_process(path: Path, name: str) -> tuple[list[tuple[str, Any]], int]:
    """Return what the library and zarrfeed read, as far as the process came, and its status."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (_MOST_SECONDS,) * 2)
        try:
            with os.fdopen(there, "wb") as pipe:
                _read_both(pipe, path, name)
        finally:
            os._exit(0)
    os.close(there)
    found = []
    with os.fdopen(here, "rb") as pipe:
        for _ in range(2):
            try:
                found.append(pickle.load(pipe))
            except EOFError:
                break
    return found, os.waitpid(child, 0)[1]


def _damaged(rng: random.Random, good: bytes) -> bytes:
    bad = bytearray(good)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at, size = rng.randrange(len(bad)), rng.choice([2, 4, 8, 8])
        match rng.choice(["flip", "cut", "grow", "swap", "zero", "number", "number", "address"]):
            case "flip":
                bad[at] ^= 1 << rng.randrange(8)
            case "cut":
                del bad[max(16, at) :]
            case "grow":
                bad += rng.randbytes(300)
            case "swap":
                other = rng.randrange(len(bad) - 8)
                bad[at : at + 8], bad[other : other + 8] = bad[other : other + 8], bad[at : at + 8]
            case "zero":
                bad[at : at + 64] = bytes(len(bad[at : at + 64]))
            case "number":
                number = rng.choice([0, 1, -1, len(good), 10**12, rng.randrange(len(good))])
                bad[at : at + size] = (number % 256**size).to_bytes(size, rng.choice(["little", "big"]))
            case "address":
                other = rng.randrange(len(bad) // 8) * 8
                bad[at // 8 * 8 : at // 8 * 8 + 8] = bad[other : other + 8]
    return bytes(bad)


def _outcome(found: list[tuple[str, Any]], status: int, original: bytes) -> str:
    """Return what came of a file; the text of a fault begins with "FAULT"."""
    if not found:
        return "the library died"
    if status or len(found) < 2:
        return f"FAULT zarrfeed: status {status}"
    (theirs, expected), (ours, got) = found
    if ours == "other error":
        return f"FAULT {got}"
    if ours == theirs == "values" and got != expected:
        # an index without a checksum can hide a chunk from HDF5's search that the list of chunks has
        return "right, the library lost it" if got == original else "FAULT other values"
    return f"{ours}, library: {theirs}"


def main(folder: Path, first: int, last: int) -> None:
    """Print faults, and counts of outcomes as JSON."""
    warnings.simplefilter("ignore")
    names = {file: write(folder / file) for file, write in _FILES.items()}
    counts: Counter[str] = Counter()
    for number in range(first, last):
        rng = random.Random(number)
        file = list(_FILES)[number % len(_FILES)]
        name, good = rng.choice(names[file]), (folder / file).read_bytes()
        path = folder / f"damaged{number}{Path(file).suffix}"
        path.write_bytes(_damaged(rng, good))
        outcome = _outcome(*_in_a_process(path, name), _read(_by_library, folder / file, name)[1])
        path.unlink()
        if outcome.startswith("FAULT"):
            print(number, file, name, outcome)
        counts[outcome] += 1
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
