"""`Opening`: what was passed to `zarrfeed.open`, opened now or, of Icechunk repositories, at snapshots of before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.group.batch_columns import Opened
from zarrfeed.metadata.group.fields import Source, open_fields
from zarrfeed.metadata.group.sample_dims import ParsedDims
from zarrfeed.metadata.group.variables import Variables
from zarrfeed.storage.access.access import StoreAccess

#: The branch of an Icechunk repository that is read.
_BRANCH = "main"


def is_repository(source: object) -> bool:
    """Return whether this is an `icechunk.Repository`."""
    return _is_of_icechunk(source, "Repository")


@dataclass(frozen=True, eq=False)
class Opening:
    """The arguments of `zarrfeed.open` that say which arrays are read; `open_fields` describes them."""

    samples: Source
    targets: Source | None
    sample_axis: int
    sample_dim: ParsedDims
    variables: Variables | None
    multiscale: Sequence[str | int] | None
    decode_cf: bool
    access: StoreAccess
    may_grow: bool
    depth: int = 0

    def __post_init__(self) -> None:
        for source in (self.samples, self.targets):
            if self.may_grow and _is_of_icechunk(source, "IcechunkStore"):
                raise ConfigError(f"refresh = 'epoch': {source!r} is one snapshot; give the icechunk.Repository itself")

    @property
    def repositories(self) -> list[Any]:
        """The Icechunk repositories among the sources."""
        return [source for source in (self.samples, self.targets) if is_repository(source)]

    def snapshots(self) -> tuple[str, ...]:
        """Return the newest snapshot of each repository."""
        return tuple(str(one.lookup_branch(_BRANCH)) for one in self.repositories)

    def open(self, snapshots: tuple[str, ...] | None = None) -> Opened:
        """Open the arrays: those of repositories at some snapshots, or at their newest."""
        left = list(self.snapshots() if snapshots is None else snapshots)
        sources: tuple[Any, Any] = (self.samples, self.targets)
        samples, targets = (
            source.readonly_session(snapshot_id=left.pop(0)).store if is_repository(source) else source
            for source in sources
        )
        return open_fields(**{**vars(self), "samples": samples, "targets": targets})

    def open_pair(self, samples: Source, targets: Source | None) -> Opened:
        """Open the arrays of one of many stores, with the same options."""
        return replace(self, samples=samples, targets=targets).open()


def _is_of_icechunk(source: object, name: str) -> bool:
    kind = type(source)
    return kind.__module__.partition(".")[0] == "icechunk" and kind.__name__ == name
