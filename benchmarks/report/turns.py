"""Turns of sides that deliver samples, and the ratios between two sides of a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One turn of one side."""

    case: str
    side: str
    repeat: int
    samples_per_s: float


def rates_of(turns: Sequence[Turn], case: str, side: str) -> list[float]:
    """Return the rates of a side, in the order of its turns."""
    return [turn.samples_per_s for turn in turns if turn.case == case and turn.side == side]


def ratios_of(turns: Sequence[Turn], case: str, side: str, other: str) -> list[float]:
    """Return the rate of a side as a share of that of another side, of each round."""
    rates = zip(rates_of(turns, case, side), rates_of(turns, case, other), strict=True)
    return [ours / theirs for ours, theirs in rates]
