"""Random stores, arrays and selections: a case is drawn from a generator alone."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import zarr
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, ZipStore

from tests.faults.harness.oracle import ALL_CODECS, CODECS, DTYPES, GENERAL_CODECS, AnyArray, Layout, read_all
from tests.faults.soak.case import Case, FaultyStore, FieldOracle, Int64, StoredArray

#: zarr-python takes about a millisecond to write each.
_MOST_CHUNKS = 60
_MOST_BYTES = 2 << 20

#: Stored -> delivered, where no value is lost or each is rounded once.
_CONVERSIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("u1", "i1", "u2", "i2", "i4", "u4", "f8"), ("float32", "float64")),
    "f4": ("float64", "float16"),
    "f2": ("float32", "float64"),
}
_NORMALIZED = ("u1", "i1", "u2", "i2", "f4")


def draw_case(r: Random, directory: Path) -> Case:
    """Make a store in an empty directory."""
    kind = r.choices(("local", "memory", "zip", "faulty"), (5, 2, 1, 2))[0]
    store = _make_store(kind, directory)
    n = r.choice((r.randint(1, 8), r.randint(9, 80), r.randint(9, 80), r.randint(81, 300)))
    how = r.choices(("array", "mapping", "group"), (5, 3, 2))[0]
    names = ["x"] if how == "array" else ["x", "y", "z"][: r.randint(1, 3)]
    axis = r.choices((0, 1, -1), (8, 1, 1))[0]
    fields: dict[str, FieldOracle] = {}
    about: dict[str, Any] = {"store": kind, "samples": how, "n": n, "sample_axis": axis}
    if how == "group":
        zarr.create_group(store, path="samples", zarr_format=3)
    for name in names:
        fields[name] = _draw_array(r, store, f"samples/{name}", n, axis, about, version=3 if how == "group" else None)
    targets = _draw_targets(r, store, n, fields, about)
    if kind == "zip":
        store.close()
        store = ZipStore(directory / "store.zip", mode="r")
    opened: dict[str, Any] = {name: _open(kind, store, f"samples/{name}", directory) for name in names}
    samples: Any = opened["x"] if how == "array" else opened
    if how == "group":
        samples = (
            directory / "store" / "samples" if kind == "local" else zarr.open_group(store, path="samples", mode="r")
        )
    if isinstance(targets, str):
        targets = _open(kind, store, targets, directory)
    options: dict[str, Any] = {"sample_axis": axis}
    part = "samples" if how == "array" else None
    if part:
        fields = {("samples" if name == "x" else name): f for name, f in fields.items()}
    for oracle in fields.values():
        if oracle.stored is not None:
            oracle.stored.store = store
    options |= _draw_conversions(r, fields, about)
    chosen = _draw_windows(r, n, fields, options)
    chosen = _draw_selection(r, n, fields, chosen, options)
    about["options"] = options
    sharded = part is not None and "shards" in about["samples/x"]
    return Case(
        samples,
        targets,
        part,
        fields,
        options,
        chosen,
        n,
        faulty=store if isinstance(store, FaultyStore) else None,
        local=store if kind == "local" and isinstance(store, LocalStore) else None,
        sharded=sharded,
        about=about,
    )


def _make_store(kind: str, directory: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    if kind == "zip":
        return ZipStore(directory / "store.zip", mode="w")
    local = LocalStore(directory / "store")
    return FaultyStore(local) if kind == "faulty" else local


def _open(kind: str, store: Store, name: str, directory: Path) -> Any:
    if kind == "local":
        return directory / "store" / name
    return zarr.open_array(store, path=name, mode="r")


def draw_layout(r: Random, n: int, axis: int, version: int | None = None) -> Layout:
    """Draw how an array of `n` samples is stored."""
    axes = r.choice((0, 1, 1, 2, 2, 3))
    if axis == 1:
        axes = max(1, axes)
    sample = [r.randint(1, 9) for _ in range(axes)]
    dtype = r.choice(DTYPES)
    if sample and r.random() < 0.15:  # rows of 4 KiB and more have a path of their own
        sample[-1] = r.randint(600, 2400)
        sample[:-1] = [1] * (axes - 1)
        dtype = r.choice(("u1", "i2", "f4", "f8"))
    shape = [*sample]
    shape.insert(axis if axis >= 0 else axes, n)
    chunks = [r.choice((1, extent, r.randint(1, extent + 2))) for extent in shape]
    at = axis % len(shape)
    chunks[at] = r.choice((r.randint(1, min(n, 16)), r.randint(1, min(n, 16)), r.randint(1, n), n + 3))
    while math.prod(-(-s // c) for s, c in zip(shape, chunks, strict=True)) > _MOST_CHUNKS:
        worst = max(range(len(shape)), key=lambda a: -(-shape[a] // chunks[a]))
        chunks[worst] *= 2
    zarr_format: Any = version or r.choice((2, 3))
    codecs = CODECS if r.random() < 0.85 else GENERAL_CODECS
    names = [name for name, c in codecs.items() if (c.v2 if zarr_format == 2 else c.v3) is not None]
    permuted = list(range(len(shape)))
    r.shuffle(permuted)
    return Layout(
        zarr_format=zarr_format,
        shape=tuple(shape),
        chunks=tuple(chunks),
        dtype=dtype,
        big_endian=r.random() < 0.2,
        codec=r.choice(names),
        sample_axis=axis,
        order=r.choice("CCF") if zarr_format == 2 else "C",
        transposes=(tuple(permuted),) if zarr_format == 3 and r.random() < 0.2 else (),
        keys=("v2" if zarr_format == 2 else r.choice(("default", "v2")), r.choice("./")),
        period=r.choice((None, 3, 24)),
    )


def _draw_array(
    r: Random, store: Store, name: str, n: int, axis: int, about: dict[str, Any], version: int | None = None
) -> FieldOracle:
    """Write an array, leave some of its chunks out, and return what zarr-python reads."""
    layout = draw_layout(r, n, axis, version)
    options: dict[str, Any] = {"name": name, "config": {"write_empty_chunks": True}}
    step, shards = layout.chunks[axis], None
    if layout.zarr_format == 3 and r.random() < 0.35:
        shards = tuple(c * r.randint(1, 3) for c in layout.chunks)
        options["shards"] = {"shape": shards, "index_location": r.choice(("start", "end"))}
        step = shards[axis]
    array = layout.but(codec=ALL_CODECS[str(layout.codec)]).write(store, **options)
    stored = StoredArray(store, name, axis % len(layout.shape), step, shards is not None)
    about[name] = f"{layout}{'' if shards is None else f' in shards {shards}'}"
    if not isinstance(store, ZipStore) and r.random() < 0.25:
        for key in stored.list_keys():
            if r.random() < 0.3:
                stored.delete(key)
                stored.has_holes = True
    return FieldOracle(read_all(array, sample_axis=axis), stored=stored)


def _draw_targets(r: Random, store: Store, n: int, fields: dict[str, FieldOracle], about: dict[str, Any]) -> Any:
    """Add targets to the fields; return them, or their name in the store, or None."""
    kind = r.choices((None, "stored", "memory", "tensor", "text"), (4, 3, 1, 1, 1))[0]
    if kind is None:
        return None
    if kind == "stored":
        fields["targets"] = _draw_array(r, store, "targets", n, 0, about)
        return "targets"
    about["targets"] = kind
    if kind == "text":
        rows = [f"sample {i} é" for i in range(n)]
        array = zarr.create_array(
            store, name="targets", shape=(n,), chunks=(r.randint(1, n),), dtype=str, zarr_format=r.choice((2, 3))
        )
        array[...] = np.array(rows, dtype=object)
        fields["targets"] = FieldOracle(rows)
        return "targets"
    values: AnyArray = np.arange(n, dtype="i8")[:, None] * 7 + np.arange(r.randint(1, 4))
    fields["targets"] = FieldOracle(values)
    return values if kind == "memory" else torch.from_numpy(values.copy())


def _draw_conversions(r: Random, fields: dict[str, FieldOracle], about: dict[str, Any]) -> dict[str, Any]:
    """Let one field be converted, in a quarter of the cases."""
    if r.random() > 0.25:
        return {}
    name = r.choice(sorted(fields))
    oracle = fields[name]
    if not isinstance(oracle.rows, np.ndarray) or oracle.rows.dtype.str[1:] not in _CONVERSIONS:
        return {}
    stored = oracle.rows.dtype.str[1:]
    oracle.exact = False
    with np.errstate(all="ignore"):
        if stored in _NORMALIZED and r.random() < 0.5:
            mean, std = r.choice((0.0, 0.5, -3.0)), r.choice((2.0, 3.0, 0.25))
            oracle.rows = (oracle.rows.astype("f4") - np.float32(mean)) / np.float32(std)
            return {"normalize": {name: (mean, std)}}
        to = r.choice(_CONVERSIONS[stored])
        oracle.rows = oracle.rows.astype(to)
    about["dtype"] = to
    return {"dtype": {name: to}}


def _draw_windows(r: Random, n: int, fields: dict[str, FieldOracle], options: dict[str, Any]) -> Int64:
    """Let fields have windows, in a sixth of the cases; return the samples that lack no row."""
    everything = np.arange(n)
    names = [name for name, f in fields.items() if isinstance(f.rows, np.ndarray)]
    if r.random() > 1 / 6 or n < 4:
        return everything
    reach = min(4, n // 2)
    offsets: dict[str, Any] = {}
    for name in r.sample(names, r.randint(1, len(names))):
        many = tuple(r.sample(range(-reach, reach + 1), r.randint(1, reach)))
        offsets[name] = r.choice((many, many, r.randint(-reach, reach)))
    every = [0, *(int(o) for window in offsets.values() for o in np.atleast_1d(window))]
    ends = [n]
    if r.random() < 0.4:
        ends = [*sorted(r.sample(range(1, n + 1), min(3, n))), n]
    segment_end = np.array(ends)[np.searchsorted(ends, everything, side="right")]
    segment_begin = np.array([0, *ends])[np.searchsorted(ends, everything, side="right")]
    whole = (everything + min(every) >= segment_begin) & (everything + max(every) < segment_end)
    if not whole.any():
        return everything
    for name, window in offsets.items():
        fields[name].offsets = window
    options["offsets"] = offsets
    if len(ends) > 1:
        options["segment_ends"] = sorted(set(ends))
    return np.flatnonzero(whole)


def _draw_selection(r: Random, n: int, fields: dict[str, FieldOracle], chosen: Int64, options: dict[str, Any]) -> Int64:
    """Select some samples, in a third of the cases; return which are left.

    Windows may then read every row, or only selected rows: of a slice all rows between its bounds, whatever its step.
    """
    kind = r.choices((None, "slice", "indices", "mask"), (6, 1, 1, 1))[0]
    if kind is None:
        return chosen
    select: Any
    if kind == "slice":
        select = slice(r.randint(-n, n), r.choice((None, r.randint(0, n))), r.choice((None, 1, 2, 3, -1)))
        selected = np.arange(n)[select]
        start, stop, step = select.indices(n)
        readable = np.arange(start, stop) if step > 0 else np.arange(stop + 1, start + 1)
    else:
        selected = np.array(r.sample(range(n), r.randint(1, n)))
        readable = selected
        mask = np.zeros(n, dtype=bool)
        mask[selected] = True
        select = mask if kind == "mask" else selected
    left = np.intersect1d(chosen, selected)
    window_rows = r.choice(("all", "selected")) if "offsets" in options else None
    if window_rows == "selected":
        offsets = np.unique([0, *(int(o) for f in fields.values() for o in np.atleast_1d(f.offsets or 0))])
        left = left[np.isin(left[:, None] + offsets, readable).all(axis=1)]
    if not len(left):
        return chosen
    if window_rows is not None:
        options["window_rows"] = window_rows
    options["select"] = select
    return left
