"""`open` and `Data`: what the samples are, described once and read by any dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy.typing as npt

from zarrfeed.base.page import as_html
from zarrfeed.base.suggestions import checks_option_names_of, did_you_mean
from zarrfeed.metadata.description.method_call import MethodCall
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.face.data_choice import ChoiceMethods
from zarrfeed.metadata.face.data_items import ItemMethods
from zarrfeed.metadata.face.data_page import data_rows
from zarrfeed.metadata.face.data_samples import SampleMethods
from zarrfeed.metadata.face.data_segments import SegmentMethods
from zarrfeed.metadata.face.data_values import ValueMethods
from zarrfeed.metadata.face.sample_coords import SampleCoords
from zarrfeed.metadata.patches.store_table import locate_samples, source_of
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.spec.description.expression import Expression, FieldInfo
from zarrfeed.spec.description.version import Version

#: Names that users of other libraries try -> what does that here.
_CALLED_HERE: dict[str, str] = {
    **dict.fromkeys(("batch", "shuffle"), "ZarrIterableDataset(data, batch_size=..., shuffle=True) does"),
    **dict.fromkeys(
        ("map", "apply", "transform"), "ZarrIterableDataset(data, transform=...) changes samples in Python"
    ),
    **dict.fromkeys(("filter", "query", "subset"), "where() chooses by columns, and select() by positions"),
    **dict.fromkeys(("oversample", "undersample", "class_weights", "rebalance"), "balance() lets classes come alike"),
    **dict.fromkeys(("sample", "weighted", "repeat"), "weight() says how often each sample comes"),
    "resample": "weight() says how often each sample comes; means over time are for xarray, before zarrfeed.open()",
    **dict.fromkeys(
        ("coarsen", "groupby", "interp", "mean", "reduce"),
        "ZarrIterableDataset(data, transform=...) calculates, or xarray does before zarrfeed.open()",
    ),
    **dict.fromkeys(("explain", "describe", "info"), "the explain method of ZarrIterableDataset(data) tells"),
    **dict.fromkeys(("stats", "statistics", "std", "min", "max"), "zarrfeed.stats(data) takes them"),
    **dict.fromkeys(("rename", "assign_coords"), "zarrfeed.open({'name': path}) names arrays"),
    **dict.fromkeys(("drop_vars", "drop"), "zarrfeed.open(path, variables=[...]) names the arrays that are read"),
    **dict.fromkeys(("chunk", "rechunk"), "zarrfeed.pack() writes other chunks"),
    **dict.fromkeys(("classes", "class_names", "class_to_idx"), "categories has the names of codes"),
    **dict.fromkeys(("kfold", "folds", "train_test_split", "random_split"), "split() has parts, groups= and folds="),
    **dict.fromkeys(("stratify", "stratified"), "split(stratify=) deals classes, balance() draws them alike"),
    **dict.fromkeys(("episodes", "trajectories", "sel_episodes"), "segments() names them, sel_segments() chooses some"),
    **dict.fromkeys(("crop", "random_window", "sample_crops"), "random_crop() draws a piece of every recording"),
    **dict.fromkeys(("sequences", "pad", "padded_batch", "ragged"), "pad_sequences() has whole recordings"),
    **dict.fromkeys(("pack", "packing", "concat_tokens", "pack_documents"), "pack_sequences() packs whole documents"),
    **dict.fromkeys(("shift", "next_token", "labels", "causal_lm"), "next_targets() has the rows one later as targets"),
    **dict.fromkeys(("bucket", "bucket_by_sequence_length", "group_by_length"), "bucket_by_length() does"),
    **dict.fromkeys(("rolling", "sliding_window", "unfold"), "window() makes samples of several rows"),
    **dict.fromkeys(("standardize", "scale", "zscore"), "normalize() takes statistics, and minmax() bounds"),
    **dict.fromkeys(("fillna", "nan_to_num"), "fill_nan() replaces missing values"),
    **dict.fromkeys(("dropna", "drop_nan"), "drop_missing() leaves out samples with missing values"),
    **dict.fromkeys(("astype", "to", "float", "half"), "cast() converts"),
    **dict.fromkeys(("take", "limit"), "head() has the first samples, and select() any"),
    **dict.fromkeys(("concat", "append", "extend"), "zarrfeed.concat() puts samples behind others"),
    **dict.fromkeys(("merge", "zip"), "zarrfeed.join() puts arrays side by side"),
    **dict.fromkeys(("denormalise", "inverse_transform"), "denormalize() does"),
    **dict.fromkeys(("dims", "sizes", "shape", "dtype", "dtypes", "columns"), "fields and len() say it"),
    **dict.fromkeys(("values", "to_numpy", "numpy", "load", "compute"), "ZarrDataset(data)[index] reads"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Data(ChoiceMethods, SampleMethods, SegmentMethods, ItemMethods, ValueMethods):
    """A description of samples: which arrays, which samples of them, and how their items are converted.

    `zarrfeed.open` and `zarrfeed.from_xarray` make one; each method returns another one and leaves this one as it is.
    `ZarrIterableDataset(data, ...)` and `ZarrDataset(data, ...)` read it. A method costs no I/O, unless it says so:
    metadata were read when the arrays were opened. What cannot work is refused by the method that asks for it, with a
    ConfigError. A `Data` holds what can be settled in index space or while rows are copied into a batch; any other
    change of a sample is for the `transform` of a dataset.

    A `Data` prints as the expression that made it, can be pickled, and is immutable. Two are equal if their expressions
    are, and if the metadata, and the values of arrays in memory, were the same when the arrays were opened.

    Attributes
    ----------
    expression
        The sources that were opened, and the methods that were called.
    resolved
        The arrays and samples that the expression stands for; datasets read it.
    growth
        If it was opened with `refresh`: the store that grows. Else None.
    version
        The version of that store when it was opened.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> data = zarrfeed.open({"t2m": np.zeros((100, 4, 8), "f4"), "z": np.ones((100, 8), "f4")})
    >>> data = data.select(slice(0, 80)).window((-1, 0)).normalize({"t2m": (278.4, 21.1)}).cast("bfloat16")
    >>> len(data)
    79
    >>> for field in data.fields:
    ...     print(field.name, field.shape, field.dtype)
    t2m (2, 4, 8) bfloat16
    z (2, 8) bfloat16
    >>> train, validation = data.split((0.75, 0.25), by="contiguous")
    >>> len(train), len(validation)
    (60, 18)
    """

    expression: Expression
    resolved: ResolvedData
    growth: Growth | None = None
    version: Version | None = None

    @property
    def fields(self) -> tuple[FieldInfo, ...]:
        """The tensors of a batch: for each array its name, and the shape and the dtype of one sample."""
        return self.resolved.infos()

    @property
    def channels(self) -> dict[str, tuple[str, ...]]:
        """The names of the channels of each tensor that `stack` makes, by the name of the tensor."""
        return {field.name: field.channels for field in self.fields if field.channels}

    @property
    def coords(self) -> Mapping[str, npt.NDArray[Any]]:
        """The coordinates of the chosen samples, by name: a value for each sample, read when it is asked for.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> group = zarr.create_group({})
        >>> _ = group.create_array("x", data=np.arange(6).reshape(2, 3), dimension_names=("member", "time"))
        >>> _ = group.create_array("member", data=np.array([10, 20]), dimension_names=("member",))
        >>> data = zarrfeed.open(group, sample_dim=("member", "time"))
        >>> data.coords["member"].tolist(), list(data.coords)
        ([10, 10, 10, 20, 20, 20], ['member', 'time'])
        """
        return SampleCoords(self.resolved)

    @property
    def categories(self) -> dict[str, tuple[Any, ...]]:
        """The names of the categories, in the order of the codes, of each array of codes whose store names them.

        Such are categorical columns of AnnData, what `zarrfeed.pack` made of dictionaries and of folders of images, and
        CF's `flag_values` with `flag_meanings`. `sel(label="cat")` and `where("label == 'cat'")` take these names.
        """
        found = {}
        for one in self.resolved.items:
            if one.described is not None and one.described.names is not None:
                found[one.key or one.side] = tuple(name for _, name in sorted(one.described.names.items()))
        return {**found, **self.resolved.origin.categories}

    @property
    def stores(self) -> tuple[str, ...]:
        """The paths or URLs of the stores that the samples are in, one after another; empty for a single store."""
        table = self.resolved.origin.stores
        return () if table is None else tuple(table.names)

    @checks_option_names_of("Data")
    def locate(self, index: int | npt.ArrayLike) -> tuple[Any, Any]:
        """Find the store that holds a sample, and the sample's index there.

        Parameters
        ----------
        index
            The index of a sample, as `return_index=True` delivers it; or an array or a tensor of indices.

        Returns
        -------
        The number of the store in `stores`, and the index in that store; arrays for an array. For patches, the voxel at
        which each begins, instead of an index, the sample axis first: shape (dimensions,) for one patch, and (patches,
        dimensions) for an array. It may begin before the first voxel.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> data = zarrfeed.open([zarr.array(np.zeros(5)), zarr.array(np.zeros(7))])
        >>> data.locate(5), data.locate([4, 11])
        ((1, 0), (array([0, 1]), array([4, 6])))
        """
        if self.resolved.patching is not None:
            return self.resolved.patching.locate(index, self.resolved.origin.stores)
        return locate_samples(self.resolved.origin.stores, self.resolved.choice.num_samples, index)

    @checks_option_names_of("Data")
    def source_of(self, index: int | npt.ArrayLike) -> Any:
        """Return the number of the source that a sample is of, in a mixture.

        Parameters
        ----------
        index
            The index of a sample, as `return_index=True` delivers it; or an array or a tensor of indices.

        Returns
        -------
        The number of the source in what `zarrfeed.mix` was given; an array for an array.

        Raises
        ------
        ConfigError
            If this is no mixture.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> zarrfeed.mix([np.zeros(5), np.ones(7)]).source_of([0, 4, 5])
        array([0, 0, 1])
        """
        blend, patching = self.resolved.blend, self.resolved.patching
        if blend is not None and patching is not None:
            return patching.source_of(index)
        return source_of(None if blend is None else blend.first, index)

    if not TYPE_CHECKING:  # type checkers know which methods there are

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError; it says what does here what a name of another library does there."""
            advice = ""
            if name in _CALLED_HERE:
                advice = f"; {_CALLED_HERE[name]}"
            elif not name.startswith("_"):  # those, pickle and copy ask for each time
                advice = did_you_mean(name, [one for one in dir(Data) if not one.startswith("_")])
            raise AttributeError(f"'Data' object has no attribute {name!r}{advice}")

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.resolved.length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Data):
            return NotImplemented
        return self.expression == other.expression and self.resolved.holds_same(other.resolved)

    def __hash__(self) -> int:
        return hash(self.expression)

    def __repr__(self) -> str:
        return str(self.expression)

    def _repr_html_(self) -> str:
        return as_html("Data", data_rows(self.expression, self.resolved))

    def _then(self, call: MethodCall, resolved: ResolvedData | None = None) -> Self:
        resolved = call.apply(self.resolved) if resolved is None else resolved
        growth = None if self.growth is None else self.growth.then(call)
        return type(self)(call.added_to(self.expression), resolved, growth, self.version)
