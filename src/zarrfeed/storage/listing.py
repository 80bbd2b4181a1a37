"""`Listing`: which objects there are, in the order of their keys, in little memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import SupportsIndex, overload

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

#: The size of an object whose store does not tell it.
UNKNOWN_SIZE = -1


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object.

    Attributes
    ----------
    key
        Below the source, such as "train/0001.jpg".
    size
        Bytes; -1 if the store does not tell.
    """

    key: str
    size: int


class Listing(Sequence[StoredObject]):
    """Keys and sizes of objects; keys take their UTF-8 bytes, and 16 bytes more for each object.

    Parameters
    ----------
    blob
        The UTF-8 bytes of all keys, one after the other.
    ends
        int64 of shape (objects,): where each key ends in `blob`.
    sizes
        int64 of shape (objects,): bytes of each object; -1 where unknown.

    Examples
    --------
    >>> listing = Listing.of([("a.npy", 100), ("b.npy", 300)])
    >>> len(listing), listing[1].key, listing.total_bytes
    (2, 'b.npy', 400)
    """

    def __init__(self, blob: bytes, ends: Int64, sizes: Int64) -> None:
        self._blob = blob
        self._ends = ends
        self.sizes = sizes

    @classmethod
    def of(cls, objects: Iterable[tuple[str, int]]) -> Listing:
        """Return the listing of objects by key and size, in the order given."""
        keys, sizes = [], []
        for key, size in objects:
            keys.append(key.encode("utf-8", "surrogateescape"))
            sizes.append(size)
        ends = np.cumsum(np.fromiter(map(len, keys), np.int64, len(keys)))
        return cls(b"".join(keys), ends, np.array(sizes, np.int64))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: SupportsIndex) -> StoredObject: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredObject]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> StoredObject | list[StoredObject]:
        """Return an object, or a list of them for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return StoredObject(self.key(i), int(self.sizes[i]))

    def __iter__(self) -> Iterator[StoredObject]:
        """Yield all objects."""
        return (self[i] for i in range(len(self)))

    def key(self, index: int) -> str:
        """Return the key of one object; `index` is not negative."""
        begin = int(self._ends[index - 1]) if index else 0
        return self._blob[begin : int(self._ends[index])].decode("utf-8", "surrogateescape")

    def take(self, indices: Int64) -> Listing:
        """Return the listing of some of the objects, in the order given."""
        return Listing.of((self.key(int(i)), int(self.sizes[i])) for i in indices)

    @property
    def total_bytes(self) -> int:
        """Bytes of all objects whose size is known."""
        return int(self.sizes[self.sizes > 0].sum())

    @property
    def digest(self) -> str:
        """A hash of the keys, in hexadecimal: listings of the same keys in the same order have the same."""
        made = hashlib.sha256(self._blob)
        made.update(self._ends.astype("<i8").tobytes())
        return made.hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        """Return whether keys and sizes are the same."""
        if not isinstance(other, Listing):
            return NotImplemented
        return (
            self._blob == other._blob
            and np.array_equal(self._ends, other._ends)
            and np.array_equal(self.sizes, other.sizes)
        )

    __hash__ = None  # type: ignore[assignment] # it is a sequence of what may be millions

    def __repr__(self) -> str:
        return f"<Listing of {len(self)} objects, {self.total_bytes} bytes>"
