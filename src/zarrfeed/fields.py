"""What the user passed -> fields: aligned arrays with a common number of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from zarrfeed.errors import ConfigError, UnsupportedError
from zarrfeed.layout import TORCH_DTYPES, ArrayLike, ArraySpec, read_layout

FieldSource: TypeAlias = "ArrayLike | npt.NDArray[Any] | torch.Tensor"


@dataclass(frozen=True)
class StoredField:
    """A Zarr array. With `resident`, it is small and is read into memory once instead of block by block."""

    name: str
    spec: ArraySpec
    resident: bool = False

    @property
    def num_samples(self) -> int:
        """Length of the sample axis."""
        return self.spec.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.spec.sample_shape

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return self.spec.torch_dtype


@dataclass(frozen=True)
class ResidentField:
    """Rows that lie in memory: shape (num_samples, *sample_shape), contiguous, borrowed from `rows`."""

    name: str
    rows: torch.Tensor

    @property
    def num_samples(self) -> int:
        """Length of axis 0."""
        return self.rows.shape[0]

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.rows.shape[1:])

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        return self.rows.dtype

    def to_core(self) -> dict[str, Any]:
        """Return the field in the form that the engine takes; `rows` must outlive the engine."""
        return {"kind": "resident", "address": self.rows.data_ptr(), "sample_bytes": sample_bytes(self)}


@dataclass(frozen=True)
class IndexField:
    """The global sample index, int64, shape ()."""

    num_samples: int
    name: str = "index"

    sample_shape: tuple[int, ...] = ()
    torch_dtype: torch.dtype = torch.int64


Field: TypeAlias = StoredField | ResidentField | IndexField


def sample_bytes(field: Field) -> int:
    """Return the decoded bytes of one sample."""
    return math.prod(field.sample_shape) * field.torch_dtype.itemsize


def make_samples_field(source: ArrayLike, *, sample_axis: int) -> StoredField:
    """Return the driving field: its chunks make the blocks."""
    if isinstance(source, np.ndarray | torch.Tensor):
        raise ConfigError(
            f"samples: got a {type(source).__name__}, must be a Zarr array; arrays in memory need no loader"
        )
    return StoredField("samples", read_layout(source, sample_axis=sample_axis))


def make_targets_field(
    source: FieldSource, samples: StoredField, *, resident_bytes: int
) -> StoredField | ResidentField:
    """Return the targets as a field aligned with `samples` along axis 0.

    A stored array whose chunks do not nest in the blocks would be decoded several times; it is kept in memory
    instead if it has at most `resident_bytes`.
    """
    field: StoredField | ResidentField
    if isinstance(source, torch.Tensor | np.ndarray):
        field = ResidentField("targets", _rows_in_memory(source))
    else:
        spec = read_layout(source)
        nested = samples.spec.rows_per_chunk % spec.rows_per_chunk == 0
        small = spec.sample_bytes * spec.num_samples <= resident_bytes
        field = StoredField("targets", spec, resident=small and not nested)
    if field.num_samples != samples.num_samples:
        raise ConfigError(
            f"targets has {field.num_samples} samples, samples ({samples.spec.name}) has {samples.num_samples}: "
            "they must be equal"
        )
    return field


def _rows_in_memory(source: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor:
    if source.ndim == 0:
        raise ConfigError("targets: has no axes (0-d), a sample axis is needed")
    if isinstance(source, torch.Tensor):
        if source.device.type != "cpu":
            raise ConfigError(f"targets: is on {source.device}, must be in host memory")
        if source.layout != torch.strided or source.is_quantized:
            raise UnsupportedError(f"targets: a {source.layout} tensor of {source.dtype} has no plain rows")
        # conjugation and negation are bits on the tensor: the bytes have to be what they say
        return source.detach().resolve_conj().resolve_neg().contiguous()
    if isinstance(source, np.ma.MaskedArray):
        raise ConfigError("targets: is a masked array, and tensors have no mask; fill it first (`.filled(value)`)")
    if source.dtype.name not in TORCH_DTYPES:
        raise UnsupportedError(f"targets: dtype {source.dtype} has no torch equivalent")
    native = np.ascontiguousarray(source, dtype=source.dtype.newbyteorder("="))
    if not native.flags.writeable:  # torch has no read-only tensors and warns of them
        native = native.copy()
    if native.dtype.name == "bfloat16":
        return torch.from_numpy(native.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(native)
