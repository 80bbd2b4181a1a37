"""`pack`: any data as the Zarr store that trains fastest, by one process or many, provably whole."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, get_args

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.base.executors import open_executor, run_all
from zarrfeed.base.units import format_bytes, parse_bytes
from zarrfeed.base.validate import check_choice, check_counts, check_flags, check_int
from zarrfeed.metadata.face.data import Data
from zarrfeed.packing.pack_report import PackProgress, PackReport
from zarrfeed.packing.sources.arrays.data_call import call_of_data
from zarrfeed.packing.sources.detect import call_of
from zarrfeed.packing.sources.file_runs import runs_note
from zarrfeed.packing.sources.source import FilesAre, Source, SourceCall, SourceOptions, refuse_stale
from zarrfeed.packing.targets.pack_layout import FieldLayout, RequestedLayout, plan_layout, unit_rows
from zarrfeed.packing.verify_pack import Proof, prove
from zarrfeed.packing.work.finish import finish
from zarrfeed.packing.work.job import PackJob, cut_parts, share_of
from zarrfeed.packing.work.manifest import read_manifest
from zarrfeed.packing.work.sparse_rows import with_elements
from zarrfeed.packing.work.unit_worker import UnitWorker, do_unit, drop_worker, make_worker
from zarrfeed.packing.work.work_folder import WorkFolder
from zarrfeed.spec.description.error_policy import DEFAULT_TIMEOUT_S
from zarrfeed.storage.access.access import ZarrFormat

Paths: TypeAlias = "str | PathLike[str] | Sequence[str | PathLike[str]]"
#: Decoded bytes of a unit of the first pass of a shuffled pack.
_DEAL_BYTES = 128 << 20


def pack(
    source: Paths | Data,
    out: str | PathLike[str],
    *,
    kind: str | None = None,
    variables: Sequence[str] | None = None,
    sample_dim: str | None = None,
    sample_axis: int | None = None,
    files_are: FilesAre | None = None,
    targets: str | PathLike[str] | None = None,
    resize: tuple[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    sample_chunk: int | None = None,
    shard: int | str | None = "64MiB",
    codec: str | Mapping[str, str] | None = None,
    dtype: str | Mapping[str, str] | None = None,
    shuffle: int | None = None,
    split: Sequence[float] | Mapping[str, float] | None = None,
    jobs: int | None = None,
    executor: Executor | str | None = None,
    part: tuple[int, int] | None = None,
    resume: bool = False,
    verify: bool = False,
    on_progress: Callable[[PackProgress], None] = lambda _: None,
) -> PackReport:
    """Write samples of any source as one Zarr store that trains fast: few large shards of small chunks.

    The work is divided into units that do not depend on each other. Each unit writes whole stored objects to a folder
    beside the store's path, where an object gets its name when it is complete. So `resume` continues a run that was
    killed, several processes can share the work, and the store appears at its path when all of it is there.

    Parameters
    ----------
    source
        A path, a URL or a pattern, or several of them, whose samples follow each other: Zarr stores; NetCDF, GRIB or
        HDF5 files; `.npy` and `.npz`; Parquet, Arrow or Feather files; a folder of images, whose folders are classes;
        WebDataset shards (tar); AnnData, `.h5ad` or Zarr, which is packed as AnnData. Or a `Data`: its samples and
        items, as `sel`, `isel`, `select` and `split` chose them, with their coordinates.
    out
        Path of the store, a local directory that does not exist.
    kind
        The kind of source: "zarr", "xarray", "hdf5", "npy", "arrow", "images", "webdataset" or "anndata". None: the
        kind follows from the name and the content.
    variables
        Names of the arrays or columns that are packed; for AnnData paths, such as "X" and "obs/cell_type". None: all.
    sample_dim, sample_axis
        The dimension or axis that counts samples, by its name or its number; it becomes the first axis. None: the one
        that the source names, else axis 0.
    files_are
        The role of several files of NumPy, HDF5 or NetCDF: each is one sample ("samples"), or a run of samples along
        their axis ("runs"), such as a recording. None: the only possible role, or the one that `sample_axis` or
        `sample_dim` implies; files that could have either role are refused. Names and ends of files are stored in the
        group `meta`.
    targets
        A CSV or JSON file with further values for each image, for a folder of images.
    resize
        (height, width) to which encoded images are decoded and resized: uint8 of shape (samples, 3, height, width).
        None: the encoded bytes are kept as they are.
    storage_options
        Options of the stores of URLs, such as credentials.
    zarr_format
        2 or 3: the only format of Zarr stores that is looked for. None: format 3 before 2.
    timeout
        Seconds that a read of a Zarr store may take, retries included.
    sample_chunk
        Samples of a chunk. None: as `zarrfeed info --advise` chooses it, about 1 MiB of the largest array.
    shard
        Decoded bytes of a shard of the largest array, or text such as "64MiB". None: each chunk is an object by itself.
    codec
        Compression: "none", or compressor-level-shuffle, such as "zstd-3-shuffle", "lz4", "plain-zstd-5". Or a mapping
        of names of arrays to these. "auto": the fastest for these samples, by timing 8 codecs, for about half a minute.
        None: "lz4" for numbers; encoded images are kept as they are.
    dtype
        Dtype of arrays of floats, such as "float16"; or a mapping of names of arrays to dtypes. A value that the dtype
        cannot hold is an error. None: as stored.
    shuffle
        A seed: samples are packed in a random order that depends on it alone. A source that is read in large pieces is
        dealt to temporary files first, which need as much room as its decoded samples. None: the order of the source.
    split
        Shares of the samples that become groups of the store, in the packed order: (0.9, 0.1) for "train" and "val", a
        third one is "test"; or a mapping of names to shares. Without `shuffle`, the last samples are those of the last
        group, as time series want it.
    jobs
        Units that are done at once. None: one for each core, or as many as `executor` has workers.
    executor
        The workers of the units: an executor of `concurrent.futures`' kind (of Dask, MPI, Parsl, processes),
        "dask://HOST:PORT", "ray" or "ray://HOST:PORT". All workers must see the paths. None: threads.
    part
        (i, n): this call does the units i, i + n, ...; other calls do the rest, at once or later, such as the tasks of
        a Slurm array. The call that finds all units done finishes the store.
    resume
        True: go on with a run that was interrupted, with the same arguments. Units that are done are not done again. A
        store that is complete already is left as it is.
    verify
        True: read the source and the packed store at the end, and compare digests of their samples. The digests cover
        each sample with its number, and do not depend on the order.
    on_progress
        Function that is called with the progress after each unit.

    Returns
    -------
    The report of the written store.

    Raises
    ------
    ConfigError
        For an argument or a source that cannot work; if another call works on `out`, unless both do parts; or if an
        unfinished run is there that is not to be resumed.
    FileExistsError
        If something else is at `out`.
    CorruptChunkError, StoreReadError
        If the source cannot be read; with `verify`, if its consolidated metadata are older than its arrays.
    OSError
        If a file cannot be written. What was written is kept for `resume`.

    Examples
    --------
    >>> import numpy as np, tempfile, zarrfeed
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/x.npy", np.arange(1000.0).reshape(100, 10))
    >>> report = zarrfeed.pack(f"{folder}/x.npy", f"{folder}/x.zarr", shuffle=7, verify=True)
    >>> report.proof.ok, len(zarrfeed.open(f"{folder}/x.zarr"))
    (True, 100)
    >>> some = zarrfeed.open(f"{folder}/x.zarr", variables=["data"]).select(slice(50)).isel({1: [3, 0]})
    >>> zarrfeed.pack(some, f"{folder}/some.zarr").complete, zarrfeed.open(f"{folder}/some.zarr").fields[0].shape
    (True, (2,))
    """
    check_counts(sample_chunk=sample_chunk, jobs=jobs)
    check_flags(resume=resume, verify=verify)
    files_are = _checked_reading(files_are, sample_axis, sample_dim)
    _check_part(part)
    path = _checked_out(out)
    if shuffle is not None:
        check_int("shuffle", shuffle, 0, 2**64 - 1)
    options = SourceOptions(
        variables=None if variables is None else tuple(variables),
        sample_dim=sample_dim,
        sample_axis=sample_axis or 0,
        files_are=files_are,
        targets=None if targets is None else str(targets),
        size=None if resize is None else (int(resize[0]), int(resize[1])),
        storage_options=storage_options,
        timeout=timeout,
        zarr_format=zarr_format,
    )
    if isinstance(source, Data):
        call = call_of_data(source, kind, options, executor)
    else:
        paths = [source] if isinstance(source, str | PathLike) else list(_checked_paths(source))
        call = call_of([str(one) for one in paths], kind, options)
    requested = RequestedLayout(
        sample_chunk,
        0 if shard is None else parse_bytes(shard, "shard"),
        {"": codec} if isinstance(codec, str) else dict(codec or {}),
        {"": dtype} if isinstance(dtype, str) else dict(dtype or {}),
    )
    run = _Run(path, call, requested, shuffle, _named_shares(split))
    with run.alone(shares=part is not None):
        job, opened = run.job(resume=resume, joins=part is not None, proves=verify)
        make_worker(job, opened)
        try:
            with open_executor(executor, jobs) as (pool, at_once):
                return run.all(job, pool, at_once, part=part, verify=verify, on_progress=on_progress)
        finally:
            drop_worker(job)


def _checked_paths(source: Any) -> Iterable[str | PathLike[str]]:
    """Return several paths.

    Raises
    ------
    ConfigError
        If they are none.
    """
    if not isinstance(source, Iterable):
        raise ConfigError(
            f"source: got a {type(source).__name__}, must be a path, a URL, several of them, or a zarrfeed.Data"
        )
    return source


class _Run:
    """One call of `pack`."""

    def __init__(
        self,
        out: Path,
        call: SourceCall,
        requested: RequestedLayout,
        seed: int | None,
        shares: Mapping[str, float] | None,
    ) -> None:
        self._out, self._call, self._requested, self._seed, self._shares = out, call, requested, seed, shares
        self._folder = WorkFolder(out)
        self.request: dict[str, Any] = {
            "variables": None if call.options.variables is None else list(call.options.variables),
            "sample_dim": call.options.sample_dim,
            "sample_axis": call.options.sample_axis,
            "targets": call.options.targets,
            "resize": call.options.size,
            "sample_chunk": requested.chunk_rows,
            "shard": requested.shard_bytes,
            "codec": dict(requested.codecs or {}),
            "dtype": dict(requested.dtypes or {}),
            "shuffle": seed,
            "split": None if shares is None else dict(shares),
            **({} if call.options.files_are is None else {"files_are": call.options.files_are}),
        }

    @contextmanager
    def alone(self, *, shares: bool) -> Iterator[None]:
        """Work on the output alone, or beside calls that do other parts of it.

        Raises
        ------
        ConfigError
            If another call works on it.
        """
        try:
            self._folder.hold(shared=shares)
            yield
        finally:
            self._folder.release()

    def job(self, *, resume: bool, joins: bool, proves: bool) -> tuple[PackJob, Source]:
        """Return the job, which continues a run that began or is new, and the opened source.

        Raises
        ------
        ConfigError, FileExistsError
            If there is such a run, or a store, and it is not to be gone on with.
        """
        source = self._call.open()
        if proves:
            refuse_stale(source)
        identity = self._identity(source)
        known = self._folder.plan()
        finished = read_manifest(self._out)
        if finished is not None and finished.get("identity") == identity and (resume or joins):
            self._folder.forget()
            return PackJob.from_json(finished["plan"], self._call, str(self._out)), source
        if self._out.exists() or self._out.is_symlink():
            raise FileExistsError(errno.EEXIST, "exists: packing makes a new store", str(self._out))
        if known is None:
            job = self._plan(source, identity)
            self._check_room(job, source)
            known = self._folder.make(
                job.to_json(), shared=joins
            )  # perhaps another part's, which began at the same time
        elif not resume and not joins:
            raise ConfigError(
                f"{self._folder.path}: has an unfinished run; resume it (--resume), or delete the folder to begin anew"
            )
        job = PackJob.from_json(known, self._call, str(self._out))
        if job.identity != identity:
            raise ConfigError(
                f"{self._folder.path}: an unfinished run is there, of another source or with other arguments; "
                "delete the folder to begin anew"
            )
        return job, source

    def all(
        self,
        job: PackJob,
        pool: Executor,
        at_once: int,
        *,
        part: tuple[int, int] | None,
        verify: bool,
        on_progress: Callable[[PackProgress], None],
    ) -> PackReport:
        """Do the units that are this call's, and finish the store if all are done."""
        if read_manifest(self._out) is None:
            try:
                for stage, count in job.stages.items():
                    # the part that finds all units written gathers all: the others may be gone
                    of_part = None if stage == "gather" else part
                    done = self._do(job, stage, count, pool, at_once, of_part, on_progress)
                    if done < count:
                        return self._report(job, done if stage == "write" else 0)
                finish_store(make_worker(job), job, self.request, self._out)
            except FileNotFoundError:
                if not _is_finished(self._out, job):  # another part, which did the last units, was not faster
                    raise
        proof = None
        if verify:
            proof = prove(job, pool, at_once, lambda done, of: on_progress(PackProgress("verify", done, of)))
        return self._report(job, len(job.units), complete=True, proof=proof)

    def _do(
        self,
        job: PackJob,
        stage: str,
        count: int,
        pool: Executor,
        at_once: int,
        part: tuple[int, int] | None,
        on_progress: Callable[[PackProgress], None],
    ) -> int:
        """Do the units of one stage; return how many of all are done."""
        done = self._folder.done(stage, count)
        left = [number for number in share_of(range(count), part) if number not in done]
        on_progress(PackProgress(stage, len(done), count))
        for _, number, _ in run_all(pool, partial(do_unit, job, stage), left, at_once):
            done.add(number)
            on_progress(PackProgress(stage, len(done), count))
        return len(done) if part is None else len(self._folder.done(stage, count))

    def _plan(self, source: Source, identity: str) -> PackJob:
        measured: dict[str, str] = {}
        if "auto" in (self._requested.codecs or {}).values():
            from zarrfeed.packing.targets.measured_codecs import (
                measure_codecs,  # which needs torch, and a second to import it
            )

            measured = measure_codecs(source, self._requested)
        parts = cut_parts(source.num_samples, self._shares)
        layouts = plan_layout(source.fields, source.num_samples, self._requested, measured)
        layouts = with_elements(layouts, source.fields, parts, self._seed)
        step = unit_rows(layouts, 1, source.num_samples, shuffled=True)
        deals = self._seed is not None and source.block_samples > 1
        each = max(1, sum(f.mean_bytes for f in source.fields))
        blocks = max(1, _DEAL_BYTES // (each * source.block_samples))
        return PackJob(
            source=self._call,
            fingerprint=source.fingerprint,
            out=str(self._out),
            identity=identity,
            num_samples=source.num_samples,
            layouts=layouts,
            parts=parts,
            step_rows=step,
            unit_rows=step
            if self._seed is not None
            else unit_rows(layouts, source.block_samples, source.num_samples, shuffled=False),
            seed=self._seed,
            source_rows=blocks * source.block_samples if deals else 0,
        )

    def _identity(self, source: Source) -> str:
        asked = {"kind": self._call.kind, "fingerprint": source.fingerprint, "request": self.request}
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def _check_room(self, job: PackJob, source: Source) -> None:
        """Raise OSError if the file system has no room for the temporary files of shuffling and of sparse matrices."""
        needed = source.num_samples * sum(
            f.mean_bytes * ((job.source_rows > 0) + (layout.sparse is not None))
            for f, layout in zip(source.fields, job.layouts, strict=True)
        )
        free = shutil.disk_usage(self._out.parent).free
        if needed > free:
            raise OSError(
                errno.ENOSPC,
                f"packing needs {format_bytes(needed)} for temporary files, and {format_bytes(free)} are free",
                str(self._out.parent),
            )

    def _report(self, job: PackJob, done: int, *, complete: bool = False, proof: Proof | None = None) -> PackReport:
        lines = tuple(
            f"{layout.name or 'the array'}: {_items_of(layout)}, chunks of "
            f"{layout.chunk_rows} samples, "
            + ("no shards" if layout.chunks_per_shard == 1 else f"shards of {layout.shard_rows}")
            + f", {layout.encoding}"
            for layout in job.layouts
        )
        source = make_worker(job).source
        notes = (*source.notes, *runs_note(source.runs, shuffled=job.seed is not None))
        return PackReport(printable(self._out), job.num_samples, len(job.units), done, complete, lines, proof, notes)


def _items_of(layout: FieldLayout) -> str:
    if layout.sparse is not None:
        return f"csr_matrix of {layout.item}"
    return str(layout.item) if layout.kind == "number" else layout.kind


def finish_store(worker: UnitWorker, job: PackJob, request: Mapping[str, Any], out: Path) -> None:
    """Finish a store whose units are all done, and give it its path.

    Raises
    ------
    OSError
        If something cannot be written; nothing is at the path then.
    """
    try:
        finish(worker, job, request, version("zarrfeed"))
        worker.folder.publish(out)
    except (FileNotFoundError, FileExistsError):
        if not _is_finished(out, job):
            raise
        worker.folder.forget()  # another process, which found all units done as well, was faster


def _is_finished(out: Path, job: PackJob) -> bool:
    finished = read_manifest(out)
    return finished is not None and finished.get("identity") == job.identity


def _check_part(part: tuple[int, int] | None) -> None:
    if part is None:
        return
    if not isinstance(part, tuple) or len(part) != 2:
        raise ConfigError(f"part = {part!r}, must be two numbers (i, n)")
    check_int("n of part", part[1], 1)
    check_int("i of part", part[0], 0, part[1] - 1)


def _checked_reading(files_are: FilesAre | None, axis: int | None, dim: str | None) -> FilesAre | None:
    """Return the meaning of files; "runs", where an axis is named."""
    if files_are is not None:
        check_choice("files_are", files_are, get_args(FilesAre))
    if files_are == "samples" and (axis, dim) != (None, None):
        named = f"sample_axis = {axis}" if dim is None else f"sample_dim = {dim!r}"
        raise ConfigError(
            f"files_are = 'samples' and {named}: give one of them, as files that are samples have no axis of samples"
        )
    return "runs" if axis is not None else files_are


def _checked_out(out: str | PathLike[str]) -> Path:
    if not isinstance(out, str | PathLike) or "://" in str(out):
        raise ConfigError(f"out = {out!r}, must be the path of a local directory")
    path = Path(out).absolute()
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "is no directory; the store is made in this one", str(path.parent))
    return path


def _named_shares(split: Sequence[float] | Mapping[str, float] | None) -> dict[str, float] | None:
    if split is None or isinstance(split, Mapping):
        return None if split is None else dict(split)
    usual = {1: ("train",), 2: ("train", "val"), 3: ("train", "val", "test")}
    names = usual.get(len(split))
    if names is None:
        raise ConfigError(f"split: {len(split)} shares have no usual names; give a mapping of names to shares")
    return dict(zip(names, split, strict=True))
