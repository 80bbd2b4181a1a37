"""Which rows of an array make a sample."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The rows of a sample, as distances from its own; with `stacked`, along an axis of their own, the first."""

    offsets: tuple[int, ...]
    stacked: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """What it adds to the shape of a row."""
        return (len(self.offsets),) if self.stacked else ()

    def __str__(self) -> str:
        """Return one line for people."""
        rows = ", ".join(f"{offset:+d}" for offset in self.offsets)
        return f"rows at {rows}" if self.stacked else f"the row at {rows}"
