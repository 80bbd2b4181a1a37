"""`Listing`: which objects there are, in the order of their keys, in little memory."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_list

Int64 = npt.NDArray[np.int64]

#: The size of an object whose store does not tell it.
UNKNOWN_SIZE = -1


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of a listing.

    Attributes
    ----------
    key
        Key of the object below the source, such as "train/0001.jpg".
    size
        Bytes; -1 if the store does not tell.
    """

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """Keys and sizes of some objects, in little memory.

    Attributes
    ----------
    blob
        The UTF-8 bytes of the keys, one after the other.
    lengths
        int32 of shape (objects,): bytes of each key.
    sizes
        int64 of shape (objects,): bytes of each object; -1 where unknown.
    """

    blob: bytes
    lengths: npt.NDArray[np.int32]
    sizes: Int64

    @classmethod
    def of(cls, keys: Sequence[str], sizes: Sequence[int]) -> PackedKeys:
        """Pack keys and sizes, one size for each key."""
        encoded = [key.encode("utf-8", "surrogateescape") for key in keys]
        lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
        return cls(b"".join(encoded), lengths, np.array(sizes, np.int64))


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

    @classmethod
    def of_keys(cls, objects: Iterable[str | tuple[str, SupportsIndex]]) -> Listing:
        """Return the listing of objects that the user names, in the order given.

        Parameters
        ----------
        objects
            Keys below the source, such as "train/0001.jpg", or pairs of a key and a size in bytes.

        Raises
        ------
        ConfigError
            If one is neither, a key is empty, begins with a slash or is there twice, or a size is negative.

        Examples
        --------
        >>> from zarrfeed.objects import Listing
        >>> listing = Listing.of_keys(["b.npy", ("a.npy", 300)])
        >>> [(one.key, one.size) for one in listing]
        [('b.npy', -1), ('a.npy', 300)]
        """
        named = check_list("keys", objects, "keys, or of pairs of a key and a size")
        pairs = [_checked(number, one) for number, one in enumerate(named)]
        if len({key for key, _ in pairs}) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise ConfigError(f"keys: got {twice!r} twice; give each once")
        return cls.of(pairs)

    @classmethod
    def joined(cls, parts: Iterable[PackedKeys]) -> Listing:
        """Return the listing of all objects of some parts, one part after the other."""
        parts = list(parts)
        if not parts:
            return cls.of([])
        ends = np.cumsum(np.concatenate([part.lengths for part in parts]), dtype=np.int64)
        return cls(b"".join(part.blob for part in parts), ends, np.concatenate([part.sizes for part in parts]))

    def sorted(self) -> Listing:
        """Return the listing in the order of the UTF-8 bytes of keys; the last one of objects with the same key."""
        begins = self._ends - np.diff(self._ends, prepend=0)
        keys = [self._blob[begin:end] for begin, end in zip(begins.tolist(), self._ends.tolist(), strict=True)]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        is_last = [i + 1 == len(order) or keys[order[i]] != keys[order[i + 1]] for i in range(len(order))]
        return self.take(order[np.array(is_last, bool)])

    def take(self, indices: Int64) -> Listing:
        """Return the listing of the objects at some indices, in the order given."""
        lengths = np.diff(self._ends, prepend=0)[indices]
        begins = self._ends[indices] - lengths
        blob = b"".join(
            self._blob[begin : begin + n] for begin, n in zip(begins.tolist(), lengths.tolist(), strict=True)
        )
        return Listing(blob, np.cumsum(lengths), self.sizes[indices])

    def where(self, is_wanted: Callable[[StoredObject], bool]) -> Listing:
        """Return the listing of the objects for which a function returns True, in the same order."""
        return self.take(np.flatnonzero(np.fromiter((bool(is_wanted(one)) for one in self), bool, len(self))))

    def find(self, key: str) -> int:
        """Return the index of the first key that is not before this one; the listing is in the order of keys."""
        wanted = key.encode("utf-8", "surrogateescape")
        return bisect_left(range(len(self)), wanted, key=self._bytes_of)

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
        return self._bytes_of(index).decode("utf-8", "surrogateescape")

    def _bytes_of(self, index: int) -> bytes:
        begin = int(self._ends[index - 1]) if index else 0
        return self._blob[begin : int(self._ends[index])]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the three arrays that make the listing, by the names of the arguments."""
        return {"blob": np.frombuffer(self._blob, np.uint8), "ends": self._ends, "sizes": self.sizes}

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

    def is_sound(self) -> bool:
        """Return whether the arrays fit together; those of a file may not."""
        ends, sizes = self._ends, self.sizes
        if ends.dtype != np.int64 or sizes.dtype != np.int64 or ends.ndim != 1 or ends.shape != sizes.shape:
            return False
        rises = bool((np.diff(ends, prepend=0) > 0).all()) and bool((sizes >= UNKNOWN_SIZE).all())
        return rises and (int(ends[-1]) if len(ends) else 0) == len(self._blob)

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


def _checked(number: int, one: Any) -> tuple[str, int]:
    """Return an object that the user names as key and size."""
    key, size = one if isinstance(one, tuple) and len(one) == 2 else (one, UNKNOWN_SIZE)
    where = f"keys[{number}]"
    if not isinstance(key, str) or isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise ConfigError(f"{where} = {one!r}, must be a key, or a key and its size in bytes")
    if not key or key.startswith("/"):
        raise ConfigError(f"{where} = {one!r}: a key must not be empty or begin with a slash")
    if size < UNKNOWN_SIZE:
        raise ConfigError(f"{where} = {one!r}: a size must be at least 0, or -1 where it is unknown")
    return key, int(size)
