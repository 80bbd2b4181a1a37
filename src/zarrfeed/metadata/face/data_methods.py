"""`DataMethods`: what each group of methods of `Data` builds on."""

from __future__ import annotations

from typing import Self

from zarrfeed.metadata.description.method_call import MethodCall
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.spec.description.expression import Expression


class DataMethods:
    """The attributes of `Data`, and how a method makes another `Data`."""

    expression: Expression
    resolved: ResolvedData
    growth: Growth | None

    def _then(self, call: MethodCall, resolved: ResolvedData | None = None) -> Self:
        """Return the description after one more call, whose result may be `resolved` already."""
        raise NotImplementedError
