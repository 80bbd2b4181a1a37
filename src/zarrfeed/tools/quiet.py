"""Warnings of a command as one line each, and none of zarr-python's, which speak of its own API."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from zarrfeed.base.errors import one_line

#: Packages whose warnings speak of their own API to people who call it.
_FOREIGN = ("zarr", "numcodecs")


@contextmanager
def quiet() -> Iterator[None]:
    """Show warnings as one line each, without those of zarr-python, as long as the context lasts."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_ours(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category.__module__.partition(".")[0] not in _FOREIGN and not _is_foreign(filename):
                show(message, category, filename, lineno, file, line)

        usual = warnings.formatwarning
        warnings.showwarning = show_ours
        warnings.formatwarning = lambda message, *_: f"zarrfeed: warning: {one_line(str(message))}\n"
        try:
            yield
        finally:
            warnings.formatwarning = usual


def _is_foreign(filename: str) -> bool:
    return any(f"/{package}/" in filename for package in _FOREIGN)
