"""`ValueMethods`: the methods of `Data` that calculate with values while they are copied into the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self, TypeAlias

import numpy.typing as npt

from zarrfeed.base.suggestions import checks_option_names_of
from zarrfeed.metadata.description.denormalize import denormalized
from zarrfeed.metadata.description.missing_samples import samples_without_missing
from zarrfeed.metadata.description.value_calls import (
    ClipCall,
    DropMissingCall,
    ExpCall,
    FillNanCall,
    Log1pCall,
    LogCall,
    MinMaxCall,
    NormalizeTotalCall,
    SqrtCall,
)
from zarrfeed.metadata.face.data_methods import DataMethods

#: The names of fields: one, several, or None for the arrays of `samples`.
Fields: TypeAlias = "str | Sequence[str] | None"


class ValueMethods(DataMethods):
    """The part of `Data` that changes values alone.

    Steps run in the order of their calls, that of `normalize` among them, on values after decoding. The result is
    rounded once, to the dtype of the batch.
    """

    @checks_option_names_of("Data")
    def log1p(self, field: Fields = None, *, axis: int | str | None = None, index: Any = None) -> Self:
        """Take log(1 + x) of values: `numpy.log1p`.

        Parameters
        ----------
        field
            The name of an array, or several. None: the arrays of `samples`, but for coordinates, text and records.
        axis, index
            For some channels of an array: the axis of the array, or dimension by its name, and the indices along it,
            or a mask. None: for all values.

        Notes
        -----
        Logarithms, roots and exponentials, and all steps beside them, are calculated in float64, by polynomials that
        are the same on every processor: at most 1 unit in the last place from NumPy's.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"tp": np.array([0.0, 1.5], "f4"), "t2m": np.array([280.0, 290.0], "f4")})
        >>> data = data.log1p("tp").normalize({"tp": (0.5, 2.0), "t2m": (285.0, 5.0)})
        >>> zarrfeed.ZarrDataset(data)[1]
        {'tp': tensor(0.2081), 't2m': tensor(1.)}
        """
        return self._then(Log1pCall(field, axis, index))

    @checks_option_names_of("Data")
    def log(self, field: Fields = None, *, axis: int | str | None = None, index: Any = None) -> Self:
        """Take the natural logarithm of values: `numpy.log`. It is -infinity of 0, and NaN of less.

        Parameters
        ----------
        field, axis, index
            The arguments of `log1p`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.ZarrDataset(zarrfeed.open(np.array([1.0, 8.0])).log())[1]
        tensor(2.0794, dtype=torch.float64)
        """
        return self._then(LogCall(field, axis, index))

    @checks_option_names_of("Data")
    def sqrt(self, field: Fields = None, *, axis: int | str | None = None, index: Any = None) -> Self:
        """Take the square root of values: `numpy.sqrt`. It is NaN of less than 0.

        Parameters
        ----------
        field, axis, index
            The arguments of `log1p`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.ZarrDataset(zarrfeed.open(np.array([4, 9], "u1")).sqrt())[1]
        tensor(3.)
        """
        return self._then(SqrtCall(field, axis, index))

    @checks_option_names_of("Data")
    def exp(self, field: Fields = None, *, axis: int | str | None = None, index: Any = None) -> Self:
        """Take e to the power of values: `numpy.exp`.

        Parameters
        ----------
        field, axis, index
            The arguments of `log1p`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.ZarrDataset(zarrfeed.open(np.array([0.0, 1.0], "f4")).exp())[1]
        tensor(2.7183)
        """
        return self._then(ExpCall(field, axis, index))

    @checks_option_names_of("Data")
    def normalize_total(self, target_sum: float = 1e4, field: Fields = None) -> Self:
        """Divide each row of a sparse matrix (CSR) so that its values add up to one total, as `scanpy.pp` does.

        Parameters
        ----------
        target_sum
            The total. scanpy's default, the median total of all cells, is a number that you calculate once.
        field
            The name of a matrix, or several. None: all sparse matrices of `samples`.

        Notes
        -----
        Rows are divided in float64 while they are copied into the batch; `log1p()` may follow. Rows without values stay
        zeros. It is the first of the methods that change values.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> x = zarr.create_group({}, attributes={"encoding-type": "csr_matrix", "shape": [2, 3]})
        >>> parts = {"data": np.array([1, 3, 5], "f4"), "indices": np.array([0, 2, 1]), "indptr": np.array([0, 2, 3])}
        >>> arrays = [x.create_array(name, data=values) for name, values in parts.items()]
        >>> zarrfeed.ZarrDataset(zarrfeed.open(x).normalize_total(100).dense())[[0, 1]]
        tensor([[ 25.,   0.,  75.],
                [  0., 100.,   0.]])
        """
        return self._then(NormalizeTotalCall(target_sum, field))

    @checks_option_names_of("Data")
    def clip(
        self,
        lo: npt.ArrayLike | None = None,
        hi: npt.ArrayLike | None = None,
        *,
        field: Fields = None,
        axis: int | str | None = None,
    ) -> Self:
        """Limit values: `numpy.clip(x, lo, hi)`. NaN stays NaN.

        Parameters
        ----------
        lo, hi
            The least and the largest value: numbers, arrays with one number for each channel along `axis`, or arrays
            that broadcast against a sample, as in `normalize`. None: no limit; infinity: none for a channel.
        field
            The names of fields, as in `log1p`.
        axis
            The axis of the array, or dimension by its name, of arrays with one axis.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.ZarrDataset(zarrfeed.open(np.array([[3.0, -9.0]])).clip(0, [2.0, 5.0], axis=1))[0]
        tensor([2., 0.], dtype=torch.float64)
        """
        return self._then(ClipCall(lo, hi, field, axis))

    @checks_option_names_of("Data")
    def minmax(
        self, lo: npt.ArrayLike, hi: npt.ArrayLike, *, field: Fields = None, axis: int | str | None = None
    ) -> Self:
        """Scale values so that `lo` becomes 0 and `hi` becomes 1: (x - lo) / (hi - lo), with `hi - lo` in float64.

        Parameters
        ----------
        lo, hi
            Numbers or arrays, as in `clip`, such as `zarrfeed.stats(data)["x"].min` and `.max`.
        field, axis
            The arguments of `clip`.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.ZarrDataset(zarrfeed.open(np.array([0, 51, 255], "u1")).minmax(0, 255))[1]
        tensor(0.2000)
        """
        return self._then(MinMaxCall(lo, hi, field, axis))

    @checks_option_names_of("Data")
    def fill_nan(
        self,
        value: npt.ArrayLike,
        *,
        field: Fields = None,
        axis: int | str | None = None,
        mask: bool = False,
    ) -> Self:
        """Put a value in place of NaN: `numpy.where(numpy.isnan(x), value, x)`; with `mask`, say where.

        Missing values of packed arrays are NaN once they are decoded. Behind `normalize`, a `value` of 0 is the mean.

        Parameters
        ----------
        value
            A number, or arrays as in `clip`; NaN in an array leaves a channel as it is.
        field
            The names of fields, as in `log1p`; without a name, arrays of integers that have no fill value are left as
            they are.
        axis
            The axis of arrays with one axis, as in `clip`.
        mask
            If True, a batch has, beside each array, a bool tensor `<name>_is_nan`, which is true where the value was
            NaN. It is made of the same decoded chunk. `cast`, `normalize` and their like leave it alone. After `stack`,
            the masks are its last channels, 0 or 1 in the dtype of the others.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"sst": np.array([[280.0, np.nan], [np.nan, 290.0]], "f4")})
        >>> zarrfeed.ZarrDataset(data.normalize((285.0, 5.0)).fill_nan(0, mask=True))[0]
        {'sst': tensor([-1.,  0.]), 'sst_is_nan': tensor([False,  True])}
        """
        return self._then(FillNanCall(value, field, axis, mask))

    @checks_option_names_of("Data")
    def drop_missing(self, field: Fields = None, *, max_share: float = 0.0) -> Self:
        """Leave out samples, or windows, of which more than a share of the values is missing.

        The values are counted once, here, by one pass over the rows that the samples have. Missing is what is NaN after
        decoding, or stands for no category or no time, whatever `fill_nan` and other steps make of it.

        Parameters
        ----------
        field
            As in `log1p`. Each of the arrays has to have few enough missing values.
        max_share
            The share of the values of a sample, in one array, that may be missing. 0: none may.

        Notes
        -----
        Before `window`, rows are left out, and windows read rows of the samples that remain, as after `select`. Behind
        it, windows are: a window counts each row as often as it has it. `explain()` says how many were left out. Two
        descriptions are equal if the same samples remain.

        Raises
        ------
        ConfigError, UnsupportedError
            If nothing can be missing in an array, or no sample is left. If samples are patches, weighted or a mixture,
            or have windows whose distances are drawn.
        StoreReadError, CorruptChunkError
            If the rows cannot be read.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"x": np.array([[1, 2], [np.nan, 3], [4, 5], [6, 7]], "f4")})
        >>> len(data.drop_missing()), len(data.drop_missing(max_share=0.5)), len(data.window((0, 1)).drop_missing())
        (3, 4, 1)
        """
        call = DropMissingCall(field, max_share, samples=None)
        if self.growth is not None:
            call.check_may_grow()
        return self._then(replace(call, samples=samples_without_missing(self, field, max_share)))

    @checks_option_names_of("Data")
    def denormalize(self, values: Any, field: str | None = None, *, lossy: bool = False) -> Any:
        """Return values of a batch, or predictions of them, as they were before `normalize` and the other steps.

        Parameters
        ----------
        values
            A tensor of floats on any device, or a NumPy array, whose last axes are those of a sample. The result has
            its dtype, and is calculated in it; gradients flow through.
        field
            The name of the tensor in the batch, "targets" for a single array of targets, or the name of a stack. None:
            the only one.
        lossy
            If True, values stay as `clip` and `fill_nan` made them. False: such a step is an error that names it.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open(np.array([0.0, 7.0], "f4")).log1p().normalize((1.0, 2.0))
        >>> data.denormalize(zarrfeed.ZarrDataset(data)[[0, 1]])
        tensor([0., 7.])
        """
        return denormalized(self.resolved, values, field, lossy=lossy)
