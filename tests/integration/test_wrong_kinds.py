"""An argument of a wrong kind is refused by name: no error of Python's own, which says what the code did with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed as zf
from zarrfeed import objects

#: Values of kinds that nothing below takes.
WRONG = (True, -1, 0, 2**70, 1.5, b"x", object())


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], Any]]:
    """Public calls by the name of the argument that they are given."""
    folder = tmp_path_factory.mktemp("wrong")
    group = zarr.create_group(folder / "g")
    group.create_array("x", data=np.arange(20.0), chunks=(4,))
    data = zf.open(folder / "g")
    text = zarr.create_array(folder / "text", shape=(2,), chunks=(2,), dtype=str)
    text[:] = ["a", "b"]
    images = zf.open(folder / "text")
    (folder / "objects").mkdir()
    (folder / "objects" / "a").write_bytes(b"a")
    return {
        "variables": lambda value: zf.open(folder / "g", variables=value),
        "variables of a side": lambda value: zf.open(folder / "g", variables={"samples": value}),
        "mode": lambda value: images.decode("image", mode=value),
        "keys": lambda value: objects.open(folder / "objects", keys=value),
        "parts": data.split,
        "path": zf.Statistics.load,
        "indices": zf.audit,
        "arrays": lambda value: zf.verify(folder / "g", arrays=value),
    }


@pytest.mark.parametrize(
    ("argument", "more"),
    [
        ("variables", [np.float32(1)]),
        ("variables of a side", ["x"]),
        ("mode", [[], {}, "x"]),
        ("keys", [{"a": 1}]),
        ("parts", [None, "x", ["0.5", "0.5"], [None, 1], {0.5: 1, 0.25: 2}, [[0.5, 0.5]]]),
        ("path", [None, [], {}]),
        ("arrays", ["x"]),
        ("indices", [None, "x", [1.5], [torch.ones(2)], ["1"], [None], {1: 2}]),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_the_name_of_the_argument(
    argument: str, more: list[Any], calls: dict[str, Callable[[Any], Any]]
) -> None:
    name = argument.split()[0]
    for value in [*WRONG, *more]:
        with pytest.raises(zf.ConfigError, match=rf"^{name}\b") as caught:
            calls[argument](value)
        assert "must be" in str(caught.value), value


def test_budgets_that_no_machine_has_are_no_limit(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "v", data=np.ones((8, 9, 10), "f4"), chunks=(4, 4, 4), dimension_names=["z", "y", "x"])
    for budget in (2**62, 2**70, "1e40"):
        assert zf.patch_weights(tmp_path / "v", memory_budget=budget) is not None
        assert len(list(zf.ZarrIterableDataset(tmp_path / "v", batch_size=4, memory_budget=budget))) == 2
