"""Public names that are imported when they are first used."""

from __future__ import annotations

import sys
import types
from importlib import import_module

import pytest

import zarrfeed
from zarrfeed.base import units
from zarrfeed.base.lazy_names import lazy_names

NAME = "zarrfeed.made_up"


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(NAME)
    monkeypatch.setitem(sys.modules, NAME, module)
    modules = {"parse_bytes": "base.units", "absent": "base.units", "needs": "torch.no_such", "other": "no_such.module"}
    module.__all__ = [*modules, "__version__"]  # type: ignore[attr-defined]
    module.__getattr__, module.__dir__ = lazy_names(NAME, modules, gone={"old": "old is now new"})  # type: ignore[method-assign]
    return module


def test_a_name_is_imported_once_and_listed_before(made_up: types.ModuleType) -> None:
    assert dir(made_up) == ["__version__", "absent", "needs", "other", "parse_bytes"]
    assert "parse_bytes" not in vars(made_up)
    assert made_up.parse_bytes is units.parse_bytes
    assert vars(made_up)["parse_bytes"] is units.parse_bytes


@pytest.mark.parametrize("name", ["checkpoint", "compat", "device", "objects"])
def test_a_public_module_is_an_attribute_before_it_is_imported(name: str) -> None:
    import_name = vars(zarrfeed)["__getattr__"]
    assert import_name(name) is import_module(f"zarrfeed.{name}")


def test_a_name_that_is_not_there_is_an_attribute_error_that_names_the_module(made_up: types.ModuleType) -> None:
    for name in ("absent", "misspelt"):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
            getattr(made_up, name)
    with pytest.raises(AttributeError, match=r"^old is now new$"):
        made_up.old  # noqa: B018


def test_only_a_lack_of_torch_is_said_to_be_one(made_up: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("needs", "other"):  # a module of ours that is missing is a broken installation
        with pytest.raises(ModuleNotFoundError, match="zarrfeed"):
            getattr(made_up, name)

    def without_torch(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(f"No module named 'torch' ({name})", name="torch.utils")

    monkeypatch.setattr("zarrfeed.base.lazy_names.import_module", without_torch)
    with pytest.raises(ImportError, match=r"^zarrfeed\.made_up\.needs needs torch: pip install torch$"):
        made_up.needs  # noqa: B018
