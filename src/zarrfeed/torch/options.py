"""Arguments of a dataset that do not concern its fields: checked, and in the form in which they are used."""

from __future__ import annotations

from typing import Any

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_counts, check_flags, check_int, check_num_threads
from zarrfeed.plan.partition import EVEN_MODES, Even
from zarrfeed.spec.sharding import Coalesce
from zarrfeed.torch.distributed import has_accelerator

_INT64_MAX = 2**63 - 1


def order_options(*, shuffle: bool, seed: int, lanes: int | None, mix: int | None) -> dict[str, Any]:
    """Return what `make_order` takes.

    Raises
    ------
    ConfigError
        For an argument that cannot be.
    """
    check_flags(shuffle=shuffle)
    check_int("seed", seed, 0, 2**64 - 1)
    check_counts(lanes=lanes)
    if mix is not None:
        check_int("mix", mix, 1, _INT64_MAX)
    return {"shuffle": shuffle, "seed": seed, "lanes": lanes, "mix": mix}


def schedule_options(
    *,
    lanes: int | None,
    mix: int | None,
    batch_size: int | None,
    drop_last: bool,
    even: Even | None,
    num_threads: int | None,
    memory_budget: int | str | None,
    coalesce_gap: int | str,
    coalesce_limit: int | str,
) -> dict[str, Any]:
    """Return what `Schedule.make` takes.

    Raises
    ------
    ConfigError
        For an argument that cannot be.
    """
    check_counts(batch_size=batch_size, lanes=lanes)
    check_num_threads(num_threads)
    check_flags(drop_last=drop_last)
    if even is not None:
        check_choice("even", even, EVEN_MODES)
    return {
        "lanes": lanes,
        "mix": mix,
        "batch_size": batch_size,
        "drop_last": drop_last,
        "even": even,
        "num_threads": num_threads,
        "budget": None if memory_budget is None else parse_bytes(memory_budget),
        "coalesce": Coalesce(
            gap=parse_bytes(coalesce_gap, "coalesce_gap", least=0),
            limit=parse_bytes(coalesce_limit, "coalesce_limit", least=0),
        ),
    }


def check_pin_memory(pin_memory: bool | None) -> None:
    """Raise ConfigError if batches cannot be pinned as asked."""
    if pin_memory is not None:
        check_flags(pin_memory=pin_memory)
    if pin_memory and not has_accelerator():
        raise ConfigError("pin_memory = True needs an accelerator, and torch finds none; None decides by itself")
