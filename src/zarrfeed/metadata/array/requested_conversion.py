"""`RequestedConversion`: the conversion that the user requested for the items of one field."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items, check_converts, conversion_of, is_float
from zarrfeed.metadata.array.requested_step import RequestedStep
from zarrfeed.spec.fields.images import Images
from zarrfeed.spec.values.conversion import Conversion


@dataclass(frozen=True)
class RequestedConversion:
    """The conversion that methods such as `cast`, `normalize`, `decode` and `dense` requested for items of one field.

    Attributes
    ----------
    dtype
        The dtype of `cast`. None: not cast.
    steps
        The steps of `normalize`, `log1p` and their like, in the order of the calls.
    unapplied_methods
        The methods for all fields, such as `cast(dtype)`, that do not apply because this one is a coordinate.
    images
        The images of `decode`. None: not decoded.
    dense
        True if a sparse matrix becomes a dense tensor.
    """

    dtype: Any = None
    steps: tuple[RequestedStep, ...] = ()
    unapplied_methods: frozenset[str] = frozenset()
    images: Images | None = None
    dense: bool = False

    def conversion(self, items: Items) -> Conversion | None:
        """Make the conversion of the items; None: they stay as they are.

        Raises
        ------
        ConfigError
            If it is impossible; the message names the field.
        """
        if self.images is not None and self.images.shape:
            items = items.with_image_axes(self.images.shape)
        elif self.images is not None and (self.dtype is not None or self.steps):
            raise ConfigError(f"{items.name}: images of their own sizes are not converted; give decode() a size")
        if self.dtype is not None or self.steps:
            check_converts(items)
        return conversion_of(items, self.dtype, tuple(one.made_for(items) for one in self.steps))

    def stepped(self, step: RequestedStep, name: str) -> RequestedConversion:
        """Return the request for the field `name` with one more step, behind the others."""
        if step.kind == "normalize" and self.is_normalized:
            raise ConfigError(f"normalize of {name}: it was normalised before; give mean and std once")
        return replace(self, steps=(*self.steps, step))

    def then(self, later: RequestedConversion, name: str) -> RequestedConversion:
        """Return both requests for the field `name` as one; the later one wins."""
        both = self
        for step in later.steps:
            both = both.stepped(step, name)
        return replace(
            both,
            dtype=self.dtype if later.dtype is None else later.dtype,
            unapplied_methods=self.unapplied_methods | later.unapplied_methods,
            images=self.images if later.images is None else later.images,
            dense=self.dense or later.dense,
        )

    def has_floats(self, items: Items) -> bool:
        """Return whether values are floats, of which some may be NaN."""
        return bool(self.steps) or is_float(items.dtype if items.decoding is None else items.decoding.result)

    def with_axis_before(self) -> RequestedConversion:
        """Move the conversion to items with one more axis before the others."""
        return replace(self, steps=tuple(one.with_axis_before() for one in self.steps))

    def before_normalize(self) -> RequestedConversion:
        """Return the steps before that of `normalize`, or all: statistics are measured of their results."""
        return RequestedConversion(steps=tuple(takewhile(lambda one: one.kind != "normalize", self.steps)))

    @property
    def is_normalized(self) -> bool:
        """True if one of the steps is that of `normalize`."""
        return any(one.kind == "normalize" for one in self.steps)

    @property
    def is_empty(self) -> bool:
        """True if no conversion was requested."""
        asks_more = self.images is not None or self.unapplied_methods or self.dense
        return self.dtype is None and not self.steps and not asks_more

    @property
    def left_unconverted(self) -> bool:
        """True if a method for all fields leaves this one as it is."""
        asked = {"cast"} if self.dtype is not None else set()
        return bool(self.unapplied_methods - asked - {one.kind for one in self.steps})
