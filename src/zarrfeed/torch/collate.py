"""How torch's `default_collate` takes a list of samples that were decoded as one batch: as that batch, without a copy.

A DataLoader hands what `__getitems__` returned to its `collate_fn`. Any function of the user's gets a plain list of
samples. `default_collate` asks for the type of the first sample; that is one of our own, registered with torch, so that
the list can say what it is a list of. If anything in it was exchanged meanwhile, it is collated like any other list.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from zarrfeed.torch.batch import Batch, BatchAssembler, Values


class _FirstTensor(torch.Tensor):
    """A tensor like any other: what is computed from it is a plain one."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # noqa: SLF001 - torch documents this name


class _FirstTuple(tuple[Any, ...]):
    pass


class _FirstDict(dict[str, Any]):
    pass


class _FirstList(list[Any]):
    pass


class SampleList(list[Batch]):
    """The samples of a batch: views of its tensors, items of its lists.

    Parameters
    ----------
    assembler
        Makes samples of the values of their fields.
    values
        One tensor a field, of shape (samples, *sample_shape), or a list of the samples.
    """

    def __init__(self, assembler: BatchAssembler, values: Sequence[Values]) -> None:
        unpacked = assembler.unpack(values)
        super().__init__(assembler.samples_of(unpacked))
        batch = assembler.assemble(unpacked)
        # what default_collate makes of tuples
        self._batch = list(batch) if isinstance(batch, tuple) else batch
        if self:
            self[0] = _marked(self[0])
        self._samples = tuple(self)
        # tuples stay what they are, dicts may be given other values
        self._values = list(_values(self)) if any(keys is not None for keys in assembler.fields.parts) else None

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(map(_plain, self)),)

    def batch(self) -> Batch | None:
        """Return the batch, if these are still its samples."""
        same = _same(self, self._samples) and (self._values is None or _same(list(_values(self)), self._values))
        return self._batch if same else None


def _same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _values(samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        yield from _leaves(sample)


def _leaves(sample: Any) -> Iterator[Any]:
    if isinstance(sample, Mapping):
        for value in sample.values():
            yield from _leaves(value)
    elif isinstance(sample, tuple):
        for value in sample:
            yield from _leaves(value)
    else:
        yield sample


def _marked(sample: Any) -> Any:
    if isinstance(sample, torch.Tensor):
        return sample.as_subclass(_FirstTensor)
    if isinstance(sample, tuple):
        return _FirstTuple(sample)
    if isinstance(sample, list):
        return _FirstList(sample)
    return _FirstDict(sample) if isinstance(sample, dict) else sample  # text, of which default_collate makes a list


def _plain(sample: Any) -> Any:
    if isinstance(sample, _FirstTensor):
        return sample.as_subclass(torch.Tensor)
    if isinstance(sample, _FirstTuple):
        return tuple(sample)
    if isinstance(sample, _FirstList):
        return list(sample)
    return dict(sample) if isinstance(sample, _FirstDict) else sample


def _collate(samples: Any, *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None) -> Any:
    batch = samples.batch() if isinstance(samples, SampleList) else None
    return batch if batch is not None else collate([_plain(s) for s in samples], collate_fn_map=collate_fn_map)


default_collate_fn_map.update(
    {_FirstTensor: _collate, _FirstTuple: _collate, _FirstDict: _collate, _FirstList: _collate}
)
