"""The row of directories that another user made first: where zarrfeed writes beside what its user named.

The other user lets zarrfeed make the directory, or finds one of this user's that is open to all, and puts links, pipes
and other files into it. Without root, one user does both; then the links are what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import zarr

import zarrfeed
from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.support.users import OTHER, VICTIM, as_user, folder_of_all, tree
from zarrfeed.base.native import core
from zarrfeed.packing.work.work_folder import WorkFolder
from zarrfeed.storage.append.append_journal import Journal
from zarrfeed.tools.cache.entries import check_cache, clear_cache, describe_cache
from zarrfeed.tools.verify.progress_file import ProgressFile

_VALUES = np.arange(40).reshape(20, 2)
_TRUE, _FORGED = np.full(500, 1, np.uint8), np.full(500, 2, np.uint8)


def _called(path: Path) -> core.CachedArray:
    directory = core.CacheDirectory(os.fsencode(path), 1 << 20)
    return core.CachedArray(directory, store="s3://bucket", prefix="", versions=core.ObjectVersions("v"))


def _make_cache(folder: Path) -> Path:
    _called(folder / "cache").admit("c/0", 0, None, _FORGED)
    return folder / "cache"


def _use_cache(folder: Path, is_own: bool) -> None:
    path = folder / "cache"
    for _ in range(2):
        array = _called(path)
        # A user who makes his own directory has made the entry, too.
        if array.read("c/0", max_bytes=1000) not in (None, False, _TRUE.tobytes(), *[_FORGED.tobytes()] * is_own):
            raise UnspecifiedError("an entry of the other user is believed")
        array.admit("c/0", 0, None, _TRUE)
    describe_cache(path)
    check_cache(path, lambda _: None)
    clear_cache(path)


def _make_pack(folder: Path) -> Path:
    work = WorkFolder(folder / "out.zarr")
    work.make({"a": 1})
    for name in ("done/write-0.json", "store/zarr.json"):
        work.write(name, [b"{}"])
    return work.path


def _use_pack(folder: Path, _: bool) -> None:
    np.save(folder / "in.npy", _VALUES)
    zarrfeed.pack(folder / "in.npy", folder / "out.zarr", jobs=1, resume=True)
    ((_name, packed),) = zarr.open_group(folder / "out.zarr", mode="r").arrays()
    if not np.array_equal(packed[:], _VALUES):
        raise UnspecifiedError("other samples were packed")


def _make_journal(folder: Path) -> Path:
    side = folder / "s.zarr.zarrfeed"
    Journal(side).leave()
    (side / "leases").mkdir()
    journal = {"format": 1, "store": "x", "unit_rows": 1, "end": 9, "tail": 0, "open": {}, "rests": {}}
    for name in ("journal.json", "lock", "writers/1-0123456789abcdef", "leases/1-0123456789abcdef"):
        (side / name).write_text(json.dumps(journal))
    return side


def _use_journal(folder: Path, _: bool) -> None:
    with zarrfeed.Appender(folder / "s.zarr", chunk_rows=4, disposable=True) as appender:
        appender.append(_VALUES)
    data = zarrfeed.open(folder / "s.zarr", refresh="epoch", window=8, evict=True)
    read = np.concatenate([batch.numpy() for batch in zarrfeed.ZarrIterableDataset(data, batch_size=4)])
    if not np.array_equal(read, _VALUES[-8:]):
        raise UnspecifiedError("other samples were read")


def _make_progress(folder: Path) -> Path:
    ProgressFile(folder / "progress.json", "another store").save({})
    return folder / "progress.json"


def _use_progress(folder: Path, _: bool) -> None:
    if not (folder / "a.zarr").exists():
        zarr.create_array(folder / "a.zarr", data=_VALUES, chunks=(4, 2))
    report = zarrfeed.verify(folder / "a.zarr", progress_file=folder / "progress.json")
    if [array.good for array in report.arrays] != [5]:
        raise UnspecifiedError("not all chunks were checked")


_LOCATIONS: dict[str, tuple[Callable[[Path], Path], Callable[[Path, bool], None]]] = {
    "cache": (_make_cache, _use_cache),
    "pack": (_make_pack, _use_pack),
    "Appender": (_make_journal, _use_journal),
    "progress file": (_make_progress, _use_progress),
}
_NAMES = ("cache", ".out.zarr.packing", "s.zarr.zarrfeed", "progress.json")


def _plant(random: Random, made: Path, home: Path) -> None:
    """Put links, pipes and other names of the victim's files in place of what is there, or beside it."""
    items, files = [made, *made.rglob("*")], sorted(home.iterdir())
    for item in random.sample(items, min(len(items), random.randint(1, 3))):
        if not item.exists():  # in a folder that was moved
            continue
        is_folder = item.is_dir()
        with contextlib.suppress(OSError):  # in a folder that keeps others' files
            item.rename(item.with_name(f"{item.name}.moved"))
        if item.exists():
            continue
        target = home if is_folder else random.choice(files)
        kind = random.choice(["link", "link", "link to nothing", "pipe", "hard link"])
        if kind == "pipe":
            os.mkfifo(item)
        elif kind == "link to nothing":
            item.symlink_to(home / "made")
        elif kind == "link" or is_folder:
            item.symlink_to(target)
        else:
            with contextlib.suppress(OSError):  # where the kernel protects others' files
                item.hardlink_to(target)


@cache
def _import_all() -> None:
    """Use each location once, so that all modules are imported: another user may not be able to read them."""
    for _, use in _LOCATIONS.values():
        with folder_of_all() as folder:
            use(folder, True)


def others(attempt: Try) -> str:
    """Make a directory first, as another user, and let the victim use it."""
    _import_all()
    random, is_root = attempt.random, os.geteuid() == 0
    kind = random.choice(sorted(_LOCATIONS))
    make, use = _LOCATIONS[kind]
    opened, is_own = random.choice([0o755, 0o777, 0o700]), random.random() < 0.5
    with folder_of_all() as folder:
        home, outcome = folder / "home", folder / "outcome"

        def make_home() -> None:
            home.mkdir(mode=0o755)
            for name in ("thesis.tex", "1-2-3", "state", "zarr.json", "journal.json", "1-0123456789abcdef"):
                (home / name).write_text(f"years of work: {name}")

        def prepare() -> None:
            os.umask(0o022)
            made = make(folder)
            for one in (made, *made.rglob("*")):
                if one.is_dir():
                    one.chmod(0o777)

        def attack() -> None:
            os.umask(0o022)
            made = next(one for one in folder.iterdir() if one.name in _NAMES) if is_own else make(folder)
            _plant(random, made, home)
            if not is_own and made.is_dir() and not made.is_symlink():
                made.chmod(opened)

        def suffer() -> None:
            warnings.simplefilter("ignore")  # that access rights were changed
            try:
                use(folder, is_own or not is_root)
                outcome.write_text("right")
            except (zarrfeed.ConfigError, OSError) as error:
                if not str(error):
                    raise UnspecifiedError(f"an error without a word: {error!r}") from error
                outcome.write_text("refused")

        as_user(VICTIM, make_home)
        if is_own:
            as_user(VICTIM, prepare)
        as_user(OTHER, attack)
        before = tree(home)
        try:
            as_user(VICTIM, suffer)
        except AssertionError as error:
            raise UnspecifiedError(f"{kind}: {error}") from error
        if tree(home) != before:
            raise UnspecifiedError(f"{kind}: files of the victim changed: {sorted(set(before) ^ set(tree(home)))}")
        return f"{kind}: {outcome.read_text()}"


ROWS = (
    Row(
        "others-directory",
        "another user makes a cache, the folder of `pack`, the directory of an `Appender` or a progress file first, "
        "with links, pipes and other names of this user's files in random places of it",
        "refused with an error, or right; no file of this user is changed, made or deleted, and nothing that the other "
        "user wrote is believed",
        others,
        runs=300,
        short_runs=4,
    ),
)
