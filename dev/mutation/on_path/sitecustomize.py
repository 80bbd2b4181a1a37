"""Make this process, and the processes that it starts, import packages from the folder that MUTANT_PACKAGES names.

Python runs this file as it starts, because its folder is on PYTHONPATH. The finder comes before the import hook of an
editable install, which would else find the working tree. MUTANT_SITE is ``path:line`` of the mutant: whenever the
statement of that line runs, the running test is noted in the file MUTANT_REACHED.
"""

import ast
import builtins
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

PACKAGES = os.environ.get("MUTANT_PACKAGES", "")
PATH, _, LINE = os.environ.get("MUTANT_SITE", "").rpartition(":")
NAMES = set(os.listdir(PACKAGES)) if PACKAGES else set()  # noqa: PTH208 - every Python starts with this file
NOTED: set[str] = set()


def note_reached() -> None:
    """Note the test that runs now, once in each process."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "import")
    if test not in NOTED:
        NOTED.add(test)
        with suppress(OSError), open(os.environ["MUTANT_REACHED"], "a") as file:  # noqa: PTH123 - starts faster
            file.write(test + "\n")


class NotingLoader(SourceFileLoader):
    """Loads the mutated module with a call of `note_reached` before the innermost statement of the mutated line."""

    def source_to_code(  # type: ignore[override] # whose keyword typeshed gives another name
        self, data: Any, path: Any, *, _optimization: int = -1
    ) -> CodeType:
        """Compile the source with the call."""
        tree, line = ast.parse(data), int(LINE)
        blocks = (block for node in ast.walk(tree) for _, block in ast.iter_fields(node) if isinstance(block, list))
        around = [
            (one.lineno, one.col_offset, number, block)
            for block in blocks
            for number, one in enumerate(block)
            if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or 0)
        ]
        if around:
            *_, number, block = max(around, key=lambda found: found[:2])
            block.insert(number, ast.copy_location(ast.parse("__note_mutant_reached__()").body[0], block[number]))
            ast.fix_missing_locations(tree)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)
        return code


class Finder:
    """Finds the modules of the packages in the folder."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return where a module of the packages is, and None for other modules."""
        if name.partition(".")[0] not in NAMES:
            return None
        spec = PathFinder.find_spec(name, path or [PACKAGES], target)
        if spec is not None and spec.origin == os.path.join(PACKAGES, PATH):  # noqa: PTH118
            spec.loader = NotingLoader(name, spec.origin)
        return spec


if NAMES:
    builtins.__note_mutant_reached__ = note_reached  # type: ignore[attr-defined]
    sys.meta_path.insert(0, Finder)
