"""Collections of dask are refused, and the error says what to pass in their place. dask is not imported."""

from __future__ import annotations

from zarrfeed.base.errors import ConfigError


def refuse_dask(source: object, name: str = "") -> None:
    """Raise ConfigError if `source` is an array, a frame or another collection of dask's.

    Parameters
    ----------
    source
        The user's argument.
    name
        The name of the argument, such as "samples".

    Raises
    ------
    ConfigError
        If it is dask's. Its chunks are tasks that run under the GIL, in an order that dask chooses.
    """
    kind = type(source)
    if kind.__module__.partition(".")[0] in ("dask", "dask_expr"):
        what = f"{name}: got" if name else "got"
        raise ConfigError(
            f"{what} a dask {kind.__name__}, whose tasks zarrfeed does not run: pass the source that dask reads, such "
            "as the path given to dask.array.from_zarr. If dask calculates, write the result with dask.array.to_zarr "
            "and pass that path, or calculate with transform="
        )
