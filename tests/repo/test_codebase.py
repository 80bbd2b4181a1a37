"""Rules about the code base that a reader should be able to rely on (docs/design/index.md, Rules of the code)."""

from __future__ import annotations

import ast
import inspect
import re
import tomllib

import zarrfeed
from tests.support.paths import ROOT
from zarrfeed import _core

CPP = sorted(p for p in (ROOT / "cpp").rglob("*") if p.suffix in {".cc", ".h"})
PYTHON = sorted((ROOT / "src").rglob("*.py"))


def test_the_tree_is_where_it_is_looked_for() -> None:
    assert len(CPP) > 15
    assert len(PYTHON) > 10


def test_only_the_bindings_know_python() -> None:
    knowing = [p for p in CPP if re.search(r"pybind11/|Python\.h", p.read_text())]
    assert len(knowing) > 1
    assert {p.parent for p in knowing} == {ROOT / "cpp" / "bindings"}


def test_no_cpp_file_knows_torch() -> None:
    assert [p.name for p in CPP if re.search(r"#include\s*[<\"](torch|ATen|c10)/", p.read_text())] == []


def test_files_stay_below_500_lines() -> None:
    assert [str(p) for p in CPP + PYTHON if len(p.read_text().splitlines()) > 500] == []


def test_no_note_to_do_something_later_is_left() -> None:
    assert [str(p) for p in CPP + PYTHON if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", p.read_text())] == []


#: Attributes of zarr-python's objects that it does not document.
_PRIVATE_ATTRIBUTES = {"_codec", "_ensure_open", "_store", "_with_store", "_async_array", "_zarr_v3_name"}


#: Modules that are one concept in two layers, such as the description of an array and the code that reads it.
SAME_CONCEPT = {
    "array.py",
    "conversion.py",
    "join.py",
    "labels.py",
    "objects.py",
    "patch_weights.py",
    "segment_text.py",
    "segments.py",
}


def test_one_module_name_stands_for_one_thing() -> None:
    names = [path.name for path in PYTHON if path.name != "__init__.py"]
    assert {name for name in names if names.count(name) > 1} == SAME_CONCEPT


def uses_internals_of_zarr(source: str) -> set[str]:
    """Return the undocumented names of zarr and numcodecs that a module imports or reads."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "zarr" and node.attr == "core":
                found.add("zarr.core")
            if node.attr in _PRIVATE_ATTRIBUTES and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                found.add(node.attr)
        for name in names:
            first, *rest = name.split(".")
            if first in ("zarr", "numcodecs") and (rest[:1] == ["core"] or any(part.startswith("_") for part in rest)):
                found.add(name)
    return found


def test_one_module_uses_internals_of_zarr() -> None:
    using = {p.name: uses_internals_of_zarr(p.read_text()) for p in PYTHON}
    assert [name for name, names in using.items() if names] == ["zarr_internals.py"]
    assert {"zarr.core.sync.sync", "_store"} <= using["zarr_internals.py"]


def test_json_is_parsed_in_one_place() -> None:
    """A document that nests too deep is a RecursionError of json, which nobody expects of it."""
    assert [p.name for p in PYTHON if re.search(r"\bjson\.loads?\(", p.read_text())] == ["documents.py"]


def enters_conditions(source: str) -> set[str]:
    """Return the `threading.Condition`s of a module that make their lock, or by which a lock is taken."""
    if "Condition" not in source:
        return set()  # as nearly all modules: to look at each node of all takes a second
    tree = ast.parse(source)
    made = {
        ast.unparse(target): node.value.args
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).split(".")[-1] == "Condition"
        for target in node.targets
    }
    entered = {
        ast.unparse(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items
    }
    return {name for name, lock in made.items() if not lock or name in entered}


def test_conditions_are_not_left_locked_by_an_interrupt() -> None:
    """`with condition:` calls Python code, at whose end an interrupt may come: the lock is taken then, for ever."""
    assert enters_conditions("a = threading.Condition()") == {"a"}
    assert enters_conditions("a = threading.Condition(lock)\nwith a: pass") == {"a"}
    assert enters_conditions("a = threading.Condition(lock)\nwith lock: a.wait()") == set()
    found = {str(p): enters_conditions(p.read_text()) for p in PYTHON}
    assert {path: names for path, names in found.items() if names} == {}


def test_versions_agree() -> None:
    """Tags say the version. Without them it is that of the newest section of the changelog, which is under way."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    newest = re.findall(r"^## (\d+\.\d+\.\d+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert declared["project"]["dynamic"] == ["version"]
    assert declared["tool"]["setuptools_scm"]["fallback_version"] == f"{newest}.dev0"


def arguments_of(compiled: object) -> list[list[str]]:
    """Return the names of a compiled function's arguments, of each overload, from the signatures in the docstring."""
    described = (inspect.getdoc(compiled) or "").splitlines()
    signatures = [line for line in described if re.match(r"\d+\. ", line)] or described[:1]
    return [
        [name for name in re.findall(r"(\w+): ", signature.rpartition(" -> ")[0]) if name != "self"]
        for signature in signatures
    ]


def test_the_stub_matches_the_compiled_module() -> None:
    stub = ast.parse((ROOT / "src" / "zarrfeed" / "_core.pyi").read_text())
    public = [node for node in stub.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert {node.name for node in public} == {name for name in dir(_core) if not name.startswith("_")}
    functions: list[tuple[str, object, ast.FunctionDef]] = []
    for node in public:
        compiled = getattr(_core, node.name)
        if isinstance(node, ast.FunctionDef):
            functions.append((node.name, compiled, node))
            continue
        methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
        properties = {
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        }
        assert {m.name for m in methods} - {"__init__"} | properties == {
            name for name in dir(compiled) if not name.startswith("_")
        }
        functions += [(f"{node.name}.{method.name}", getattr(compiled, method.name), method) for method in methods]
    assert len(functions) > 25
    compiled_of = {name: compiled for name, compiled, _ in functions}
    of_stub: dict[str, list[list[str]]] = {}
    for name, _, function in functions:
        arguments = function.args.args + function.args.kwonlyargs
        of_stub.setdefault(name, []).append([a.arg for a in arguments if a.arg != "self"])
    for name, overloads in of_stub.items():
        assert arguments_of(compiled_of[name]) == overloads, name


def test_the_stub_has_no_any() -> None:
    assert "Any" not in (ROOT / "src" / "zarrfeed" / "_core.pyi").read_text()


def test_everything_public_is_documented() -> None:
    for name in zarrfeed.__all__:
        if name != "__version__":
            assert inspect.getdoc(getattr(zarrfeed, name)), name


def test_the_table_of_what_is_read_names_the_native_codecs() -> None:
    from zarrfeed.spec.arrays.codec import NATIVE_CODECS

    formats = (ROOT / "docs" / "formats.md").read_text()
    for codec in NATIVE_CODECS:
        assert f"`{codec}`" in formats
