"""`Version`: the samples of a growing store that an epoch reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Version:
    """The samples of a growing store when an epoch began.

    Attributes
    ----------
    num_samples
        Samples that were complete in every array.
    first
        The oldest sample that is read; samples before it are outside of the window.
    snapshots
        The snapshot id of each Icechunk repository that was opened. Empty for other stores.
    """

    num_samples: int
    first: int = 0
    snapshots: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the version as a JSON object.

        >>> Version(300, first=100).to_json()
        {'samples': 300, 'first': 100}
        """
        json: dict[str, Any] = {"samples": self.num_samples, "first": self.first}
        return {**json, "snapshots": list(self.snapshots)} if self.snapshots else json

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Version:
        """Return the version that `to_json` described.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        num_samples, first = json["samples"], json["first"]
        snapshots = tuple(json.get("snapshots", ()))
        for name, value in (("samples", num_samples), ("first", first)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} = {value!r}, must be an integer")
        if not 0 <= first < num_samples:
            raise ValueError(f"first = {first}, must be in [0, {num_samples})")
        if not all(isinstance(one, str) for one in snapshots):
            raise TypeError(f"snapshots = {snapshots!r}, must be text")
        return cls(num_samples, first, snapshots)
