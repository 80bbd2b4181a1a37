"""One store, the arrays in it, and what a reader must make of them, worked out in NumPy."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from zarr.abc.store import Store
from zarr.core.buffer import cpu
from zarr.core.sync import sync
from zarr.storage import LocalStore, WrapperStore

from tests.faults.harness.oracle import AnyArray, raw_rows

Int64 = npt.NDArray[np.int64]


class WrongError(AssertionError):
    """Something came that should not have come, or the other way round."""


class FaultyStore(WrapperStore[Store]):
    """A store that fails to read some keys: with an error of the system, each as often as it says.

    Attributes
    ----------
    failures
        Key -> how often it fails from now on.
    stalls
        Keys for which no answer comes.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.failures: dict[str, int] = {}
        self.stalls: set[str] = set()

    def _with_store(self, store: Store) -> FaultyStore:
        other = type(self)(store)
        other.failures, other.stalls = self.failures, self.stalls
        return other

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Return what the store has, or fail."""
        if key in self.stalls:
            await asyncio.Event().wait()
        if self.failures.get(key, 0) > 0:
            self.failures[key] -= 1
            raise OSError(5, "Input/output error", key)
        return await super().get(key, prototype, byte_range)


@dataclass
class StoredArray:
    """An array in the store whose stored objects can be damaged and mended.

    Attributes
    ----------
    store, prefix
        Where it lies.
    axis
        The sample axis.
    step
        Samples of a stored object (a chunk or a shard) along it.
    has_shards
        Whether stored objects are shards, of which parts may be good.
    has_holes
        Whether some are not there.
    """

    store: Store
    prefix: str
    axis: int
    step: int
    has_shards: bool
    has_holes: bool = False

    def list_keys(self) -> list[str]:
        """List the keys of its stored objects, sorted."""

        async def listed() -> list[str]:
            return [key async for key in self.store.list_prefix(f"{self.prefix}/")]

        metadata = ("zarr.json", ".zarray", ".zattrs")
        return sorted(key for key in sync(listed()) if not key.endswith(metadata))

    def samples_of(self, key: str) -> range:
        """Return which samples a stored object holds rows of."""
        cell = [int(part) for part in re.findall(r"\d+", key.removeprefix(f"{self.prefix}/"))]
        return range(cell[self.axis] * self.step, (cell[self.axis] + 1) * self.step)

    def get(self, key: str) -> bytes:
        """Return a stored object."""
        stored = sync(self.store.get(key, cpu.buffer_prototype))
        assert stored is not None, key
        return bytes(stored.to_bytes())

    def set(self, key: str, stored: bytes) -> None:
        """Replace a stored object."""
        sync(self.store.set(key, cpu.Buffer.from_bytes(stored)))

    def delete(self, key: str) -> None:
        """Remove a stored object."""
        sync(self.store.delete(key))


@dataclass
class FieldOracle:
    """What a field delivers.

    Attributes
    ----------
    rows
        Of each index of the array, as it is delivered; a list for text.
    offsets
        Those of its window, along a new axis; a single one has none.
    exact
        Whether it is the same byte for byte. Conversions may change the payload of a NaN.
    stored
        The array in the store, if it is one.
    """

    rows: AnyArray | list[Any]
    offsets: int | tuple[int, ...] | None = None
    exact: bool = True
    stored: StoredArray | None = None

    def read_rows(self, index: Int64) -> Int64:
        """Return which rows of the array are needed for these samples."""
        if self.offsets is None:
            return index
        rows: Int64 = (index[:, None] + np.atleast_1d(self.offsets)).ravel()
        return rows

    def check(self, name: str, got: Any, index: Int64) -> None:
        """Fail unless `got` is a batch of these samples."""
        if isinstance(self.rows, list):
            if got != [self.rows[i] for i in index.tolist()]:
                raise WrongError(f"{name}: text of samples {index.tolist()} is {got}")
            return
        many = isinstance(self.offsets, tuple)
        at = (
            index if self.offsets is None else index[:, None] + np.array(self.offsets) if many else index + self.offsets
        )
        expected = self.rows[at]
        if not isinstance(got, torch.Tensor) or tuple(got.shape) != expected.shape:
            raise WrongError(f"{name}: shape {getattr(got, 'shape', type(got))}, must be {expected.shape}")
        if got.dtype != getattr(torch, expected.dtype.name):
            raise WrongError(f"{name}: dtype {got.dtype}, must be {expected.dtype}")
        if not len(index):
            return
        if self.exact:
            wrong = np.flatnonzero((raw_rows(got) != raw_rows(expected)).any(axis=1))
        else:
            same = (got.numpy() == expected) | (np.isnan(got.numpy()) & np.isnan(expected))
            wrong = np.flatnonzero(~same.reshape(len(same), -1).all(axis=1))
        if wrong.size:
            first = int(wrong[0])
            raise WrongError(
                f"{name}: {wrong.size} of {len(index)} samples differ, the first is sample {index[first]} in slot "
                f"{first}: {got[first]}, must be {expected[first]}"
            )


@dataclass
class Case:
    """Sources of a dataset, and what must come of them.

    Attributes
    ----------
    samples, targets
        As a dataset takes them.
    part
        The name of the only array of `samples`; None if they are a group or a mapping.
    fields
        Name -> what it delivers; "targets" is that of the targets.
    options
        Those that say what a sample is and which there are; for a stream and for random access alike.
    chosen
        The samples to be delivered, ascending.
    faulty
        The store in between, if reading can be made to fail.
    path
        The folder of a local store that is read as such.
    about
        What was drawn, for people.
    """

    samples: Any
    targets: Any
    part: str | None
    fields: dict[str, FieldOracle]
    options: dict[str, Any]
    chosen: Int64
    num_samples: int
    faulty: FaultyStore | None = None
    local: LocalStore | None = None
    sharded: bool = False
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def damageable(self) -> list[tuple[str, StoredArray]]:
        """The stored arrays whose objects can be replaced."""
        return [(name, f.stored) for name, f in self.fields.items() if f.stored and not f.stored.store.read_only]

    def check_batch(self, batch: Any, expected: Int64 | None, *, return_index: bool, single: bool = False) -> Int64:
        """Fail unless a batch is right; return the index of its samples.

        Parameters
        ----------
        batch
            As a dataset yields it.
        expected
            Its samples, in order, if they are known; needed without `return_index`.
        return_index
            Whether the batch says which samples it has.
        single
            Whether it is one sample, without an axis for the batch.
        """
        parts = list(batch) if isinstance(batch, tuple | list) else [batch]
        wanted = 1 + (self.targets is not None) + return_index
        if len(parts) != wanted:
            raise WrongError(f"a batch of {len(parts)} parts, must be {wanted}")
        if return_index:
            index = np.atleast_1d(parts.pop().numpy())
            if expected is not None and not np.array_equal(index, expected):
                raise WrongError(f"samples {index.tolist()}, announced were {expected.tolist()}")
        else:
            assert expected is not None
            index = expected
        got: dict[str, Any] = {}
        if self.targets is not None:
            got["targets"] = parts[1]
        if self.part is None:
            if not isinstance(parts[0], Mapping):
                raise WrongError(f"a batch of a group is {type(parts[0])}")
            got |= parts[0]
        else:
            got[self.part] = parts[0]
        if set(got) != set(self.fields):
            raise WrongError(f"fields {sorted(got)}, must be {sorted(self.fields)}")
        for name, values in got.items():
            self.fields[name].check(name, _as_batch(values) if single else values, index)
        return index

    def needs(self, key: str, name: str, index: Int64) -> npt.NDArray[np.bool_]:
        """Return which samples have rows in a stored object of a field."""
        oracle = self.fields[name]
        assert oracle.stored is not None
        held = oracle.stored.samples_of(key)
        rows = oracle.read_rows(index).reshape(len(index), -1 if len(index) else 1)
        needed: npt.NDArray[np.bool_] = np.any((rows >= held.start) & (rows < held.stop), axis=1, keepdims=True)
        return needed[:, 0]


def _as_batch(values: Any) -> Any:
    return values.unsqueeze(0) if isinstance(values, torch.Tensor) else [values]
