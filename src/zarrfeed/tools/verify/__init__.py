"""`verify`: read and decode every chunk of a store, and report bad and missing ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import zarr

from zarrfeed.base.errors import ConfigError, ProgressFileError, ZarrfeedError
from zarrfeed.base.executors import open_executor
from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_counts, check_flags
from zarrfeed.metadata.array.open import check_storage_options
from zarrfeed.metadata.face.data import Data
from zarrfeed.spec.description.error_policy import DEFAULT_RETRIES, DEFAULT_TIMEOUT_S, Faults
from zarrfeed.storage.access.access import StoreAccess, ZarrFormat
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.portable import as_location
from zarrfeed.storage.chunks.chunk_keys import keys_of, misplaced_key
from zarrfeed.tools.verify.chunk_ranges import Shared, describe_store, slices_in_order
from zarrfeed.tools.verify.chunks import ArrayCheck, Box, prepare_check
from zarrfeed.tools.verify.find_arrays import Found, find_arrays
from zarrfeed.tools.verify.links import links_out
from zarrfeed.tools.verify.progress_file import Checked, ProgressFile, default_path, fingerprint
from zarrfeed.tools.verify.selected_chunks import find_selected
from zarrfeed.tools.verify.verify_report import MOST_LISTED, ArrayReport, Cause, Finding, VerifyReport

__all__ = ["ArrayReport", "Finding", "Progress", "VerifyReport", "verify"]

#: Reads of a device are waited for by threads, so there are some even where there are few cores.
_LEAST_THREADS = 8
#: So much work is lost if the process is killed.
_SAVE_EVERY_S = 5.0


@dataclass(frozen=True)
class Progress:
    """Progress of `verify`: the number of read chunks that were checked, of all arrays, and the findings so far."""

    array: str
    done: int
    total: int
    bad: int
    missing: int
    stored_bytes: int


def verify(
    store: str | Path | zarr.Array[Any] | zarr.Group | Data | Any,
    arrays: Sequence[str] | None = None,
    *,
    missing: Literal["count", "error"] = "count",
    links: Literal["count", "error"] = "count",
    num_threads: int | None = None,
    memory_budget: int | str = "1GiB",
    executor: Executor | str | None = None,
    progress_file: str | Path | None = None,
    restart: bool = False,
    retries: int = DEFAULT_RETRIES,
    timeout: float = DEFAULT_TIMEOUT_S,
    storage_options: Mapping[str, Any] | None = None,
    zarr_format: ZarrFormat | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_message: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Read and decode every chunk of a store, and report which chunks are bad or missing.

    Parameters
    ----------
    store
        An array, or a group, whose groups are checked as well: a path, a URL, an open `zarr.Array` or `zarr.Group`, or
        a store (of zarr-python, of obstore, a mapper of fsspec). Or a `Data`: of its arrays, the chunks that have a
        selected sample and a selected item are checked, and no others.
    arrays
        Paths of the arrays or groups below `store` that are checked, such as ["train", "test/x"]. None: all.
    missing
        "count" counts a chunk that the store lacks, which reads as the fill value; "error" makes `ok` False as well.
    links
        "count" counts symbolic links that lead out of a local store; "error" makes `ok` False as well.
    num_threads
        Number of threads that read and decode. None: one for each core, and at least eight. With an executor it is the
        number of threads of a task, and None is two.
    memory_budget
        Bytes, or text such as "2GiB", for the chunks that are being read or decoded. With an executor, for each task.
    executor
        The executor that checks the chunks, in tasks of up to 256 MiB: an executor of `concurrent.futures`' kind (of
        Dask, MPI, Parsl, processes), "dask://HOST:PORT", "ray" or "ray://HOST:PORT". All workers must be able to open
        `store`, so arrays in memory are refused. The report is the same. None: threads of this process.
    progress_file
        Path of a file that records what was checked, so that the next call continues a run that was interrupted or
        killed. The file is removed at the end. None: no file. "default": one for each store below `$XDG_STATE_HOME`.
    restart
        If True, begin from the start, whatever the progress file says.
    retries, timeout
        Number of times that a read is retried after an error that may pass, and seconds that it may take, retries
        included. A chunk that cannot be read then is a finding.
    storage_options
        Options of the object store of a URL, as in `zarrfeed.open`.
    zarr_format
        2 or 3: the only format that is looked for at a path or a URL. None: format 3 before 2.
    on_progress, on_message
        Functions that are called while the work goes on, and with a line of text if a progress file was found.

    Returns
    -------
    The report. Its attribute `ok` is False if a chunk is bad, an array could not be checked, consolidated metadata say
    something else than an array's own document, or other files are in the place of all chunks of an array.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If there is no such store or array, an argument cannot work, or the progress file is of another store.
    ProgressFileError
        If the progress file cannot be read or written.
    RuntimeError
        If workers of the executor died, again and again. What was checked is kept in the progress file.
    KeyboardInterrupt
        On Ctrl-C, after the progress file is saved.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> array = zarr.array(np.arange(100), chunks=(10,))
    >>> report = zarrfeed.verify(array)
    >>> report.ok, report.arrays[0].good
    (True, 10)
    >>> zarrfeed.verify(zarrfeed.open(array).select(slice(25, 45))).arrays[0].good
    3
    """
    for name, value in (("missing", missing), ("links", links)):
        check_choice(name, value, ("count", "error"))
    check_counts(num_threads=num_threads)
    check_flags(restart=restart)
    budget = parse_bytes(memory_budget)
    access = StoreAccess(Faults(retries=retries, timeout=timeout), storage_options, zarr_format=zarr_format)
    check_storage_options(access, store)
    if isinstance(store, Data):
        _check_for_data(arrays=arrays, executor=executor, zarr_format=zarr_format)
    causes: tuple[tuple[Cause, str], ...] = (("missing", missing), ("link", links))
    errors = tuple(cause for cause, of in causes if of == "error")
    shared = None if executor is None else describe_store(store)
    boxes: Mapping[str, Sequence[Box]] = {}
    if isinstance(store, Data):
        found, boxes = find_selected(store, access)
    else:
        found = find_arrays(store if shared is None else as_location(store), arrays, access)
    run = _Run(
        found,
        access=access,
        num_threads=num_threads or max(_LEAST_THREADS, usable_cores()),
        budget=budget,
        on_progress=on_progress or (lambda _: None),
        say=on_message or (lambda _: None),
        boxes=boxes,
    )
    file = None
    if progress_file is not None:
        path = default_path(found.store) if progress_file == "default" else Path(progress_file)
        file = ProgressFile(path, found.store)
    known = {} if file is None else file.load(restart=restart)
    if shared is None:
        return run.all(file, known, errors)
    with open_executor(executor, None) as (pool, at_once):
        return run.all(file, known, errors, Shared(pool, at_once, shared, access, num_threads, budget))


def _check_for_data(**arguments: object) -> None:
    """Raise ConfigError for an argument that is for a store, where a `Data` is given."""
    remedy = {
        "arrays": "open these arrays alone, zarrfeed.open(..., variables=[...])",
        "executor": "threads of this process check it; to check all of a store elsewhere, give its path",
        "zarr_format": "give it to zarrfeed.open",
    }
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(f"{name} is for a store, and a Data is given: {remedy[name]}")


class _Run:
    """One run over the arrays of a store."""

    def __init__(
        self,
        found: Found,
        *,
        access: StoreAccess,
        num_threads: int,
        budget: int,
        on_progress: Callable[[Progress], None],
        say: Callable[[str], None],
        boxes: Mapping[str, Sequence[Box]],
    ) -> None:
        self._found, self._access = found, access
        self._on_progress, self._say = on_progress, say
        self._problems = dict(found.problems)
        self._checks: dict[str, ArrayCheck] = {}
        self._checked: dict[str, Checked] = {}
        self._others: dict[str, Checked] = {}
        self._file: ProgressFile | None = None
        self._shared: Shared | None = None
        self._saved_at = 0.0
        for path, array in found.arrays.items():
            with self._noting(path):
                of_array = boxes.get(path)
                check = prepare_check(array, path, access, num_threads=num_threads, budget=budget, boxes=of_array)
                selected = None if check is None else check.numbering.selected
                self._checked[path] = Checked(fingerprint(array, selected))
                if check is not None:
                    self._checks[path] = check
        self._total = sum(check.numbering.num_chunks for check in self._checks.values())

    def all(
        self,
        file: ProgressFile | None,
        known: dict[str, Checked],
        errors: tuple[Cause, ...],
        shared: Shared | None = None,
    ) -> VerifyReport:
        """Check the chunks that were not checked yet, here or by others, and report all."""
        self._file, self._shared = file, shared
        self._take_up(known)
        self._save()  # a file that cannot be written is told before hours of work
        for path, check in self._checks.items():
            with self._noting(path):
                try:
                    self._check(path, check)
                finally:
                    check.close()
        report = self._report(errors)
        if file is not None:
            file.remove()
        return report

    def _take_up(self, known: dict[str, Checked]) -> None:
        """Go on from the findings of an earlier run, where the metadata is the same."""
        for path in self._checks:
            before = known.pop(path, None)
            if before is None:
                continue
            if before.fingerprint == self._checked[path].fingerprint:
                self._checked[path] = before
            else:
                self._say(f"{path or 'the array'}: its metadata changed since it was checked; it is checked anew")
        self._others = known
        done = sum(checked.done for checked in self._checked.values())
        if done and self._file is not None:
            self._say(f"{done} of {self._total} chunks were checked before, by {self._file.path}")

    @contextmanager
    def _noting(self, path: str) -> Iterator[None]:
        """Record an error of an array as a problem of its own."""
        try:
            yield
        except ProgressFileError:
            raise
        except ZarrfeedError as error:
            if self._shared is not None:  # of a worker that cannot open the store, or of the executor
                raise
            self._problems[path] = str(error)

    def _check(self, path: str, check: ArrayCheck) -> None:
        """Check the remaining chunks of an array, slice by slice in order."""
        checked = self._checked[path]
        try:
            with closing(self._steps(path, check, checked)) as steps:
                for _ in steps:
                    self._tell(path)
                    if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
                        self._save()
        except BaseException:
            with suppress(ProgressFileError):  # the error that ends the run is raised, and not this one
                self._save()
            raise

    def _steps(self, path: str, check: ArrayCheck, checked: Checked) -> Generator[None, None, None]:
        """Check the remaining chunks of an array, and yield after each slice or range."""
        end = check.numbering.num_numbers
        if checked.next == end:
            return
        if self._shared is not None:
            with closing(self._shared.check(path, check, checked)) as ranges:
                for one in ranges:
                    if isinstance(one, ZarrfeedError):
                        self._problems[path] = str(one)
                        return
                    checked.extend(one)
                    yield
            return
        check.start()
        with closing(slices_in_order(check, checked.next, end)) as slices:
            for stop, result in slices:
                checked.add(stop, result)
                yield

    def _misplaced(self, path: str) -> str:
        """Return the reason why a store has no chunk of an array; "" if the array may hold nothing else."""
        array = self._found.arrays[path]
        keys = keys_of(array)
        if keys is None:
            return ""
        prefix = f"{array.store_path.path}/".lstrip("/")
        name = node_name(array)
        try:
            other = self._access.ask(lambda: misplaced_key(array.store_path.store, prefix, keys), name)
        except Exception:  # noqa: BLE001 (of any class: a store that cannot be listed)
            return ""
        return str(keys.misplaced(name, other).strerror) if other else ""

    def _tell(self, path: str) -> None:
        all_checked = self._checked.values()
        self._on_progress(
            Progress(
                path,
                sum(c.done for c in all_checked),
                self._total,
                sum(c.bad for c in all_checked),
                sum(c.missing for c in all_checked),
                sum(c.stored_bytes for c in all_checked),
            )
        )

    def _save(self) -> None:
        if self._file is not None:
            self._file.save(self._others | self._checked)
            self._saved_at = time.monotonic()

    def _report(self, errors: tuple[Cause, ...]) -> VerifyReport:
        arrays = []
        for path in sorted(self._found.arrays.keys() | self._problems.keys()):
            checked, check = self._checked.get(path, Checked("")), self._checks.get(path)
            chunks = 0 if check is None else check.numbering.num_chunks
            report = checked.report(path, chunks, self._problems.get(path, ""))
            is_whole = check is not None and check.numbering.selected is None
            misplaced = self._misplaced(path) if is_whole and chunks and report.missing == chunks else ""
            arrays.append(replace(report, stale=self._found.stale.get(path, ""), misplaced=misplaced))
            # the counted chunks are all chunks, or a defect of ours would pass for a good store
            if not arrays[-1].problem and checked.done != chunks:
                raise AssertionError(f"{path}: {checked.done} chunks were counted of {chunks}")
        findings = [finding for path in sorted(self._checked) for finding in self._checked[path].findings]
        links = 0
        for name, target in links_out(self._found.root) if self._found.root else ():
            links += 1
            if links <= MOST_LISTED:
                findings.append(Finding("", name, "", "link", 1, f"leads out of the store, to {target}"))
        ignored = tuple(self._found.ignored)
        return VerifyReport(self._found.store, tuple(arrays), tuple(findings), links, ignored, errors)
