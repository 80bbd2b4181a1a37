"""Metadata, plans and reading by the engine where there is no torch: `python tests/support/without_torch.py`.

What holds: each array below comes out of the engine as zarr-python reads it, every sample once, in the order that the
plan says. The script needs zarrfeed, zarr and NumPy alone. It fails if torch can be imported: it would show nothing.
`test_without_torch.py` runs it with torch blocked, and CI runs it with the newest zarr-python on the newest Python.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, BytesCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore, ZipStore

import zarrfeed
from zarrfeed import checkpoint
from zarrfeed.base.native import core
from zarrfeed.engine.store_bridge import StoreBridge
from zarrfeed.engine.vlen import VlenReader
from zarrfeed.plan.order.order import make_order
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.schedule_options import ScheduleOptions
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo
from zarrfeed.report.explain import explain
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import Field, StoredField, VlenField
from zarrfeed.storage.chunks.location import StoreSource

N, BATCH = 45, 8
EPOCH = 3

Array = npt.NDArray[Any]

#: Names that need torch, and what importing one says then.
NEED_TORCH = (
    "Digest",
    "LookAhead",
    "ZarrDataLoader",
    "ZarrDataset",
    "ZarrIterableDataset",
    "audit",
    "patch_weights",
    "stats",
)


class Buffer:
    """A batch's buffer as an object of the array API, which is what NumPy takes."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # host memory


def values(dtype: str, shape: tuple[int, ...] = (N, 6, 10)) -> Array:
    """Return items that all differ as far as the dtype allows, so that none can stand for another."""
    kind = np.dtype(dtype).kind
    count = np.arange(np.prod(shape)).reshape(shape)
    return (count % 3 == 1) if kind == "b" else count.astype(dtype)


def create(
    store: Any, data: Array, zarr_format: Any = 3, chunks: tuple[int, ...] = (7, 4, 10), **options: Any
) -> zarr.Array[Any]:
    """Write an array."""
    array = zarr.create_array(
        store,
        shape=data.shape,
        chunks=chunks,
        dtype=data.dtype,
        zarr_format=zarr_format,
        **options,
    )
    array[:] = data
    return array


def zipped(folder: Path) -> zarr.Array[Any]:
    """Write an array to a zip file, and open it for reading."""
    with ZipStore(folder / "a.zip", mode="w") as store:
        create(store, values("i4"))
    array = zarr.open_array(ZipStore(folder / "a.zip", mode="r"), mode="r")
    assert isinstance(array, zarr.Array)
    return array


def with_hole(folder: Path) -> zarr.Array[Any]:
    """Write the first half of an array; the rest are fill values."""
    array = zarr.create_array(folder / "a", shape=(N, 3), chunks=(5, 3), dtype="f4", fill_value=1.5)
    array[: N // 2] = values("f4", (N // 2, 3))
    return array


#: What is read: writes an array below a folder, and opens it.
CASES: dict[str, Callable[[Path], zarr.Array[Any]]] = {
    "v2 blosc": lambda d: create(d / "a", values("f4"), 2, compressors=numcodecs.Blosc(cname="zstd", shuffle=2)),
    "v2 F order, big endian": lambda d: create(d / "a", values(">i2"), 2, order="F", compressors=numcodecs.Zlib()),
    "v2 general": lambda d: create(
        d / "a", values("i4"), 2, filters=[numcodecs.AsType("<i4", "<i4")], compressors=numcodecs.BZ2()
    ),
    "v3 zstd": lambda d: create(d / "a", values("f8"), compressors=ZstdCodec()),
    "v3 transpose, blosc": lambda d: create(
        d / "a",
        values("u2"),
        filters=TransposeCodec(order=(2, 0, 1)),
        serializer=BytesCodec(endian="big"),
        compressors=BloscCodec(),
    ),
    "v3 bool": lambda d: create(d / "a", values("bool"), compressors=None),
    "v3 sharded": lambda d: create(d / "a", values("i8"), chunks=(4, 3, 10), shards=(12, 6, 10)),
    "v3 sharded, general": lambda d: create(
        d / "a",
        values("i4"),
        chunks=(4, 3, 10),
        shards=(12, 6, 10),
        compressors=[{"name": "numcodecs.bz2", "configuration": {"level": 1}}],
    ),
    "v3 general": lambda d: create(
        d / "a", values("i4"), compressors=[{"name": "numcodecs.lzma", "configuration": {}}]
    ),
    "memory": lambda _: create(MemoryStore(), values("i4")),
    "memory, sharded": lambda _: create(MemoryStore(), values("i4"), chunks=(4, 3, 10), shards=(12, 6, 10)),
    "memory, v2 general": lambda _: create(MemoryStore(), values("i4"), 2, filters=[numcodecs.AsType("<i4", "<i4")]),
    "zip": zipped,
    "missing chunks": with_hole,
    "text": lambda d: create(d / "a", np.array([f"sample {i}" for i in range(N)], dtype="U9"), 3, (7,)),
}

#: Codecs that newer releases of zarr-python have: name -> chain of the array.
NEW_CODECS: dict[str, dict[str, Any]] = {
    "CastValue": {"filters": [{"name": "cast_value", "configuration": {"data_type": "float32"}}]},
    "ScaleOffset": {"filters": [{"name": "scale_offset", "configuration": {"offset": 5, "scale": 2}}]},
}


def read(source: Any) -> Iterator[tuple[npt.NDArray[np.int64], list[Any]]]:
    """Read an epoch, shuffled; yield batches: the samples that the plan names, and the values of each field."""
    fields, _ = zarrfeed.open(source).resolved.planned(room=0)
    order = make_order(fields.num_samples, fields.block_rows, None, shuffle=True, seed=5, mix=2, lanes=None)
    schedule = Schedule.make(fields, order, ScheduleOptions(batch_size=BATCH, num_threads=2, budget=64 << 20))
    rank_info = RankInfo()
    state = schedule.settle(EpochState(EPOCH), rank_info.consumer())
    plan = schedule.plan(state, rank_info.consumer())
    resources = schedule.resources(plan.order, rank_info, rank_info.consumer())
    page = explain(
        fields=fields,
        plan=plan,
        batch_size=BATCH,
        memory=resources.memory,
        max_open_batches=resources.max_open_batches,
        pinned=False,
    )
    assert str(N) in str(page)
    stored = [f for f in fields.fields if isinstance(f, StoredField)]
    vlen_readers = [
        VlenReader(f, cache_bytes=1 << 20, max_decodes=2, policy=Faults())
        for f in fields.fields
        if isinstance(f, VlenField)
    ]
    engine = core.Engine(
        [f.to_core() for f in stored] or [core.FieldSpec.index()],
        core.EngineOptions(
            batch_size=BATCH,
            num_threads=2,
            num_fetch_threads=resources.memory.num_fetch_threads,
            max_requests=max(1, resources.memory.max_requests),
        ),
    )
    feeder = StoreBridge(
        engine,
        {i: f.spec.source for i, f in enumerate(stored) if isinstance(f.spec.source, StoreSource) and f.spec.in_python},
    )
    samples = core.sample_order(plan.to_core())
    try:
        for reader in vlen_readers:
            reader.open(plan, resources.max_open_batches)
        engine.start(plan.to_core(), resources.max_open_batches)
        feeder.start()
        for begin in range(0, len(samples), BATCH):
            index = samples[begin : begin + BATCH]
            batch = engine.next()
            assert batch is not None
            rows, buffers, skipped = batch
            assert rows == len(index)
            assert skipped is None
            tensors = (in_numpy(f, b, rows) for f, b in zip(stored, buffers, strict=False))
            texts = (reader.take(index) for reader in vlen_readers)
            yield index, [next(texts) if isinstance(f, VlenField) else next(tensors) for f in fields.fields]
        assert engine.next() is None
    finally:
        feeder.stop_engine()


def in_numpy(field: Field, capsule: object, rows: int) -> Array:
    """Return the values of a batch's field."""
    assert isinstance(field, StoredField)
    buffer: Any = Buffer(capsule)  # NumPy types capsules as CapsuleType, which Python 3.11 has no name for
    flat: Array = np.from_dlpack(buffer)
    return flat.view(field.spec.dtype).reshape(rows, *field.sample_shape)


def check(name: str, source: Any, expected: list[Array]) -> None:
    """Compare an epoch with what zarr-python reads."""
    seen: list[int] = []
    for index, batch in read(source):
        seen += index.tolist()
        for got, wanted in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(got), wanted[index].astype(wanted.dtype.newbyteorder("=")), name)
    assert sorted(seen) == list(range(N)), name
    assert seen != list(range(N)), name


def check_cases(folder: Path) -> int:
    """Read every array of `CASES`, by the array and where it has one by its path; return how many."""
    for number, (name, make) in enumerate(CASES.items()):
        below = folder / str(number)
        below.mkdir()
        array = make(below)
        expected = np.asarray(array[:])
        check(name, array, [expected])
        if (below / "a").exists():
            check(name, below / "a", [expected])
            report = zarrfeed.verify(below / "a", progress_file=None)
            assert report.ok, report
    return len(CASES)


def check_new_codecs(folder: Path) -> int:
    """Read arrays with codecs that this zarr-python may have; return how many it has."""
    found = 0
    for name, chain in NEW_CODECS.items():
        if hasattr(zarr.codecs, name):
            try:
                array = create(folder / name, values("f8"), **chain)
            except ImportError:  # its library is an extra of zarr-python
                continue
            check(name, array, [np.asarray(array[:])])
            found += 1
    return found


def check_group(folder: Path) -> None:
    """Read two aligned arrays of a group."""
    group = zarr.create_group(folder / "group")
    data = {"x": values("f4"), "y": values("i8", (N,))}
    for name, chunks in (("x", (4, 6, 10)), ("y", (10,))):
        array = group.create_array(name, shape=data[name].shape, chunks=chunks, dtype=data[name].dtype)
        array[:] = data[name]
    check("group", folder / "group", list(data.values()))
    report = zarrfeed.verify(folder / "group", progress_file=None)
    assert report.ok
    assert len(report.arrays) == 2


def check_names() -> None:
    """Every public name is there, or says that it needs torch."""
    for name in zarrfeed.__all__:
        try:
            getattr(zarrfeed, name)
        except ImportError as error:
            message = str(error)
        else:
            message = ""
        assert message == (f"zarrfeed.{name} needs torch: pip install torch" if name in NEED_TORCH else "")


def check_checkpoints(folder: Path) -> None:
    """Write a file that is checked, and read it."""
    with checkpoint.writer(folder / "notes") as file:
        file.write(b"0123456789")
    with checkpoint.reader(folder / "notes") as reading:
        assert (reading.read(), reading.digest) == (b"0123456789", file.digest)


def main() -> None:
    """Run all checks, and print what was checked."""
    try:
        import torch  # noqa: F401
    except ImportError:
        pass
    else:
        sys.exit("torch can be imported here, so nothing is shown: run this where it is not installed")
    warnings.filterwarnings("ignore", message="Numcodecs codecs are not in the Zarr version 3")
    warnings.filterwarnings("ignore", message=".*does not have a Zarr V3 specification")
    with tempfile.TemporaryDirectory() as folder:
        check_names()
        count = check_cases(Path(folder)) + check_new_codecs(Path(folder))
        check_group(Path(folder))
        check_checkpoints(Path(folder))
    python = ".".join(map(str, sys.version_info[:3]))
    packages = ", ".join(f"{name} {version(name)}" for name in ("zarr", "numcodecs", "numpy"))
    print(f"without torch, Python {python}, {packages}: {count} arrays and a group read as zarr-python reads them")


if __name__ == "__main__":
    main()
