"""Modules whose public names are imported when they are first used, so that code without torch imports none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, modules: Mapping[str, str], *, own: Collection[str] = (), gone: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module; `dir()` lists the names of its `__all__`, imported or not.

    Parameters
    ----------
    module
        The name of the module.
    modules
        Public name -> the module below `zarrfeed` that defines it. None of them has the name that it defines:
        importing it would replace that.
    own
        Public modules in this one, which are attributes of it before anybody imports them, too.
    gone
        Name that the module no longer has -> the name to use in its place, for the message.
    """
    package = module.partition(".")[0]

    def import_name(name: str) -> Any:
        """Import a public name when it is first used."""
        if name in own:
            return import_module(f"{module}.{name}")  # which makes it an attribute
        if name not in modules:
            raise AttributeError((gone or {}).get(name, f"module {module!r} has no attribute {name!r}"))
        try:
            value = getattr(import_module(f"{package}.{modules[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "torch":
                raise
            raise ImportError(f"{module}.{name} needs torch: pip install torch", name="torch") from error
        setattr(sys.modules[module], name, value)
        return value

    def list_names() -> list[str]:
        """List public names, imported or not."""
        return sorted(sys.modules[module].__all__)

    return import_name, list_names
