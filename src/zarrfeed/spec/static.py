"""`StaticField`: an array without a sample axis, such as a land-sea mask, that every batch has as one tensor."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.spec.field import ResidentField, StoredField, dtype_name


@dataclass(frozen=True)
class StaticField:
    """An array that is the same for all samples.

    Attributes
    ----------
    name
        Its key in the dict of the samples.
    source
        Where its values are: the rows along its first axis. It is read when a dataset is made.
    shape
        Of the array.
    """

    name: str
    source: StoredField | ResidentField
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Name of the dtype that batches have."""
        return dtype_name(self.source)

    def __str__(self) -> str:
        where = self.source.spec.name if isinstance(self.source, StoredField) else "in memory"
        return f"{where}: {self.shape} {self.dtype}, one tensor for all samples"
