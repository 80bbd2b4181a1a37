"""`ItemMethods`: the methods of `Data` that say what becomes of items, and which tensors a batch has of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from zarrfeed.base.suggestions import checks_option_names_of
from zarrfeed.metadata.array.conversion import Normalization, TorchDtypeLike
from zarrfeed.metadata.description.item_calls import (
    CastCall,
    DecodeCall,
    DenseCall,
    NormalizeCall,
    StackCall,
    StaticCall,
    TimeFeaturesCall,
)
from zarrfeed.metadata.description.measured_fields import Axis, automatic, by_statistics
from zarrfeed.metadata.description.normalize_by import Sides, of_sides, parse_sides
from zarrfeed.metadata.description.statics import open_statics
from zarrfeed.metadata.face.data_methods import DataMethods
from zarrfeed.metadata.group.fields import FieldSource
from zarrfeed.spec.fields.images import CropKind, Mode
from zarrfeed.spec.values.statistics import Statistics


class ItemMethods(DataMethods):
    """The part of `Data` that leaves alone which samples there are."""

    @checks_option_names_of("Data")
    def cast(self, dtype: TorchDtypeLike | Mapping[str, TorchDtypeLike]) -> Self:
        """Convert items to a dtype on the way into the batch.

        Parameters
        ----------
        dtype
            Torch's, NumPy's, or a name such as "bfloat16": for the arrays of `samples`, but for coordinates such as
            "time". Or a mapping of names to dtypes, where "samples" and "targets" stand for all other arrays of that
            side. Any float dtype is possible, and values are rounded once; an integer one where no value is lost. A
            second cast of an array replaces the first.

        Examples
        --------
        >>> import numpy as np, torch, zarrfeed
        >>> data = zarrfeed.open({"x": np.zeros((4, 3)), "label": np.zeros(4, "i2")})
        >>> [field.dtype for field in data.cast({"x": torch.bfloat16, "label": "int64"}).fields]
        ['bfloat16', 'int64']
        """
        return self._then(CastCall(dtype))

    @checks_option_names_of("Data")
    def normalize(
        self,
        mean_std: Normalization | Mapping[str, Normalization] | Statistics | Literal["auto"],
        *,
        axis: Axis = None,
        stats: str | Path | None = None,
        sides: Sides = "samples",
    ) -> Self:
        """Subtract a mean and divide by a standard deviation: batches have (x - mean) / std.

        Parameters
        ----------
        mean_std
            A pair (mean, std) of numbers, of arrays with one number for each channel, or of arrays with two axes or
            more that broadcast against a sample without the axis of a window, such as (1, lat, lon). Or a mapping of
            names to such pairs, as in `cast`. Values are those after decoding. An array can be normalised once. Or the
            `Statistics` of some samples, such as those of the training part, which must have figures of every array
            that is normalised, along dimensions with the same labels. "auto": by `zarrfeed.stats` of these samples,
            which reads them all now, unless `stats` has the result.
        axis
            The axis of the array, or dimension by its name, that the channels are along. Needed for arrays with one
            axis. With "auto": what has statistics of its own, as in `zarrfeed.stats`.
        stats
            With "auto": a JSON file with statistics of these samples, which is written if it does not exist. For those
            of other samples, give `zarrfeed.Statistics.load(path)` as `mean_std`.
        sides
            The arrays that "auto", `Statistics` and a pair without names normalise: those of "samples", of "targets",
            or of both, ["samples", "targets"], but for coordinates, text and records. Targets are left as they are
            unless they are named here or in a mapping, since many are labels.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> images = np.full((2, 3), 7, "u1")  # 3 channels
        >>> zarrfeed.ZarrDataset(zarrfeed.open(images).normalize(([1, 4, 7], [2, 3, 1]), axis=1))[0]
        tensor([3., 1., 0.])
        """
        named = parse_sides(sides)
        if isinstance(mean_std, Statistics):
            mean_std = given = by_statistics(self.resolved, mean_std, named)
        elif isinstance(mean_std, str) or stats is not None:
            given = automatic(self, mean_std, axis, stats, named)
        else:
            given = of_sides(mean_std, named)
        return self._then(NormalizeCall(mean_std, axis, stats, named, pairs=given))

    @checks_option_names_of("Data")
    def static(self, *names: str, **arrays: FieldSource | float) -> Self:
        """Add arrays that are the same for all samples, such as a land-sea mask, to every batch.

        A batch has each as a tensor of shape (batch, *shape), expanded from one tensor without a copy (torch's thread
        that pins batches of workers copies), under its name in the dict of the samples. If the samples are a single
        array, they become a dict, too: {"samples": ..., "lsm": ...}. A single sample has the tensor itself. Do not
        write to these tensors: all batches share their memory.

        Parameters
        ----------
        *names
            Arrays beside those of the samples, without the sample dimension. They are decoded as the samples are, and
            read once, when a dataset is made. `cast` and `normalize` do not concern them. `stack` makes channels of
            those that it names.
        **arrays
            Name in the batch -> a number, an array or a tensor in host memory, a `zarr.Array`, a path, or a URL.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"t2m": np.zeros((100, 4, 8), "f4")}).static(lsm=np.ones((4, 8), "f4"))
        >>> batch = zarrfeed.ZarrDataset(data)[[3, 1]]
        >>> batch["t2m"].shape, batch["lsm"].shape, batch["lsm"].stride()
        (torch.Size([2, 4, 8]), torch.Size([2, 4, 8]), (0, 8, 1))
        """
        fields = open_statics(self.resolved, self.expression, names, arrays)
        return self._then(StaticCall(names, arrays, fields=fields))

    @checks_option_names_of("Data")
    def stack(self, names: Sequence[str], *, name: str | None = None, spatial_axes: int | None = None) -> Self:
        """Write arrays side by side into one tensor of shape (batch, channels, *spatial), while they are decoded.

        Each array keeps its own cast (to one dtype for all) and normalisation. Windows give (batch, rows, channels,
        *spatial). `fields` names the channels: "t2m", and of an array with levels "z500", by the coordinate of its
        dimension, which is read now, or "z[3]" where none is stored.

        Parameters
        ----------
        names
            Arrays of `samples`, or of `targets`, in the order of the channels. Arrays of `static` may be among those of
            `samples`: all samples have their values, also in windows, and in rows that are padded. They get the dtype
            of the others, and a later `normalize` may name them.
        name
            Name of the tensor in the dict of its side. None: "samples" (or "targets"); if that side has no other array,
            it is this tensor, without a dict.
        spatial_axes
            Number of trailing axes of a sample that are no channels; the axes before them are flattened to channels.
            None: those that patches are cut along; else 2, or as many as the array with the fewest has.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> data = zarrfeed.open({"t": np.zeros((9, 3, 4, 8), "f4"), "t2m": np.ones((9, 4, 8), "f4")})
        >>> data = data.stack(["t2m", "t"])
        >>> data.fields[0].channels
        ('t2m', 't[0]', 't[1]', 't[2]')
        >>> zarrfeed.ZarrDataset(data)[[5, 2]].shape
        torch.Size([2, 4, 4, 8])
        >>> data = zarrfeed.open({"t2m": np.zeros((9, 4, 8), "f4")}).static(lsm=np.ones((4, 8), "i1"))
        >>> zarrfeed.ZarrDataset(data.stack(["t2m", "lsm"]))[3].mean((1, 2))
        tensor([0., 1.])
        """
        return self._then(StackCall(names, name, spatial_axes).with_labels(self.resolved))

    @checks_option_names_of("Data")
    def time_features(self, *features: str, coords: Any = None) -> Self:
        """Add the field `time_features`, float32 of shape (2 * features,): sines and cosines of the samples' times.

        If the samples are a single array, they become a dict, {"samples": ..., "time_features": ...}. `cast` and
        `normalize` leave the field alone unless they name it. A later `window` takes the features of each row.

        Parameters
        ----------
        *features
            "hour" (with minutes), "day_of_week" (from Monday), "month", "day_of_year" (whole days), or "year_fraction":
            each gives the sine and the cosine of its share of its cycle.
        coords
            The time of each sample of the arrays. None: the coordinate of the sample dimension, which is read now.

        Examples
        --------
        >>> import numpy as np, zarrfeed
        >>> times = np.datetime64("2020-01-01") + np.arange(4) * np.timedelta64(6, "h")
        >>> data = zarrfeed.open({"t2m": np.zeros((4, 8))}).time_features("hour", coords=times)
        >>> zarrfeed.ZarrDataset(data)[1]["time_features"].numpy().round(2) + 0.0
        array([1., 0.], dtype=float32)
        """
        return self._then(TimeFeaturesCall(features, coords))

    @checks_option_names_of("Data")
    def decode(
        self,
        what: Literal["image"],
        *,
        field: str | Sequence[str] | None = None,
        size: int | tuple[int, int] | None = None,
        mode: Mode | None = "RGB",
        crop: CropKind | None = None,
        scale: float | tuple[float, float] | None = None,
        ratio: tuple[float, float] | None = None,
        flip: float = 0.0,
    ) -> Self:
        """Decode encoded images (JPEG, PNG and what else Pillow reads) to uint8 tensors, in threads.

        Parameters
        ----------
        what
            "image".
        field
            The name of an array of bytes of any length (`variable_length_bytes`), or several. None: all that there are.
        size
            (height, width) in pixels to which images are resized, whatever their own aspect ratio: bilinear, with
            antialiasing; a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size before. One number makes squares. The
            batch has one uint8 tensor of shape (batch, channels, height, width). None: images keep their size, and the
            batch has a list of uint8 tensors of shape (channels, height, width), as in `zarrfeed.objects`.
        mode
            "RGB", "L" (grey) or "RGBA": images are converted to it. None: images of these modes keep theirs, others
            become RGB; only without `size`.
        crop
            "random": a box is drawn for each sample, anew in each epoch, as torchvision's `RandomResizedCrop` draws it,
            and resized to `size`. "center": the largest box in the middle with the aspect ratio of `size` is.
        scale
            With "random", the least and the greatest area of the box as a share of the image, (0.08, 1) by default.
            With "center", the area as a share of that largest box, 1 by default: (224 / 256) ** 2 is torchvision's
            `Resize(256), CenterCrop(224)`.
        ratio
            With "random", the least and the greatest width / height of the box; (3 / 4, 4 / 3) by default.
        flip
            The probability that the images of a sample are mirrored, left to right; drawn anew in each epoch.

        Notes
        -----
        Boxes and mirroring are drawn by (seed of the dataset, epoch, sample): the same on any ranks and workers and
        after resuming, and for all images of a sample that have one size. Pixels are resized to the bits of Pillow 13
        (`Resampling.BILINEAR`), on any machine. `cast`, `normalize` and their like, called after this method,
        convert images that have a `size`; numbers of one axis are those of the channels. `window` makes samples of
        several images. Where a sample has several images, such as those of cameras, their axes come before the
        channels. Pixels lie as they are stored: an orientation in EXIF is not applied. An image that cannot be decoded,
        or has more than 8 bits a channel, is a CorruptChunkError that names the chunk and the sample, or is replaced
        (`faults={"on_error": "skip"}`). Needs Pillow. `pip install "zarrfeed[images]"` has simplejpeg, too, which
        decodes JPEGs to the same pixels faster, and crops only down to their last row.

        Examples
        --------
        >>> import io, numpy as np, zarr, zarrfeed
        >>> from PIL import Image
        >>> file = io.BytesIO()
        >>> Image.new("RGB", (64, 48), "red").save(file, "jpeg")
        >>> dtype = zarr.dtype.VariableLengthBytes()
        >>> photos = zarr.create_array({}, shape=(4,), chunks=(2,), dtype=dtype, zarr_format=2)
        >>> photos[:] = np.array([file.getvalue()] * 4, dtype=object)
        >>> dataset = zarrfeed.ZarrIterableDataset(zarrfeed.open(photos).decode("image", size=(24, 32)), batch_size=4)
        >>> next(iter(dataset)).shape
        torch.Size([4, 3, 24, 32])
        """
        return self._then(DecodeCall(what, field, size, mode, crop, scale, ratio, flip))

    @checks_option_names_of("Data")
    def dense(self, field: str | Sequence[str] | None = None) -> Self:
        """Deliver rows of sparse matrices as dense tensors of shape (batch, columns), zeros filled in.

        Parameters
        ----------
        field
            The name of a sparse matrix, or several. None: all that there are.

        Notes
        -----
        Without it a batch has a `torch.sparse_csr` tensor. A row names each column once, as AnnData writes it.

        Examples
        --------
        >>> import numpy as np, zarr, zarrfeed
        >>> group = zarr.create_group({})
        >>> group.attrs.update({"encoding-type": "csr_matrix", "shape": [2, 3]})
        >>> for name, values in {"data": [7.0, 8.0], "indices": [2, 0], "indptr": [0, 1, 2]}.items():
        ...     _ = group.create_array(name, data=np.array(values))
        >>> zarrfeed.ZarrDataset(zarrfeed.open(group).dense())[[0, 1]].tolist()
        [[0.0, 0.0, 7.0], [8.0, 0.0, 0.0]]
        """
        return self._then(DenseCall(field))
