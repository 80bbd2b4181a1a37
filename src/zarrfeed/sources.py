"""What the user passed -> a `FieldSet`: arrays, groups, mappings and memory, opened, named, aligned or refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import zarr

from zarrfeed.errors import ConfigError, StoreReadError, UnsupportedError, ZarrfeedError
from zarrfeed.fields import BlockUnit, Field, FieldSet, IndexField, ResidentField, StoredField, sample_bytes
from zarrfeed.layout import TORCH_DTYPES, ArrayLike, open_node, printable, read_layout

FieldSource: TypeAlias = "ArrayLike | npt.NDArray[Any] | torch.Tensor"
Source: TypeAlias = "FieldSource | zarr.Group | Mapping[str, FieldSource]"

#: Fields with fewer bytes a sample than this part of the largest one's do not decide on the blocks.
_HEAVY = 1 / 4
#: Blocks longer than this are avoided where there is a choice: 16 lanes of them fill half of the usual budget.
_BLOCK_BYTES = 32 << 20
#: Blocks of a dataset that lies in memory: many rows, to be dealt out quickly, but no more bytes than a usual chunk.
_MEMORY_BLOCK_ROWS = 64
_MEMORY_BLOCK_BYTES = 1 << 20


def read_fields(
    samples: Source,
    targets: Source | None = None,
    *,
    sample_axis: int = 0,
    return_index: bool = False,
    resident_bytes: int = 0,
    block: BlockUnit = "chunk",
) -> FieldSet:
    """Open and align all that a dataset consists of. Reads metadata only.

    Parameters
    ----------
    samples, targets
        An array, a group (all arrays in it, by name; groups in it are not entered) or a mapping of names to arrays.
        An array is a path, a `file://` URL, a `zarr.Array`, a NumPy array or a tensor.
    sample_axis
        Of every array of `samples`; targets have theirs first.
    return_index
        Whether the sample's index is the last field.
    resident_bytes
        Room for stored arrays whose chunks do not nest in the blocks: they would be decoded several times, and are
        kept in memory instead if they fit.
    block
        Whether read chunks of the driving field make the blocks, or its shards.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        For an array that cannot be read, or lengths that differ; the message names the field.
    """
    sample_keys, sample_fields = _read_part("samples", samples, sample_axis)
    parts = [sample_keys]
    fields = list(sample_fields)
    for f in sample_fields:
        if isinstance(f, ResidentField) and f.rows.numel() == 0:
            raise ConfigError(f"{f.name}: has no elements, shape {tuple(f.rows.shape)}")
    if targets is not None:
        target_keys, target_fields = _read_part("targets", targets, 0)
        parts.append(target_keys)
        fields += target_fields
    _check_lengths(fields)

    driving = choose_driving(sample_fields, fields, block)
    if driving is None:
        if block == "shard":
            raise ConfigError("block = 'shard', but no array is stored; must be 'chunk'")
        row_bytes = sum(sample_bytes(f) for f in fields)
        rows = max(1, min(_MEMORY_BLOCK_ROWS, _MEMORY_BLOCK_BYTES // row_bytes))
    else:
        chosen = fields[driving]
        assert isinstance(chosen, StoredField)
        if block == "shard" and chosen.spec.shard is None:
            raise ConfigError(
                f"block = 'shard', but {_with_path(chosen)}, which makes the blocks, has no shards; must be 'chunk'"
            )
        rows = _block_rows(chosen, block)
        fields = _keep_small_ones(fields, rows, resident_bytes)
    num_samples = fields[0].num_samples
    if return_index:
        fields.append(IndexField(num_samples))
        parts.append(None)
    return FieldSet(tuple(fields), tuple(parts), driving, min(num_samples, rows), block)


def _block_rows(f: StoredField, block: BlockUnit) -> int:
    """Return the samples of a full block if `f` makes them."""
    return f.spec.shard_shape[f.spec.sample_axis] if block == "shard" else f.spec.rows_per_chunk


def choose_driving(samples: Sequence[Field], fields: Sequence[Field], block: BlockUnit = "chunk") -> int | None:
    """Choose the field whose chunks (or shards, as `block` says) make the blocks, from the layout alone.

    It is one of the stored fields of `samples`; of the others where all samples are in memory. Among those with at
    least a quarter of the largest one's bytes a sample, it is the one with the longest chunks, since shorter ones
    often nest in these and longer ones are decoded once for every block that they lie over. But a block is to have
    at most 32 MiB, if any has; if none has, it is the shortest one. The first in order wins a draw.

    Parameters
    ----------
    samples, fields
        The fields of `samples`, and all fields, which begin with these.
    block
        What blocks are made of.

    Returns
    -------
    The place in `fields`; None if no field is stored.
    """
    stored = [i for i, f in enumerate(samples) if isinstance(f, StoredField)] or [
        i for i, f in enumerate(fields) if isinstance(f, StoredField)
    ]
    if not stored:
        return None
    largest = max(sample_bytes(fields[i]) for i in stored)
    heavy = [i for i in stored if sample_bytes(fields[i]) >= _HEAVY * largest]
    row_bytes = sum(sample_bytes(f) for f in fields)

    def chunk_rows(i: int) -> int:
        f = fields[i]
        assert isinstance(f, StoredField)
        return min(f.num_samples, _block_rows(f, block))

    fitting = [i for i in heavy if chunk_rows(i) * row_bytes <= _BLOCK_BYTES]
    return max(fitting, key=chunk_rows) if fitting else min(heavy, key=chunk_rows)


def _keep_small_ones(fields: Sequence[Field], block_rows: int, room: int) -> list[Field]:
    """Make stored fields resident whose chunks do not nest in the blocks, in order, as long as they fit in `room`."""
    result: list[Field] = []
    for f in fields:
        size = sample_bytes(f) * f.num_samples
        if isinstance(f, StoredField) and block_rows % f.spec.rows_per_chunk and size <= room:
            result.append(replace(f, resident=True))
            room -= size
        else:
            result.append(f)
    return result


def _check_lengths(fields: Sequence[Field]) -> None:
    first = fields[0]
    for other in fields[1:]:
        if other.num_samples != first.num_samples:
            raise ConfigError(
                f"{other.name} has {other.num_samples} samples, {_with_path(first)} has {first.num_samples}: "
                "they must be equal"
            )


def _with_path(field: Field) -> str:
    return f"{field.name} ({field.spec.name})" if isinstance(field, StoredField) else field.name


def _read_part(part: str, source: Source, sample_axis: int) -> tuple[tuple[str, ...] | None, list[Field]]:
    """Return the keys of one part of the batch, None for a bare tensor, and its fields."""
    if isinstance(source, str | Path):
        source = open_node(source)
    if isinstance(source, zarr.Group):
        named: Mapping[str, FieldSource] = _arrays_of(part, source)
    elif isinstance(source, Mapping):
        named = _checked(part, source)
    elif isinstance(source, zarr.Array | np.ndarray | torch.Tensor):
        return None, [_read_field(part, source, sample_axis)]
    else:
        raise ConfigError(
            f"{part}: got a {type(source).__name__}, must be a path, a file:// URL, a zarr.Array, a zarr.Group, a "
            "NumPy array, a tensor, or a mapping of names to arrays"
        )
    fields = []
    for key, array in named.items():
        name = f"{part}[{key!r}]"
        with _naming(name):
            fields.append(_read_field(name, array, sample_axis))
    return tuple(named), fields


def _arrays_of(part: str, group: zarr.Group) -> dict[str, zarr.Array[Any]]:
    path = printable(str(group.store_path).removeprefix("file://"))
    try:
        arrays = dict(sorted(group.arrays()))
        groups = sorted(group.group_keys()) if not arrays else []
    except Exception as error:  # a damaged member: any class, as in open_node
        raise ConfigError(f"{part}: {path}: zarr-python cannot list the group: {error!r}") from error
    if not arrays:
        inside = f"; groups in it, which are not entered: {', '.join(groups)}" if groups else ""
        raise ConfigError(f"{part}: {path}: is a group without arrays{inside}")
    return arrays


def _checked(part: str, source: Mapping[str, FieldSource]) -> dict[str, FieldSource]:
    if not source:
        raise ConfigError(f"{part}: is an empty mapping, must name at least one array")
    for key in source:
        if not isinstance(key, str):
            raise ConfigError(f"{part}: has the key {key!r}, a {type(key).__name__}; names must be str")
    return dict(source)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the field's name in front of the messages of our errors."""
    try:
        yield
    except StoreReadError as error:
        raise StoreReadError(error.errno, f"{name}: {error.strerror}") from error
    except ZarrfeedError as error:
        if str(error).startswith(name):
            raise
        raise type(error)(f"{name}: {error}") from error


def _read_field(name: str, source: FieldSource, sample_axis: int) -> Field:
    if isinstance(source, np.ndarray | torch.Tensor):
        return ResidentField(name, _rows_in_memory(name, source, sample_axis))
    return StoredField(name, read_layout(source, sample_axis=sample_axis))


def _rows_in_memory(name: str, source: npt.NDArray[Any] | torch.Tensor, sample_axis: int) -> torch.Tensor:
    """Return contiguous rows in native byte order: the memory itself where it is like this."""
    ndim = source.ndim
    if ndim == 0:
        raise ConfigError(f"{name}: has no axes (0-d), a sample axis is needed")
    if not -ndim <= sample_axis < ndim:
        raise ConfigError(f"{name}: sample_axis = {sample_axis}, must be in [{-ndim}, {ndim - 1}]")
    if isinstance(source, torch.Tensor):
        if source.device.type != "cpu":
            raise ConfigError(f"{name}: is on {source.device}, must be in host memory")
        if source.layout != torch.strided or source.is_quantized:
            raise UnsupportedError(f"{name}: a {source.layout} tensor of {source.dtype} has no plain rows")
        # conjugation and negation are bits on the tensor: the bytes have to be what they say
        return source.detach().resolve_conj().resolve_neg().movedim(sample_axis, 0).contiguous()
    if isinstance(source, np.ma.MaskedArray):
        raise ConfigError(f"{name}: is a masked array, and tensors have no mask; fill it first (`.filled(value)`)")
    if source.dtype.name not in TORCH_DTYPES:
        raise UnsupportedError(f"{name}: dtype {source.dtype} has no torch equivalent")
    rows = np.moveaxis(source, sample_axis, 0)
    native = np.ascontiguousarray(rows, dtype=source.dtype.newbyteorder("="))
    if not native.flags.writeable:  # torch has no read-only tensors and warns of them
        native = native.copy()
    if native.dtype.name == "bfloat16":
        return torch.from_numpy(native.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(native)
