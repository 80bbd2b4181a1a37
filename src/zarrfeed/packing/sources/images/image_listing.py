"""The images below some folders, in torchvision's order, with the classes that folders stand for.

Invariant: below one folder, samples have the numbers and labels that torchvision's `ImageFolder` gives them: class by
class in the order of the names, below it folder by folder in the order of the paths, then by the names of files. Names
that begin with a dot are left out. No image is left out silently: one that has no class among others with one, or that
cannot be read, is an error.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG

import numpy as np

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.packing.sources.files import check_text, some_of
from zarrfeed.packing.sources.source import Int64
from zarrfeed.storage.access.file_kinds import IMAGE_SUFFIXES
from zarrfeed.storage.objects.listing import Listing

#: Folders of these names are parts of a data set, and no classes.
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))


@dataclass(frozen=True)
class ImageListing:
    """Images by their numbers.

    Attributes
    ----------
    root
        The folder that keys begin at, absolute.
    files
        The key of each image, which is its path below `root`, and its bytes.
    mtimes
        int64 of shape (images,): when each was changed, in ns.
    classes
        Names of the classes; () if images have no class.
    labels
        int64 of shape (images,): indices of `classes`; of shape (0,) if there is none.
    left_out
        Number of files that are no images, by suffix.
    """

    root: str
    files: Listing
    mtimes: Int64
    classes: tuple[str, ...]
    labels: Int64
    left_out: Counter[str]


@dataclass
class _Found:
    """Images in the order in which they are found; a file that was given itself has no class."""

    paths: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    mtimes: list[int] = field(default_factory=list)
    classes: list[str | None] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, path: str, class_name: str | None) -> None:
        """Add a file."""
        try:
            status = os.stat(path)  # noqa: PTH116 - a million of them
        except FileNotFoundError:
            raise ConfigError(f"{printable(path)}: is a link to a file that is missing") from None
        if not S_ISREG(status.st_mode):
            raise ConfigError(f"{printable(path)}: is no regular file")
        self.paths.append(path)
        self.sizes.append(status.st_size)
        self.mtimes.append(status.st_mtime_ns)
        self.classes.append(class_name)


def list_images(paths: Sequence[str], not_counted: Sequence[str] = ()) -> ImageListing:
    """List the images below folders, and those that are given themselves; one path after the other.

    Parameters
    ----------
    paths
        Paths of folders, or of images.
    not_counted
        Paths of other files, which are not counted among those left out.

    Raises
    ------
    ConfigError
        If there is no image, some have a class and others have not, a class has none, one is empty or there twice, or
        a name is not UTF-8.
    OSError
        If a folder or a file cannot be read.
    """
    found = _Found()
    roots = [os.path.abspath(path) for path in paths]  # noqa: PTH100 - resolving links would change the names
    for root in roots:
        if Path(root).is_dir():
            _add_root(root, found, {os.path.abspath(path) for path in not_counted})  # noqa: PTH100
        else:
            found.add(root, None)
    if not found.paths:
        listed = ", ".join(sorted(IMAGE_SUFFIXES))
        raise ConfigError(f"{some_of(roots)}: no image is there, of the suffixes {listed}")
    empty = [path for path, size in zip(found.paths, found.sizes, strict=True) if size == 0]
    if empty:
        raise ConfigError(f"images are empty files: {some_of(empty)}; remove them")
    without = [path for path, name in zip(found.paths, found.classes, strict=True) if name is None]
    if 0 < len(without) < len(found.paths):
        raise ConfigError(f"images without a class lie beside folders of classes: {some_of(without)}; move them away")
    classes = sorted({name for name in found.classes if name is not None})
    number = {name: i for i, name in enumerate(classes)}
    root = _common_root(roots)
    keys = [path[len(root) :] for path in found.paths]
    for key in keys:
        check_text(key, "the file name")
    if len(set(keys)) < len(keys):
        twice = [key for key, count in Counter(keys).items() if count > 1]
        raise ConfigError(f"images: got {some_of(twice)} twice; give each folder once")
    return ImageListing(
        root,
        Listing.of(zip(keys, found.sizes, strict=True)),
        np.array(found.mtimes, np.int64),
        tuple(classes),
        np.array([number[name] for name in found.classes if name is not None], np.int64),
        found.left_out,
    )


def _common_root(roots: Sequence[str]) -> str:
    """Return the folder that all paths lie in, with a slash behind it; for a single folder, this folder."""
    folders = [root if Path(root).is_dir() else str(Path(root).parent) for root in roots]
    return os.path.commonpath(folders).rstrip("/") + "/"


def _add_root(root: str, found: _Found, not_counted: set[str]) -> None:
    """Add the images of a folder: with classes if its folders have images."""
    with os.scandir(root) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    _add_files(sorted(entry.path for entry in shown if not entry.is_dir()), None, found, not_counted)
    status = Path(root).stat()
    without_images, nested = [], True
    names = sorted(entry.name for entry in shown if entry.is_dir())
    for name in names:
        before = len(found.paths)
        for folder, files in sorted(_folders(f"{root}/{name}", ((status.st_dev, status.st_ino),))):
            _add_files(sorted(files), name, found, not_counted)
            nested &= folder != f"{root}/{name}" or len(found.paths) == before
        if len(found.paths) == before:
            without_images.append(name)
    if len(without_images) < len(names) and nested and _SPLITS.issuperset(names):
        raise ConfigError(f"{printable(root)}: its folders {some_of(names)} are no classes; pack one of them at a time")
    if without_images and len(without_images) < len(names):
        what = f"folders without an image: {some_of(without_images)}"
        raise ConfigError(f"{printable(root)}: {what}; move them away, as each folder stands for a class")


def _add_files(paths: Sequence[str], class_name: str | None, found: _Found, not_counted: set[str]) -> None:
    for path in paths:
        suffix = os.path.splitext(path)[1].lower()  # noqa: PTH122 - a million of them
        if suffix in IMAGE_SUFFIXES:
            found.add(path, class_name)
        elif path not in not_counted:
            found.left_out[suffix or "no suffix"] += 1


def _folders(folder: str, outer: tuple[tuple[int, int], ...]) -> list[tuple[str, list[str]]]:
    """Return a folder and those below it, each with the paths of its files. Links are followed, but not in a circle."""
    status = Path(folder).stat()
    identity = status.st_dev, status.st_ino
    if identity in outer:
        return []
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    made = [(folder, [entry.path for entry in shown if not entry.is_dir()])]
    for entry in shown:
        if entry.is_dir():
            made += _folders(entry.path, (*outer, identity))
    return made
