"""Batches of types that users make: a named tuple and a dataclass."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import torch

Pair = namedtuple("Pair", ["x", "name"])


@dataclass
class Sample:
    """A tensor and its name."""

    x: torch.Tensor
    name: str = ""
