"""`RequestedConversion`: the conversion that the user requested for the items of one field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items, conversion_of
from zarrfeed.spec.conversion import Conversion
from zarrfeed.spec.images import Images


@dataclass(frozen=True)
class RequestedConversion:
    """The conversion that `cast`, `normalize`, `decode` and `dense` requested for the items of one field.

    Attributes
    ----------
    dtype
        Of `cast`. None: not cast.
    mean_std, axis
        Of `normalize`. None: not normalised.
    unapplied_methods
        The methods for all fields, such as `cast(dtype)`, that do not apply because this one is a coordinate.
    images
        Of `decode`. None: not decoded.
    dense
        Whether a sparse matrix becomes a dense tensor.
    """

    dtype: Any = None
    mean_std: Any = None
    axis: int | str | None = None
    unapplied_methods: frozenset[str] = frozenset()
    images: Images | None = None
    dense: bool = False

    def conversion(self, items: Items) -> Conversion | None:
        """Return what becomes of the items; None: they stay as they are.

        Raises
        ------
        ConfigError
            If it is impossible; the message names the field.
        """
        return conversion_of(items, self.dtype, self.mean_std, self.axis)

    def then(self, later: RequestedConversion, name: str) -> RequestedConversion:
        """Return both requests for the field `name` as one; the later one wins."""
        if later.mean_std is not None and self.mean_std is not None:
            raise ConfigError(f"normalize of {name}: it was normalised before; give mean and std once")
        return RequestedConversion(
            dtype=self.dtype if later.dtype is None else later.dtype,
            mean_std=self.mean_std if later.mean_std is None else later.mean_std,
            axis=self.axis if later.mean_std is None else later.axis,
            unapplied_methods=self.unapplied_methods | later.unapplied_methods,
            images=self.images if later.images is None else later.images,
            dense=self.dense or later.dense,
        )

    def with_axis_before(self) -> RequestedConversion:
        """Return the same for items with one more axis before the others."""
        return replace(self, axis=self.axis + 1) if isinstance(self.axis, int) and self.axis >= 0 else self

    @property
    def is_empty(self) -> bool:
        """Whether no conversion was requested."""
        asks_more = self.images is not None or self.unapplied_methods or self.dense
        return self.dtype is None and self.mean_std is None and not asks_more

    @property
    def left_unconverted(self) -> bool:
        """Whether a method for all fields leaves this one as it is."""
        asked = {name for name, value in (("cast", self.dtype), ("normalize", self.mean_std)) if value is not None}
        return bool(self.unapplied_methods - asked)
