"""`from_xarray`: a `Data` of what xarray opened, read straight from the store."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

from zarrfeed.base.suggestions import checks_option_names
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.batch_columns import Opened
from zarrfeed.metadata.group.fields import open_fields
from zarrfeed.metadata.group.sample_dims import SampleDim, parse_sample_dim
from zarrfeed.metadata.group.source_names import name_xarray
from zarrfeed.metadata.group.variables import Variables
from zarrfeed.metadata.group.xarray import stored_arrays
from zarrfeed.spec.description.expression import Expression, FromXarrayCall
from zarrfeed.spec.description.freeze import freeze_variables


@checks_option_names
def from_xarray(
    samples: Any,
    targets: Any = None,
    *,
    sample_axis: int = 0,
    sample_dim: SampleDim | None = None,
    variables: Variables | None = None,
    decode_cf: bool | None = None,
) -> Data:
    """Describe the samples of an `xarray.Dataset` or `DataArray` that `xarray.open_zarr` returned, or of a part of it.

    Its variables are read straight from the store, but for scalars and those without `sample_dim`.

    Parameters
    ----------
    samples
        An `xarray.Dataset` or an `xarray.DataArray`; also what was selected of one lazily, along any dimensions, as
        `ds.sel(time="2015", level=[500, 850])`, with dask or without it (`chunks=None`).
    targets
        An object of xarray, as `samples`, or whatever `zarrfeed.open` takes.
    sample_axis, sample_dim, variables
        The arguments of `zarrfeed.open`.
    decode_cf
        The argument of `zarrfeed.open`. None: that of the call which opened `samples`.

    Raises
    ------
    ConfigError
        If a variable is not exactly a stored array, or a selection of one along its dimensions, of samples in their
        order: it was loaded, calculated, or decoded as times.

    Examples
    --------
    >>> import tempfile, xarray, zarrfeed
    >>> store = tempfile.mkdtemp() + "/a.zarr"
    >>> _ = xarray.Dataset({"t2m": (("time", "x"), [[1.0, 2.0], [3.0, 4.0]])}).to_zarr(store, consolidated=False)
    >>> data = zarrfeed.from_xarray(xarray.open_zarr(store, consolidated=False), sample_dim="time")
    >>> [(field.name, field.shape) for field in data.fields]
    [('t2m', (2,))]
    """
    sample_dim = parse_sample_dim(sample_dim)
    stored = stored_arrays(
        samples, targets, sample_axis=sample_axis, sample_dim=sample_dim, variables=variables, decode_cf=decode_cf
    )
    opened = open_fields(
        stored.samples,
        stored.targets,
        sample_axis=sample_axis,
        sample_dim=sample_dim,
        variables=variables,
        decode_cf=stored.decodes,
    )
    call = FromXarrayCall(
        name_xarray(samples, stored.samples),
        name_xarray(targets, stored.targets),
        int(sample_axis),
        sample_dim,
        freeze_variables(variables),
        decode_cf=bool(stored.decodes),
    )
    if stored.selected is not None:
        data = Data(Expression(call), ResolvedData.of(opened)).select(stored.selected)
    else:
        data = Data(Expression(call), ResolvedData.of(_with_indexes_of(samples, opened)))
    return data.isel(stored.items) if stored.items else data


def _with_indexes_of(samples: Any, opened: Opened) -> Opened:
    """Return arrays with the coordinates that xarray has in memory, decoded or replaced as the user asked it to."""
    coordinates = opened.origin.coordinates
    if coordinates is None:
        return opened
    known = {name: samples.coords[name].values for name in coordinates.dims if name in samples.indexes}
    grid = dict(chain.from_iterable(one.items() for one in coordinates.grids))  # of the one store
    lengths = {name: grid.get(name, coordinates.num_samples) for name in known}
    whole = {name: values for name, values in known.items() if values.shape == (lengths[name],)}
    return replace(opened, origin=replace(opened.origin, coordinates=coordinates.with_known(whole)))
