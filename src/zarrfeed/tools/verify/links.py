"""Symbolic links that lead out of a local store. Reading follows them: who did not write the store may want to know."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def links_out(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each symbolic link below `root` whose target is not below it, as path below `root` and real target.

    Links are not entered. Directories that cannot be listed are passed over: reading them is an error of its own.
    """
    real_root = os.path.realpath(root)
    directories = [str(root)]
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                listed = list(entries)
        except OSError:
            continue
        for entry in listed:
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if target != real_root and not target.startswith(real_root + os.sep):
                    yield os.path.relpath(entry.path, root), target
            elif entry.is_dir(follow_symlinks=False):
                directories.append(entry.path)
