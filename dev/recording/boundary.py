"""Record what the package hands to its compiled engine, wherever in the package the call stands.

`Boundary` replaces the classes of `zarrfeed._core` by subclasses that remember their arguments. So it knows no module
of the package but that one. A spec is written as its arguments, down to arrays. An address in memory is written as the
bytes that lie there.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from recording.canonical import digest, render

#: Classes whose static methods make the objects.
_FACTORIES = ("FieldSpec", "BlockTable", "SampleTable", "BlockOrder")
#: Classes whose constructors are called.
_SPECS = (
    *("CodecSpec", "ShardSpec", "ConversionSpec", "ArrayParts", "ArraySpec", "PatchSpec", "CarryPlan", "MixtureStage"),
    *("Mixture", "MixturePlan", "PatchTable", "EpochPlan", "EngineOptions", "CachedArray", "SampleGrid"),
)
#: Arguments that differ from run to run: times and inodes of files, and a directory that is open.
_LEFT_OUT = {"CachedArray": {"directory", "versions"}}
#: Name, the compiled function, positional arguments and others.
_Call: TypeAlias = tuple[str, Any, tuple[Any, ...], dict[str, Any]]
_PARAMETER = re.compile(r"(\w+): ")


class Boundary:
    """All that was handed to the engine since the boundary was installed in this process."""

    def __init__(self) -> None:
        self._engines: list[list[str]] = []
        self._streams: list[str] = []
        self._made: dict[int, tuple[Any, _Call]] = {}  # id of an object of a factory -> the object, its call
        self._signatures: dict[str, tuple[list[str], dict[str, str]]] = {}

    def install(self, package: str = "zarrfeed") -> None:
        """Replace the classes of the engine in its module, and wherever else the package has them by name."""
        core = importlib.import_module(f"{package}._core")
        recorded = {name: self._recorded(name, getattr(core, name)) for name in _SPECS}
        recorded |= {
            "Engine": self._recorded_engine(core.Engine),
            "SampleStream": self._recorded_stream(core.SampleStream),
        }
        instead = {id(getattr(core, name)): one for name, one in recorded.items()}
        for name in _FACTORIES:
            self._wrap_factories(getattr(core, name))
        for module in [module for key, module in list(sys.modules.items()) if key.partition(".")[0] == package]:
            for attribute, value in list(vars(module).items()):
                if id(value) in instead:
                    setattr(module, attribute, instead[id(value)])

    def forget(self) -> None:
        """Forget what was handed over so far."""
        self._engines.clear()
        self._streams.clear()

    def text(self) -> str:
        """Return everything that was handed over, the same whichever engine was made first, or made twice."""
        return "\n".join(
            sorted({"\n  ".join(one) for one in self._engines} | {f"stream {one}" for one in self._streams})
        )

    def _say(self, value: Any) -> str:
        return render(value, self._special)

    def _special(self, value: Any) -> str | None:
        made = getattr(value, "recorded_call", None)
        if made is None and id(value) in self._made:
            made = self._made[id(value)][1]
        return None if made is None else self._call(*made)

    def _call(self, name: str, made: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a call as text: arguments by name, in the order of names, but for those that are as by default."""
        if name not in self._signatures:
            self._signatures[name] = _signature(made)
        names, defaults = self._signatures[name]
        given = dict(zip(names, args, strict=False)) | kwargs
        if name == "FieldSpec.resident":
            size = given["row_bytes"] * given.get("num_rows", 0)
            given["address"] = _memory(given["address"], size)
        if isinstance(given.get("row_map"), tuple):  # and not a grid, which is a rule
            address, count, first, step = given["row_map"]
            given["row_map"] = [_memory(address, 8 * count) if address else 0, count, first, step]
        left_out = _LEFT_OUT.get(name, set())
        said = {key: self._say(value) for key, value in sorted(given.items()) if key not in left_out}
        return f"{name}({', '.join(f'{key}={text}' for key, text in said.items() if defaults.get(key) != text)})"

    def _recorded(self, name: str, real: Any) -> Any:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            real.__init__(self, *args, **kwargs)
            self.recorded_call = name, real.__init__, args, kwargs

        return type(name, (real,), {"__init__": __init__, "__module__": real.__module__})

    def _wrap_factories(self, real: Any) -> None:
        for method, value in list(vars(real).items()):
            if isinstance(value, staticmethod) and not method.startswith("_"):
                setattr(real, method, staticmethod(self._recorded_factory(f"{real.__name__}.{method}", value.__func__)))

    def _recorded_factory(self, name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            made = factory(*args, **kwargs)
            self._made[id(made)] = made, (name, factory, args, kwargs)
            return made

        return make

    def _recorded_engine(self, real: Any) -> Any:
        boundary = self

        class Engine(real):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.recorded_lines = [boundary._call("Engine", real.__init__, args, kwargs)]
                boundary._engines.append(self.recorded_lines)

            def start(self, *args: Any, **kwargs: Any) -> None:
                self.recorded_lines.append(boundary._call("start", real.start, args, kwargs))
                super().start(*args, **kwargs)

        return Engine

    def _recorded_stream(self, real: Any) -> Any:
        boundary = self

        def __init__(self: Any, plan: Any) -> None:  # noqa: N807
            real.__init__(self, plan)
            boundary._streams.append(boundary._say(plan))

        return type("SampleStream", (real,), {"__init__": __init__, "__module__": real.__module__})


def _memory(address: int, size: int) -> str:
    """Return a digest of bytes in memory."""
    return f"memory of {size} bytes {digest(ctypes.string_at(address, size).hex())}"


def _signature(function: Any) -> tuple[list[str], dict[str, str]]:
    """Return the names of the parameters that the documentation of a compiled function has, and defaults as text."""
    text = (inspect.getdoc(function) or "").partition("->")[0]
    names: list[str] = []
    defaults: dict[str, str] = {}
    depth, parts, part = 0, [], ""
    for character in text[text.find("(") + 1 : text.rfind(")")]:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    for one in [*parts, part]:
        found = _PARAMETER.match(one.strip())
        if found is None or found[1] == "self":
            continue
        names.append(found[1])
        if " = " in one:
            defaults[found[1]] = one.rpartition(" = ")[2].strip()
    return names, {name: "[]" if value == "()" else value for name, value in defaults.items()}
