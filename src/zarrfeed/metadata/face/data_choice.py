"""`ChoiceMethods`: the methods of `Data` that choose samples, and items of other dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import checks_option_names_of
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.description.sample_calls import BlocksCall, SelectCall, WhereCall
from zarrfeed.metadata.face.conditions import Condition, given_conditions, samples_that_meet
from zarrfeed.metadata.face.data_methods import DataMethods
from zarrfeed.metadata.face.labels import select_labels, select_positions
from zarrfeed.plan.choice.labels import Method
from zarrfeed.plan.samples.selection import Select
from zarrfeed.spec.fields.field import BlockKind


class ChoiceMethods(DataMethods):
    """The part of `Data` that chooses among the samples."""

    @checks_option_names_of("Data")
    def select(self, samples: Select, *, keep_order: bool = False) -> Self:
        """Choose samples by their positions in this description.

        Parameters
        ----------
        samples
            A slice, distinct indices in any order (negative ones count from the end), or a mask (bool) with a flag for
            each sample of this description. Samples are read in the order of the array or shuffled. They keep their
            index in the array, which `return_index=True` delivers.
        keep_order
            True: samples are read in the order of the list, as often as it names them, such as [5, 3, 3] or
            `slice(None, None, -1)`: for a curriculum, or an evaluation in a fixed order. All batches of all ranks and
            workers together follow the list, so `shuffle=True` is refused. False: in the order of the array, or
            shuffled.

        Notes
        -----
        Chunks without a selected sample are not read. Windows read rows of selected samples alone, so `select` precedes
        `window`. `select(keep_order=True)` is called last of what chooses samples, also after `window`; its positions
        are those of windows then. It costs decodes where samples of a chunk are far apart in the list: `explain()` of a
        dataset counts them.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(100)).select(slice(10, 50)).select([0, 3, -1])
        >>> zarrfeed.ZarrDataset(data)[[0, 1, 2]]
        tensor([10, 13, 49])
        >>> list(zarrfeed.ZarrIterableDataset(data.select([2, 0, 0], keep_order=True), batch_size=2))
        [tensor([49, 10]), tensor([10])]
        """
        return self._then(SelectCall(samples, keep_order))

    def __getitem__(self, samples: Select) -> Self:
        """Return `select(samples)`: `data[10:20]`, `data[mask]`; samples keep the order of the array."""
        names = [samples] if isinstance(samples, str) else samples
        if isinstance(names, Sequence) and names and all(isinstance(name, str) for name in names):
            raise ConfigError(f"data[{samples!r}] names no samples; arrays are named by open(variables={names!r})")
        if not isinstance(samples, slice) and np.ndim(samples) == 0:
            raise ConfigError(f"data[{samples!r}]: a Data describes samples; ZarrDataset(data)[{samples!r}] reads one")
        return self.select(samples)

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples one by one, in order, as `ZarrIterableDataset` delivers them without a batch size.

        It is for a look at some of them. Every process reads all samples, whatever rank it has.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> [int(sample) for sample in zarrfeed.open(np.arange(100)).head(3)]
        [0, 1, 2]
        """
        # The public name, as what reads arrays lies in a layer above this one.
        dataset = import_module("zarrfeed").ZarrIterableDataset(self, rank=0, world_size=1, pin_memory=False)
        with dataset:
            yield from dataset

    @checks_option_names_of("Data")
    def head(self, n: int = 5) -> Self:
        """Return the first `n` samples, or all if they are fewer: `data[:n]`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> len(zarrfeed.open(np.arange(100)).head(3))
        3
        """
        check_int("n", n, 1)
        return self.select(slice(0, n))

    @checks_option_names_of("Data")
    def where(self, *condition: str | Mapping[str, Condition], **named: Condition) -> Self:
        """Keep the samples whose columns meet all conditions: `data.where(quality=lambda q: q > 0.5)`.

        Parameters
        ----------
        *condition
            Text as `pandas.DataFrame.query` takes it, such as "quality > 0.5 and site == 'north'", for which pandas is
            needed; the path of a table and text about its columns, such as "obs", "n_genes > 200"; or a mapping, for
            columns whose names are no keywords, such as {"obs/n_genes": lambda n: n > 200, "time.month": ...}.
        **named
            The name of a column, as in `split(groups=)`, with a function. It takes the values of the chosen samples,
            an array of shape (samples,), and returns a mask of that shape (bool).

        Notes
        -----
        Columns are read once, and need not be among the variables. Samples stay in the order of the array.

        Raises
        ------
        ConfigError
            If there is no such column, a condition gives no mask, or no sample meets all conditions.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> group = zarr.create_group({})
        >>> _ = group.create_array("x", data=np.arange(6), dimension_names=("time",))
        >>> _ = group.create_array("quality", data=np.array([0.9, 0.2, 0.7, 0.6, 0.1, 0.4]), dimension_names=("time",))
        >>> data = zarrfeed.open(group, variables=["x"], sample_dim="time")
        >>> zarrfeed.ZarrDataset(data.where(quality=lambda q: q > 0.5))[[0, 1, 2]]["x"].tolist()
        [0, 2, 3]
        """
        conditions = given_conditions(condition, named)
        samples = samples_that_meet(self.resolved, conditions)
        return self._then(WhereCall(conditions, samples=samples))

    @checks_option_names_of("Data")
    def sel(
        self, labels: Mapping[str, Any] | None = None, *, method: Method | None = None, coords: Any = None, **named: Any
    ) -> Self:
        """Choose samples, and items of other dimensions, by label as xarray does: `data.sel(time="2015", level=500)`.

        Chunks without a chosen sample or item are not read, and Blosc blocks without one are not decoded.

        Parameters
        ----------
        labels
            The labels as a mapping, for names that are no keywords.
        method
            "nearest": for a label that the coordinate lacks, the nearest value is taken.
        coords
            The coordinate, where none is stored: a value for each sample of the arrays, selected or not; a value for
            each item of another dimension; or its array. Of several dimensions, a mapping of their names to these.
        **named
            The name of a dimension, or of another coordinate along the sample dimension, with a slice of labels, both
            ends included; a list of labels; one label; or a mask. Labels of times are datetime64, datetime, or text:
            "2015-03" names the whole month, but in a list its first instant.
            Along the sample dimension, a label names all samples that have it, and samples stay in the order of the
            array. Along other dimensions, items come in the order of the labels, a single label drops the dimension,
            and a slice may have a negative step. Arrays without the dimension stay as they are.

        Raises
        ------
        ConfigError
            If no array has the dimension, no such coordinate is stored, a label is missing or ambiguous, or a slice is
            taken of a coordinate that is not sorted.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> hours = np.arange("2015-01-01", "2017-01-01", dtype="M8[h]")
        >>> len(zarrfeed.open(np.arange(len(hours))).sel(time="2016-02", coords=hours)) // 24
        29
        >>> group = zarr.create_group({})
        >>> _ = group.create_array("z", data=np.arange(12).reshape(4, 3), dimension_names=("time", "level"))
        >>> _ = group.create_array("level", data=np.array([850, 500, 300]), dimension_names=("level",))
        >>> data = zarrfeed.open(group, sample_dim="time")
        >>> zarrfeed.ZarrDataset(data.sel(level=[300, 850]))[2]
        {'z': tensor([8, 6])}
        >>> zarrfeed.ZarrDataset(data.sel(level=520, method="nearest"))[2]
        {'z': tensor(7)}
        """
        return self._then(
            *select_labels(self.resolved, labels, named, method=method, coords=coords, growth=self.growth)
        )

    @checks_option_names_of("Data")
    def isel(self, positions: Mapping[Any, Any] | None = None, **named: Any) -> Self:
        """Choose samples, and items of other dimensions, by position as xarray does: `data.isel(channel=[2, 0])`.

        Along the sample dimension, `data.isel(time=slice(0, 100))` is `data.select(slice(0, 100))`.

        Parameters
        ----------
        positions
            The positions as a mapping, {"time": slice(0, 100)}; for arrays without names of dimensions, {1: [2, 0]}
            names axis 1 of the array.
        **named
            The name of the sample dimension, with a position, or what `select` takes. Or the name of another dimension,
            with an integer, which drops the dimension; a slice with any step; a list of integers in any order; or a
            mask. Arrays without the dimension stay as they are.

        Raises
        ------
        ConfigError
            If no array has the dimension, or a position is out of range.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.arange(24).reshape(4, 3, 2)).isel({1: [2, 0], 2: -1})
        >>> zarrfeed.ZarrDataset(data)[0]
        tensor([5, 1])
        """
        return self._then(select_positions(self.resolved, positions, named))

    @checks_option_names_of("Data")
    def blocks(self, blocks: npt.ArrayLike, *, of: BlockKind = "chunk") -> Self:
        """Choose what of the samples lies in some chunks along the sample axis.

        Parameters
        ----------
        blocks
            Indices of chunks of the array along the sample axis, or a single one; negative ones count from the end. Of
            several arrays, the chunks of the primary one count, which `explain()` of a dataset names.
        of
            "chunk": in a sharded array, an inner chunk. "shard": indices are of whole shards.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> array = zarr.array(np.arange(100), chunks=(10,))
        >>> len(zarrfeed.open(array).blocks([0, 3, -1]))
        30
        """
        return self._then(BlocksCall(blocks, of))
