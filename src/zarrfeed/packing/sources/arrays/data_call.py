"""A `Data` as the source of `pack`: the check that it can be one, and the form in which other processes get it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.arrays.data_source import check_packable
from zarrfeed.packing.sources.source import SourceCall, SourceOptions
from zarrfeed.storage.access.portable import from_bytes, to_bytes

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data

#: The option that holds for a `Data`, too.
_OF_READS = "timeout"


def call_of_data(data: Data, kind: str | None, options: SourceOptions, executor: object) -> SourceCall:
    """Return the call that opens a `Data` as a source.

    Parameters
    ----------
    data
        The samples.
    kind, options
        Arguments of `pack` that say how paths are opened.
    executor
        The executor that does the work. None: this process.

    Raises
    ------
    ConfigError, UnsupportedError
        If the samples have no place in a store, other processes cannot open them, or an argument is for paths.
    """
    usual = SourceOptions()
    named = [one.name for one in fields(options) if getattr(options, one.name) != getattr(usual, one.name)]
    wrong = [*(["kind"] if kind is not None else []), *(name for name in named if name != _OF_READS)]
    if wrong:
        option = "resize" if wrong[0] == "size" else wrong[0]
        raise ConfigError(f"{option} is for paths, and source is a Data: give it to zarrfeed.open, or leave it out")
    check_packable(data)
    if executor is not None:
        data = from_bytes(to_bytes(data))  # stores by their absolute paths
    return SourceCall("data", (str(data.expression),), options, data)
