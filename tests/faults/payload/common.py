"""What the rows about damaged payload share: how an array is read while one of its files is damaged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.storage import LocalStore, WrapperStore

import zarrfeed
from tests.faults.harness.row import UnspecifiedError
from zarrfeed import ZarrIterableDataset

#: What a checksum of a stored chunk covers.
Check = Literal["stored bytes", "content", "nothing"]

AS_SPECIFIED = "every change as specified"


@contextlib.contextmanager
def damaged(file: Path, content: bytes | bytearray, good: bytes) -> Iterator[None]:
    """Let a file have other content, and write the good content back at the end."""
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(good)


def stream_of(path: Path, way: int) -> ZarrIterableDataset:
    """Return a stream over an array: shuffled (way 0), in order (1), or through a store that Python reads (3)."""
    source: Any = zarr.open_array(WrapperStore(LocalStore(path)), mode="r") if way == 3 else path
    return ZarrIterableDataset(
        source,
        batch_size=5,
        shuffle=way == 0,
        return_index=True,
        num_threads=2,
        mixing={"lanes": 1 if way else None},
    )


def check_verify(path: Path, *, is_caught: bool) -> None:
    """Let `verify` find damage exactly if reading failed."""
    report = zarrfeed.verify(path)
    if report.ok == is_caught:
        raise UnspecifiedError(f"reading it {'failed' if is_caught else 'succeeded'}, verify says {report}")
