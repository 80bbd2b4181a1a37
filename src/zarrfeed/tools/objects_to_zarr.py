"""`zarrfeed.objects.to_zarr`: objects as one Zarr store, whose shards hold many of them."""

from __future__ import annotations

import errno
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.own_files import check_side_folder
from zarrfeed.base.units import parse_bytes
from zarrfeed.engine.object_decoders import Decode
from zarrfeed.torch.datasets.object_iterable_dataset import ObjectIterableDataset

#: The dtype of bytes of any length.
_BYTES: Any = "variable_length_bytes"


def to_zarr(
    source: Any,
    path: str | Path,
    *,
    decode: Decode = None,
    chunk: int | str = "1MiB",
    shard: int | str = "64MiB",
) -> zarr.Group:
    """Write objects as the samples of one local Zarr store, in their order.

    Parameters
    ----------
    source
        The objects, as in `ObjectIterableDataset`.
    path
        Path of the store, which must not exist. It appears when it is whole.
    decode
        A decoder, as in `ObjectIterableDataset`. If it gives arrays, all of one shape and dtype, the store has these.
        None or "bytes": the bytes as they are, of any length.
    chunk, shard
        Decoded bytes of a chunk, and of a shard, about.

    Returns
    -------
    A group with the arrays "objects", of shape (objects, *shape of one), and "keys", text of shape (objects,).

    Raises
    ------
    ConfigError
        If an argument cannot work, or the decoded objects are no arrays of one shape and dtype; the message names one.
    FileExistsError
        If the path exists.
    StoreReadError, CorruptChunkError
        For an object that cannot be read or decoded. Nothing is left behind then.

    Examples
    --------
    >>> import pathlib, tempfile, numpy as np, zarrfeed, zarrfeed.objects
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pathlib.Path(folder, "in").mkdir()
    ...     for i in range(3):
    ...         np.save(pathlib.Path(folder, "in", f"{i}.npy"), np.full((2, 2), i))
    ...     packed = zarrfeed.objects.to_zarr(f"{folder}/in", f"{folder}/out.zarr", decode="npy")
    ...     packed["objects"].shape, len(zarrfeed.open(packed, variables=["objects"]))
    ((3, 2, 2), 3)
    """
    chunk_bytes, shard_bytes = parse_bytes(chunk, "chunk"), parse_bytes(shard, "shard")
    path = Path(path)
    if path.exists():
        raise FileExistsError(errno.EEXIST, "exists: objects are packed into a new store", str(path))
    beside = path.with_name(f".{path.name}.unfinished")
    check_side_folder(beside)
    with ObjectIterableDataset(source, decode="bytes" if decode is None else decode, batch_size=1) as dataset:
        dataset.objects.check_unweighted("to_zarr")
        keys = [one.key for one in dataset.objects.listing]
        first = _as_array(next(iter(dataset))[0], keys[0])
        mean = dataset.objects.mean_bytes if first.dtype == object else first.nbytes
        source = dataset.objects
    rows = int(np.clip(chunk_bytes // max(1, mean), 1, len(keys)))
    per_shard = rows * int(np.clip(shard_bytes // max(1, mean * rows), 1, -(-len(keys) // rows)))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=zarr.errors.UnstableSpecificationWarning)
            group = zarr.create_group(beside, overwrite=True)
            array: Any = group.create_array(
                "objects",
                shape=(len(keys), *first.shape[1:]),
                dtype=_BYTES if first.dtype == object else first.dtype,
                chunks=(rows, *first.shape[1:]),
                shards=(per_shard, *first.shape[1:]),
            )
            with ObjectIterableDataset(
                source, decode="bytes" if decode is None else decode, batch_size=per_shard
            ) as all_:
                for number, batch in enumerate(all_):
                    begin = number * per_shard
                    array[begin : begin + len(batch)] = _stacked(batch, keys[begin:], first)
            names: Any = group.create_array("keys", shape=(len(keys),), dtype="string", chunks=(len(keys),))
            names[:] = np.array(keys, dtype=object)
        beside.rename(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return zarr.open_group(path, mode="r")


def _as_array(value: Any, key: str) -> npt.NDArray[Any]:
    """Return a decoded object as an array with an axis of one sample in front."""
    if isinstance(value, bytes):
        one = np.empty(1, object)
        one[0] = value
        return one
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise ConfigError(f"{key}: decode returned a {type(value).__name__}, must return bytes or an array of numbers")
    return array[None]


def _stacked(batch: list[Any], keys: list[str], first: npt.NDArray[Any]) -> npt.NDArray[Any]:
    arrays = []
    for value, key in zip(batch, keys, strict=False):
        array = _as_array(value, key)
        if (array.shape, array.dtype) != (first.shape, first.dtype):
            raise ConfigError(
                f"{key}: decode returned {array.dtype} of shape {array.shape[1:]}, and of the first object "
                f"{first.dtype} of shape {first.shape[1:]}: one array holds objects of one shape"
            )
        arrays.append(array)
    return np.concatenate(arrays)
