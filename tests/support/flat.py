"""Datasets by flat options: tests that are parametrised over options name each by itself, whatever it is a part of.

What holds: an option is passed on to the one call that takes it, unchanged; nothing is added but, where arrays are
opened apart from the dataset, the retries and the timeout of `faults`, which the shorthand passes on, too.
"""

from __future__ import annotations

from typing import Any

import zarrfeed
from zarrfeed import Data, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.fields.field import IndexField

_OF_OPEN = ("sample_axis", "sample_dim", "variables", "decode_cf", "storage_options")
_OF_METHODS = ("select", "blocks", "offsets", "segment_ends", "window_rows", "dtype", "normalize", "normalize_axis")
_GROUPS = {
    "mixing": ("lanes", "mix", "block"),
    "faults": ("on_error", "max_errors", "missing", "retries", "timeout"),
    "requests": ("coalesce_gap", "coalesce_limit"),
}


def iterable_dataset(samples: Any, targets: Any = None, **options: Any) -> ZarrIterableDataset:
    """Return a `ZarrIterableDataset` of flat options."""
    return ZarrIterableDataset(*_data(samples, targets, options), **_grouped(options))


def map_dataset(samples: Any, targets: Any = None, **options: Any) -> ZarrDataset:
    """Return a `ZarrDataset` of flat options."""
    return ZarrDataset(*_data(samples, targets, options), **_grouped(options))


def describe(data: Data, **options: Any) -> Data:
    """Return a description after the methods that flat options name, in the order in which they can be called."""
    if "select" in options:
        data = data.select(options["select"])
    if "blocks" in options:
        data = data.blocks(options["blocks"], of=options.get("block", "chunk"))
    window: dict[str, Any] = {"segment_ends": options.get("segment_ends"), "rows": options.get("window_rows")}
    assert "offsets" in options or window == {"segment_ends": None, "rows": None}
    assert "normalize" in options or "normalize_axis" not in options
    if "offsets" in options:
        data = data.window(options["offsets"], **window)
    if "dtype" in options:
        data = data.cast(options["dtype"])
    if "normalize" in options:
        data = data.normalize(options["normalize"], axis=options.get("normalize_axis"))
    return data


def split(dataset: ZarrIterableDataset, parts: Any, **how: Any) -> list[ZarrIterableDataset]:
    """Return a dataset for each part of a dataset's samples: with its batches and its shuffle, and lanes of its own."""
    schedule = dataset.session.schedule
    return [
        ZarrIterableDataset(
            part,
            batch_size=schedule.options.batch_size,
            drop_last=schedule.options.drop_last,
            shuffle=schedule.order.shuffle,
            seed=schedule.order.seed,
            return_index=any(isinstance(field, IndexField) for field in schedule.fields.fields),
            num_threads=schedule.options.num_threads,
        )
        for part in dataset.data.split(parts, **how)
    ]


def _data(samples: Any, targets: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the first two arguments of a dataset, and take what they say out of the options."""
    opening = {name: options.pop(name) for name in _OF_OPEN if name in options}
    methods = {name: options.pop(name) for name in _OF_METHODS if options.get(name) is not None}
    options_of_methods = [options.pop(name) for name in _OF_METHODS if name in options]
    assert all(value is None for value in options_of_methods)
    if not opening and not methods:
        return samples, targets
    if not isinstance(samples, Data):
        opening |= {name: options[name] for name in ("retries", "timeout") if name in options}
        samples = zarrfeed.open(samples, targets, **opening)
    block = {"block": options["block"]} if "blocks" in methods and "block" in options else {}
    return describe(samples, **methods, **block), None


def _grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of a dataset, those that are parts of a group in their group."""
    grouped = dict(options)
    for group, names in _GROUPS.items():
        members = {name: grouped.pop(name) for name in names if name in grouped}
        if members:
            grouped[group] = members
    return grouped
