"""The errors of zarrfeed: one common base, and the builtin that a caller would catch."""


class ZarrfeedError(Exception):
    """Base of all errors that zarrfeed raises on purpose."""


class ConfigError(ZarrfeedError, ValueError):
    """An argument, or a combination of arguments and arrays, that cannot work."""


class MemoryBudgetError(ConfigError):
    """The memory budget is too small for the chunks, the lanes or the batch size."""


class UnsupportedError(ZarrfeedError, NotImplementedError):
    """A valid Zarr array that this version does not read."""


class CorruptChunkError(ZarrfeedError, ValueError):
    """Stored bytes that do not decode to what the array's metadata promises."""


class StoreReadError(ZarrfeedError, OSError):
    """The store could not be read; `errno` tells why."""


class ClosedError(ZarrfeedError, RuntimeError):
    """A dataset was used after `close()`."""
