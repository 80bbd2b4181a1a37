"""The end of a pack: metadata, the manifest, and the path of the store.

Invariant: any process may do it, when all units are done, and several may at once; they write the same.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import zarr
from zarr.storage import MemoryStore

from zarrfeed.base.errors import printable
from zarrfeed.packing.sources.file_runs import GROUP, arrays_of_runs, manifest_of
from zarrfeed.packing.sources.source import Constant, Source, SourceField
from zarrfeed.packing.targets.chunk_lengths import CHUNK_BYTES
from zarrfeed.packing.targets.pack_layout import FieldLayout, SparseLayout
from zarrfeed.packing.targets.packed_values import fill_of
from zarrfeed.packing.work.digest import MODULUS, as_text
from zarrfeed.packing.work.job import PackJob, PartOfStore
from zarrfeed.packing.work.manifest import MANIFEST
from zarrfeed.packing.work.unit_worker import UnitWorker

#: Name of the order in the manifest; `RandomBijection` of another version would have another name.
_ORDER = "feistel-splitmix64-8"


def finish(worker: UnitWorker, job: PackJob, request: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Write what needs all units, and publish the store; return the manifest.

    Raises
    ------
    FileNotFoundError
        If another call finished the store meanwhile.
    OSError
        If something cannot be written.
    """
    records = [worker.folder.record("write", number) for number in range(len(job.units))]
    done = [record for record in records if record is not None]
    if len(done) < len(records):  # all units were done: another call finished the store and removed the folder
        raise FileNotFoundError(errno.ENOENT, "records of units are gone", str(worker.folder.path))
    digests = [sum(record.digests[field] for record in done) % MODULUS for field in range(len(job.layouts))]
    manifest = {
        "version": version,
        "source": {"kind": job.source.kind, "paths": [printable(path) for path in job.source.paths]},
        "samples": job.num_samples,
        "order": None if job.seed is None else {"name": _ORDER, "seed": str(job.seed)},
        "parts": [{"name": part.name, "begin": part.begin, "end": part.end} for part in job.parts],
        "digests": {layout.name: as_text(digest) for layout, digest in zip(job.layouts, digests, strict=True)},
        "request": dict(request),
        "identity": job.identity,
        "plan": job.to_json(),
    }
    for part in job.parts:
        _write_metadata(worker, job, part, manifest)
    return manifest


def _write_metadata(worker: UnitWorker, job: PackJob, part: PartOfStore, manifest: Mapping[str, Any]) -> None:
    """Write the metadata of a part and its constants: zarr-python makes them in memory."""
    source, length = worker.source, part.end - part.begin
    is_array = [layout.name for layout in job.layouts] == [""]
    runs = runs_of_part(source, job, part)
    own = {**manifest, **manifest_of(runs, inline=is_array)}
    made: dict[str, Any] = {}
    store = MemoryStore(made)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
        if is_array:
            attributes = {**source.fields[0].attributes, MANIFEST: own}
            _create(store, part.name, source.fields[0], job.layouts[0], length, attributes)
        else:
            zarr.create_group(store, path=part.name, attributes={**source.attributes, MANIFEST: own})
            groups: Mapping[str, Mapping[str, Any]] = getattr(source, "groups", {})
            for name, of_group in groups.items():
                zarr.create_group(store, path=f"{part.name}/{name}".strip("/"), attributes=dict(of_group))
            for f, layout in zip(source.fields, job.layouts, strict=True):
                if layout.sparse is not None:
                    _create_sparse(store, job, part, f, layout.sparse)
                    continue
                _create(store, f"{part.name}/{layout.name}", f, layout, length, f.attributes)
            if runs:
                zarr.create_group(store, path=f"{part.name}/{GROUP}".strip("/"))
            recorded = [Constant(f"{GROUP}/{name}", values) for name, values in runs.items()]
            for constant in (*source.constants, *recorded):
                _copy(store, f"{part.name}/{constant.name}", constant)
        if part.name:
            zarr.open_group(store, mode="a").attrs.put({MANIFEST: dict(manifest)})
    for key, content in made.items():
        worker.folder.write(f"store/{key}", [content.to_bytes()])


def runs_of_part(source: Source, job: PackJob, part: PartOfStore) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that record the files of the source in a part of the store, by their names."""
    if source.runs is None:
        return {}
    numbers = None if job.order is None else job.numbers(part.begin, part.end)
    return arrays_of_runs(source.runs, part.begin, part.end, numbers)


def _create(
    store: MemoryStore, path: str, f: SourceField, layout: FieldLayout, length: int, attributes: Mapping[str, Any]
) -> None:
    """Make the metadata of an array, whose chunks are there."""
    is_number = layout.kind == "number"
    dtype: Any = {"number": layout.item, "text": "string", "bytes": "variable_length_bytes"}[layout.kind]
    compressors = layout.encoding.zarr_compressors(layout.item.itemsize if is_number else 1)
    zarr.create_array(
        store,
        name=path.strip("/") or None,
        shape=(length, *layout.shape),
        dtype=dtype,
        chunks=(layout.chunk_rows, *layout.shape),
        shards=(layout.shard_rows, *layout.shape) if layout.chunks_per_shard > 1 else None,
        compressors=compressors or None,
        fill_value=fill_of(f, layout)[0] if is_number else "" if layout.kind == "text" else b"",
        attributes=dict(attributes),
        dimension_names=f.dims,
        zarr_format=3,
    )


def _create_sparse(store: MemoryStore, job: PackJob, part: PartOfStore, f: SourceField, sparse: SparseLayout) -> None:
    """Make the metadata of a sparse matrix, whose chunks are there, as AnnData has it."""
    length = part.end - part.begin
    attributes = {**f.attributes, "shape": [length, sparse.columns]}
    zarr.create_group(store, path=f"{part.name}/{f.name}".strip("/"), attributes=attributes)
    count = sparse.elements[job.parts.index(part)]
    for layout, items in ((sparse.data, count), (sparse.indices, count), (sparse.indptr, length + 1)):
        _create(store, f"{part.name}/{layout.name}", SourceField(layout.name, layout.item), layout, items, {})


def _copy(store: MemoryStore, path: str, constant: Constant) -> None:
    values = constant.values
    made: Any = zarr.create_array(
        store,
        name=path.strip("/"),
        shape=values.shape,
        dtype="string" if values.dtype == object else values.dtype,
        chunks=_chunks_of(values),
        attributes=dict(constant.attributes),
        dimension_names=constant.dims,
    )
    if values.size:
        made[...] = values


def _chunks_of(values: npt.NDArray[Any]) -> Any:
    """Return the chunks of an array without samples: all of it, but of one axis no more than `CHUNK_BYTES`."""
    if values.ndim == 1 and values.dtype != object:
        return (max(1, min(len(values), CHUNK_BYTES // max(1, values.dtype.itemsize))),)
    return tuple(max(1, length) for length in values.shape) or "auto"
