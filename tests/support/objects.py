"""Folders of objects that carry their number, so that a wrong slot cannot hide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def content(number: int) -> bytes:
    """Return the bytes of an object: its number, as often as makes its size one of its own."""
    return np.full(1 + number % 7, number, np.int32).tobytes()


def key_of(number: int) -> str:
    """Return the key of an object; keys are in the order of the numbers."""
    return f"part-{number // 50:02d}/{number:05d}.bin"


def write_objects(folder: Path, count: int) -> Path:
    """Write so many objects."""
    for number in range(count):
        path = folder / key_of(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    return folder


def number_of(value: Any) -> int:
    """Return the number of an object as it was delivered; checks that all of it is there."""
    data: npt.NDArray[Any] = np.frombuffer(value if isinstance(value, bytes) else bytes(np.asarray(value)), np.int32)
    number = int(data[0])
    assert data.tobytes() == content(number)
    return number
