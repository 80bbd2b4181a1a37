"""Make batches of objects that were read and decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data

from zarrfeed.engine.object_decoders import Decode, Decoder, make_decoder
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.metadata.group.objects import open as open_objects
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.torch.batches.batch import Batch, BatchAssembler, Values


class ObjectAssembler(BatchAssembler):
    """Batches with a list of objects, and the index behind it.

    Parameters
    ----------
    fields
        The fields of a batch.
    as_tensors
        If True, arrays become tensors; if False, objects are delivered as the user's own function returned them.
    """

    def __init__(self, fields: FieldSet, *, as_tensors: bool) -> None:
        super().__init__(fields)
        self._as_tensors = as_tensors

    def unpack(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the objects, as tensors where they are to be, and the index."""
        objects, *index = tensors
        values = [as_tensor(one) for one in objects] if self._as_tensors else objects
        return [values, *map(torch.from_numpy, index)]

    def assembler(self) -> Callable[[Sequence[Values]], Batch]:
        """Return the function that makes a batch."""
        return self.assemble

    def samples_of(self, tensors: Sequence[Values]) -> Iterator[Batch]:
        """Yield the samples of a batch one by one."""
        objects, *index = self.unpack(tensors)
        return zip(objects, *(one.unbind(0) for one in index), strict=True) if index else iter(objects)


def open_and_decode(source: Any, decode: Decode, faults: Faults) -> tuple[Objects, Decoder | None]:
    """Return the objects that a dataset reads, and their decoder."""
    if isinstance(source, Objects):
        objects = source
    else:
        objects = open_objects(source, retries=faults.retries, timeout=faults.timeout)
    if decode == "zarr-chunk":
        objects = objects.without_metadata()
    return objects, make_decoder(decode, objects.chunk_decoder)


def makes_tensors(decode: Decode) -> bool:
    """Return whether arrays become tensors: those of our own decoders, and bytes as they are."""
    return decode is None or isinstance(decode, str)


def name_of(decode: Decode) -> str:
    """Return the name of a decoder in `explain()`."""
    if decode is None:
        return ""
    return decode if isinstance(decode, str) else getattr(decode, "__qualname__", type(decode).__name__)


def as_tensor(value: Any) -> Any:
    """Return an array as a tensor over its memory, without a copy; anything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    return torch.from_numpy(value if value.flags.writeable else np.asarray(_Writable(value)))


class _Writable:
    """A read-only array as one that torch takes without a warning. Nobody else has its memory."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
