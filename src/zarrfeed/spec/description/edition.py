"""`Edition`: the data that an epoch reads, where they change between epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.spec.description.version import Version

#: The `strip_reaches` of states that name none.
FIRST_REACHES = 8


@dataclass(frozen=True)
class Edition:
    """The edition that an epoch reads: a version of a store, windows with some offsets, some weights, some slabs.

    Attributes
    ----------
    version
        The version of a growing store. None: the store does not grow, or the pass that begins the epoch looks at it.
    offsets
        Offsets of the windows, by the names of arrays. None: those that the dataset was made with.
    slab_rows
        Rows of the slabs that chunks are cut into. 0: blocks are whole, as in states of earlier releases.
    strip_reaches
        Length of a strip of slabs, as a multiple of the rows that neighbours share, which lanes hand on inside of a
        strip. `FIRST_REACHES`, as in states of version 5. 0, as in states before these: lanes hand no rows on, and no
        slabs stay together.
    weights
        The digest of the weights of the samples. None: those that the dataset was made with.
    """

    version: Version | None = None
    offsets: Mapping[str, Any] | None = None
    slab_rows: int = 0
    strip_reaches: int = 0
    weights: str | None = None

    @property
    def key(self) -> tuple[Version | None, str, int, int, str | None]:
        """The edition as a key of a dict; offsets are written as text, since they may be lists."""
        return self.version, repr(self.offsets), self.slab_rows, self.strip_reaches, self.weights

    @property
    def lasting(self) -> Edition:
        """The part that later epochs read as well: slabs, and offsets and weights until others are named."""
        return replace(self, version=None)

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the JSON object of a state.

        >>> Edition(Version(300), {"x": [0, 1]}).to_json()
        {'store': {'samples': 300, 'first': 0}, 'offsets': {'x': [0, 1]}}
        """
        json: dict[str, Any] = {} if self.version is None else {"store": self.version.to_json()}
        if self.offsets is not None:
            json["offsets"] = dict(self.offsets)
        if self.slab_rows:
            json["slab_rows"] = self.slab_rows
        if self.strip_reaches:
            json["carries_rows"] = True
        if self.strip_reaches not in (0, FIRST_REACHES):
            json["strip_reaches"] = self.strip_reaches
        if self.weights is not None:
            json["weights"] = self.weights
        return json

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Edition:
        """Return the edition that the JSON object of a state names.

        Raises
        ------
        ValueError, KeyError, TypeError
            If `json` is no edition. Bad offsets raise a ConfigError, which is a ValueError.
        """
        version = Version.from_json(json["store"]) if "store" in json else None
        return cls(version, offsets_in(json), *slabs_in(json), weights_in(json))


def offsets_in(json: object) -> Mapping[str, Any] | None:
    """Return the offsets that a state in its JSON form names; None if it names none.

    Raises
    ------
    ConfigError
        If they cannot be any.
    """
    offsets = json.get("offsets") if isinstance(json, Mapping) else None
    if offsets is None:
        return None
    if not isinstance(offsets, Mapping) or not all(isinstance(name, str) for name in offsets):
        raise ConfigError(f"the state is damaged: offsets = {offsets!r}")
    return dict(offsets)


def weights_in(json: object) -> str | None:
    """Return the digest of the weights that a state in its JSON form names; None if it names none.

    Raises
    ------
    ConfigError
        If it cannot be one.
    """
    weights = json.get("weights") if isinstance(json, Mapping) else None
    if weights is not None and not isinstance(weights, str):
        raise ConfigError(f"the state is damaged: weights = {weights!r}")
    return weights


def slabs_in(json: object) -> tuple[int, int]:
    """Return `slab_rows` and `strip_reaches` that a state in its JSON form names.

    Raises
    ------
    ConfigError
        If they cannot be any.
    """
    rows, carries = (json.get("slab_rows", 0), json.get("carries_rows", False)) if isinstance(json, Mapping) else (0, 0)
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows < 2**62:
        raise ConfigError(f"the state is damaged: slab_rows = {rows!r}")
    if carries not in (False, True) or (carries and not rows):
        raise ConfigError(f"the state is damaged: carries_rows = {carries!r}, with slab_rows = {rows!r}")
    reaches = json.get("strip_reaches", FIRST_REACHES * carries) if isinstance(json, Mapping) else 0
    if isinstance(reaches, bool) or not isinstance(reaches, int) or not carries <= reaches <= carries << 31:
        raise ConfigError(f"the state is damaged: strip_reaches = {reaches!r}, with carries_rows = {carries!r}")
    return rows, reaches
