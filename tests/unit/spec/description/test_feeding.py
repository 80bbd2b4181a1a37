"""Options of a dataset in groups, and the names of options that are not arguments of a dataset."""

from __future__ import annotations

import doctest
import inspect
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

import zarrfeed
from zarrfeed import ConfigError, Faults, Mixing, Requests, UnknownOptionError, ZarrDataset, ZarrIterableDataset
from zarrfeed.spec.description import error_policy, feeding
from zarrfeed.spec.description.feeding import as_options
from zarrfeed.torch.datasets.options import MOVED_TO_DATA, MOVED_TO_OPTIONS

ROWS = np.arange(40)


def test_a_dataset_has_few_parameters() -> None:
    assert len(inspect.signature(ZarrIterableDataset).parameters) <= 20
    assert len(inspect.signature(ZarrDataset).parameters) <= 18


@pytest.mark.parametrize(
    ("argument", "options", "same"),
    [
        ("mixing", Mixing(lanes=4, mix=2), {"lanes": 4, "mix": 2}),
        ("faults", Faults(on_error="skip", retries=1), {"on_error": "skip", "retries": 1}),
        ("requests", Requests(coalesce_gap="1KiB"), {"coalesce_gap": 1024}),
    ],
)
def test_a_group_is_an_object_or_a_mapping(argument: str, options: Any, same: dict[str, Any]) -> None:
    def order(value: Any) -> Any:
        more: dict[str, Any] = {argument: value}
        with ZarrIterableDataset(ROWS, batch_size=4, shuffle=True, memory_budget="1MiB", **more) as dataset:
            return [dataset.explain().lanes, *dataset.sample_order(0).tolist()]

    assert order(options) == order(same)
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(FrozenInstanceError):
        options.retries = 3
    with pytest.raises(ConfigError, match=f"{argument} = 3, must be a {type(options).__name__} or a mapping of "):
        order(3)


@pytest.mark.parametrize(
    ("kind", "argument", "options", "message"),
    [
        (Mixing, "mixing", {"lane": 2}, "mixing has no option 'lane', must be one of lanes, mix, block; did you mean"),
        (Mixing, "mixing", {"lanes": 0}, "lanes = 0, must be at least 1"),
        (Mixing, "mixing", {"mix": 2**63}, "mix = 9223372036854775808, must be at most"),
        (Mixing, "mixing", {"block": "row"}, "block = 'row', must be one of 'auto', 'slab', 'chunk'"),
        (Mixing, "mixing", {"block": 0}, "block = 0, must be at least 1"),
        (Mixing, "mixing", {"block": True}, "block = True, must be"),
        (Faults, "faults", {"on_eror": "skip"}, "faults has no option 'on_eror', .*; did you mean 'on_error'"),
        (Faults, "faults", {"timeout": 0}, r"timeout = 0, must be in \[0.01, 1e6\] seconds"),
        (Requests, "requests", {"coalesce_gap": -1}, "coalesce_gap"),
        (Requests, "requests", {"coalesce_limit": "1 furlong"}, "coalesce_limit"),
    ],
)
def test_an_option_that_cannot_be_is_refused(kind: Any, argument: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_options(kind, argument, options)


@pytest.mark.parametrize("name", [*MOVED_TO_DATA, *MOVED_TO_OPTIONS])
def test_an_argument_that_has_moved_names_its_new_place(name: str) -> None:
    more: dict[str, Any] = {name: None}
    with pytest.raises(UnknownOptionError) as error:
        ZarrIterableDataset(ROWS, **more)
    assert str(error.value).startswith(f"ZarrIterableDataset() has no argument {name!r}: it is ")
    replacement = (MOVED_TO_DATA | MOVED_TO_OPTIONS)[name]
    assert str(error.value).endswith(replacement)
    if "zarrfeed.open(path)." in replacement:
        method = replacement.split("zarrfeed.open(path).")[1].partition("(")[0]
        assert callable(getattr(zarrfeed.Data, method))
    elif "zarrfeed.open(path, " in replacement:
        assert name in inspect.signature(zarrfeed.open).parameters
    elif "{'" in replacement:
        group, options = replacement.split(": ", 1)[1].split("=", 1)
        kinds: dict[str, Any] = {"mixing": Mixing, "faults": Faults, "requests": Requests}
        assert name in vars(as_options(kinds[group], group, eval(options)))


def test_a_misspelt_argument_that_has_moved_names_its_new_place() -> None:
    with pytest.raises(UnknownOptionError, match=r"'ofsets'; did you mean 'offsets'\? It is data\.window\("):
        ZarrIterableDataset(ROWS, ofsets=(0, 1))  # type: ignore[call-arg]
    with pytest.raises(UnknownOptionError, match=r"no argument 'select': it is data\.select"):
        ZarrDataset(ROWS, select=[0])  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match=r"zarrfeed\.split is now Data\.split"):
        _ = zarrfeed.split  # type: ignore[attr-defined]


def test_samples_that_were_asked_for_cannot_be_skipped() -> None:
    with pytest.raises(ConfigError, match="on_error = 'skip', must be 'raise'"):
        ZarrDataset(ROWS, faults={"on_error": "skip"})


@pytest.mark.parametrize("module", [feeding, error_policy])
def test_the_examples_in_docstrings_run(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried > 0
