"""`Data.coords`: the coordinates of the chosen samples by name, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.coordinates import ALONG_SAMPLES
from zarrfeed.plan.samples.sample_set import as_index


class SampleCoords(Mapping[str, npt.NDArray[Any]]):
    """The coordinates of the chosen samples, as `Data.sel` decodes them: arrays of shape (samples,).

    The sample dimensions are listed. Other coordinates along these are found by their names.

    Parameters
    ----------
    resolved
        The samples.
    """

    def __init__(self, resolved: ResolvedData) -> None:
        self._resolved = resolved

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return the values of a coordinate; raise ConfigError if none of that name is stored."""
        values = self._resolved.coordinate(name, remedy=ALONG_SAMPLES).values
        chosen: npt.NDArray[Any] = values[as_index(self._resolved.choice.listed())]
        return chosen

    def __iter__(self) -> Iterator[str]:
        known = self._resolved.origin.coordinates
        return iter(() if known is None else known.sample_dims)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))

    def __repr__(self) -> str:
        dtypes = {name: f"{one.dtype} {np.shape(one)}" for name, one in self.items()}
        return f"<coordinates of samples {dtypes}>"
