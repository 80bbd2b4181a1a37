"""`PatchWeights`: the odds of voxels to be in the middle of drawn patches, for boxes of voxels; kept in a file."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError

_MARK = "zarrfeed patch weights, 1"


@dataclass(frozen=True, eq=False)
class PatchWeights:
    """Weights of voxels, the same for all voxels of a cell, which is a box of them.

    `zarrfeed.patch_weights` measures them; `Data.patch(sampling="random", weights=...)` draws with them.

    Attributes
    ----------
    values
        The weight of each voxel of a cell: numbers that are not negative, one for each cell.
    cell
        Voxels of a cell along each axis of `values`. The last cell along an axis may have fewer.
    shape
        Number of voxels along each axis; along the sample axis, the samples of all stores.
    dims
        Names of these axes, if they have names. None: the axes are those of the arrays that are cut, the sample axis
        first.
    counts
        Label -> number of voxels that have it, for the labels that were asked for.
    fingerprint
        A hash of the array that they were measured of, as in `FieldStatistics`; "" if they were not measured.

    Raises
    ------
    ConfigError
        If `values` do not have one number for each cell, or one is negative or not finite.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> fractions = np.array([[0.5, 0.0], [0.25, 0.0]])
    >>> zarrfeed.PatchWeights(fractions, cell=(64, 64), shape=(100, 128))
    PatchWeights of 100 x 128 voxels, in 2 x 2 cells of 64 x 64
    """

    values: npt.NDArray[Any]
    cell: tuple[int, ...]
    shape: tuple[int, ...]
    dims: tuple[str, ...] | None = None
    counts: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    fingerprint: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", np.ascontiguousarray(self.values))
        object.__setattr__(self, "cell", tuple(map(int, self.cell)))
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        lengths = {len(self.cell), len(self.shape), *([] if self.dims is None else [len(self.dims)])}
        if len(lengths) != 1 or min(self.cell, default=0) < 1:
            raise ConfigError(f"cell = {self.cell}, must be a positive number of voxels for each axis of {self.shape}")
        wanted = tuple(-(-length // of) for length, of in zip(self.shape, self.cell, strict=True))
        if self.values.shape != wanted:
            raise ConfigError(
                f"weights of shape {self.values.shape}, must be {wanted}: {self.shape} voxels in cells of {self.cell}"
            )
        check_weights(self.values)

    @property
    def digest(self) -> str:
        """A hash of the weights and their cells."""
        made = hashlib.sha256(f"{self.values.dtype.str} {self.shape} {self.cell} {self.dims}".encode())
        made.update(self.values.data)
        return made.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write a file of NumPy's (.npz), as a whole or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        about = {
            "what": _MARK,
            "cell": self.cell,
            "shape": self.shape,
            "dims": self.dims,
            "counts": {str(label): count for label, count in self.counts.items()},
            "fingerprint": self.fingerprint,
        }
        content = io.BytesIO()
        np.savez_compressed(content, values=self.values, about=np.array(json.dumps(about)))
        write_whole(Path(path), content.getbuffer())

    @classmethod
    def load(cls, path: str | Path) -> PatchWeights:
        """Read the file that `save` wrote.

        Raises
        ------
        ConfigError
            If it is no such file.
        OSError
            If it cannot be read.
        """
        content = Path(path).read_bytes()
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                about, values = parse_json(str(arrays["about"])), arrays["values"]
        except Exception as error:  # of zipfile, zlib, json, NumPy
            raise ConfigError(f"{path}: holds no weights that this version wrote") from error
        if not isinstance(about, dict) or about.get("what") != _MARK:
            raise ConfigError(f"{path}: holds no weights that this version wrote")
        dims = about["dims"]
        counts = {int(label): int(count) for label, count in about["counts"].items()}
        return cls(
            values,
            tuple(about["cell"]),
            tuple(about["shape"]),
            None if dims is None else tuple(dims),
            MappingProxyType(counts),
            str(about["fingerprint"]),
        )

    def __repr__(self) -> str:
        """Return a summary for people."""
        voxels, cells, of = (" x ".join(map(str, one)) for one in (self.shape, self.values.shape, self.cell))
        return f"PatchWeights of {voxels} voxels, in {cells} cells of {of}"


#: Weights that are checked at once.
_CHECKED_AT_ONCE = 1 << 22


def check_weights(values: npt.NDArray[Any]) -> None:
    """Raise ConfigError unless weights are numbers or a mask, finite and not negative."""
    if values.dtype.kind not in "biuf":
        raise ConfigError(f"weights of dtype {values.dtype}, must be numbers, or a mask")
    if values.dtype.kind not in "if":
        return
    flat = values.reshape(-1)
    for begin in range(0, math.prod(values.shape), _CHECKED_AT_ONCE):
        some = flat[begin : begin + _CHECKED_AT_ONCE]
        wrong = np.flatnonzero(~((some >= 0) & np.isfinite(some)))
        if len(wrong):
            raise ConfigError(f"weights has the value {some[wrong[0]]}, must be finite numbers of at least 0")
