"""Coordinates of samples that several dimensions number: along one of the dimensions, or along several, as stored.

Such are the members, the times, and of forecasts the valid times by initial time and step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.coordinate_values import checked_values
from zarrfeed.spec.samples.coordinate import Coordinate


@dataclass(frozen=True, eq=False)
class GridCoordinate:
    """A coordinate as it is stored.

    Attributes
    ----------
    coordinate
        Its values, in C order.
    dims
        The dimensions that it lies along, in the order of those of the samples.
    """

    coordinate: Coordinate
    dims: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, values: npt.NDArray[Any], dims: Sequence[str | None], where: str, lengths: Mapping[str, int]
    ) -> GridCoordinate:
        """Return the coordinate of stored values.

        Parameters
        ----------
        name, values, dims, where
            Its name, its decoded values, the dimensions that these lie along, and what messages call it.
        lengths
            The sample dimensions, and their lengths.

        Raises
        ------
        ConfigError
            If it does not lie along sample dimensions, or has other lengths.
        """
        known = ", ".join(f"{dim!r} ({length})" for dim, length in lengths.items())
        if not dims or any(dim not in lengths for dim in dims) or len(set(dims)) < len(dims):
            raise ConfigError(f"{where}: lies along {tuple(dims)}, must lie along some of {known}")
        wanted = tuple(lengths[str(dim)] for dim in dims)
        if values.shape != wanted:
            raise ConfigError(f"{where}: has the shape {values.shape}, must have {wanted}: along some of {known}")
        ordered = [dim for dim in lengths if dim in dims]
        flat = values.transpose([list(dims).index(dim) for dim in ordered]).ravel()
        return cls(Coordinate(name, checked_values(flat, len(flat), where), where), tuple(ordered))

    def expanded(self, lengths: Mapping[str, int]) -> Coordinate:
        """Return the coordinate with a value for each sample."""
        own = [lengths[dim] if dim in self.dims else 1 for dim in lengths]
        whole = np.broadcast_to(self.coordinate.values.reshape(own), tuple(lengths.values()))
        return Coordinate(self.coordinate.name, whole.reshape(math.prod(lengths.values())), self.coordinate.where)
