"""Order the test files of a checkout by their nearness to a module, from what the sources say.

The nearest are the file of the module's name and the files that tests/repo/test_mirror.py names for it. The others come
by the words that they share with the mutant's line and with the names around it, rare words first, and by the number of
imports from them to the module; a word in the name of a file counts most. Tests that start many processes come last.
A run of the whole suite under a tracer would know more than the sources, but takes as long as 40 mutants, and again
after each change.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

#: Folders whose tests start few processes.
_CHEAP = ("unit", "parity")
#: Folders whose tests start processes in most tests, so that a file can take all the time that a mutant has.
_DEAR = ("process", "integration")
#: Test files of one process, but for those that belong to the module.
_FILES_AT_ONCE = 6
#: The share of a word that no other file has is 1; this stands for files that have none of the words.
_FEW = 0.01
_TABLE = "import json; from tests.repo.test_mirror import TESTED_IN; print(json.dumps(TESTED_IN))"


class Nearness:
    """The imports between the modules of `package`, which lies in `source`, and the tests of a checkout."""

    def __init__(self, source: Path, package: str, tests: Path) -> None:
        self._package = package
        self._importers: dict[str, set[str]] = defaultdict(set)
        modules = {_module(path.relative_to(source)): path for path in (source / package).rglob("*.py")}
        self._public = dict(self._exported(modules[package]))
        helpers = {_module(path.relative_to(tests)): path for path in (tests / "tests").rglob("*.py")}
        for name, path in (modules | helpers).items():
            for imported in self._imported(ast.parse(path.read_bytes())):
                self._importers[imported].add(name)
        # tests of the repository's texts and tools cover no module
        self._tests = {
            path.relative_to(tests).as_posix(): path.read_text()
            for path in sorted((tests / "tests").rglob("test_*.py"))
            if path.relative_to(tests / "tests").parts[0] != "repo"
        }
        self._words = {test: _words(text) for test, text in self._tests.items()}
        self._name_words = {test: _words(Path(test).stem) for test in self._tests}
        self._files_of, self._names_of = (
            Counter(word for words in found.values() for word in words) for found in (self._words, self._name_words)
        )
        self._table: dict[str, list[str]] = {}
        if (tests / "tests" / "repo" / "test_mirror.py").exists():
            said = subprocess.run([sys.executable, "-c", _TABLE], cwd=tests, capture_output=True, text=True, check=True)
            self._table = json.loads(said.stdout)

    def mirrored(self, path: str) -> list[str]:
        """Return the test files that belong to a module, for example of ``plan/order/order.py``."""
        folder, _, name = path.rpartition("/")
        named = [f"unit/{folder}/test_{name}" if folder else f"unit/test_{name}"]
        for line, files in self._table.items():
            if line == path or (line.endswith("/") and path.startswith(line)):
                named += files
        return [f"tests/{name}" for name in named if f"tests/{name}" in self._tests]

    def rounds(self, path: str, text: str) -> list[list[str]]:
        """Return the test files of `ordered` for the processes that run them, one after the other.

        Those that belong to the module come first; but if they start many processes, after the nearest others.
        """
        own = self.mirrored(path)
        dear = [test for test in own if test.split("/")[1] in _DEAR]
        others = [test for test in self.ordered(path, text) if test not in own]
        rounds = [others[at : at + _FILES_AT_ONCE] for at in range(0, len(others), _FILES_AT_ONCE)]
        return list(filter(None, [[test for test in own if test not in dear], *rounds[:1], dear, *rounds[1:]]))

    def ordered(self, path: str, text: str) -> list[str]:
        """Return all test files that import a module over whatever others, the nearest first.

        Parameters
        ----------
        path : str
            The module's file below the package, such as ``plan/order/order.py``.
        text : str
            The mutant's line, and the names of the class and function that it is in.
        """
        mirrored = self.mirrored(path)
        distances = self._distances(_module(Path(self._package) / path))
        wanted = _words(f"{Path(path).stem} {text}")

        def far(test: str) -> tuple[int, bool, float, bool, str]:
            shared = sum(1 / self._files_of[word] for word in wanted & self._words[test])
            shared += sum(1 / self._names_of[word] for word in wanted & self._name_words[test])
            distance = distances.get(_module(Path(test)), 0)
            return (
                mirrored.index(test) if test in mirrored else len(mirrored),
                test.split("/")[1] not in _CHEAP,
                -(shared + _FEW) / (1 + distance),
                Path(test).parent.name != Path(path).parent.name,
                test,
            )

        return sorted((test for test in self._tests if test in mirrored or _module(Path(test)) in distances), key=far)

    def _distances(self, module: str) -> dict[str, int]:
        """Return the number of imports from each module and test file that gets at a module."""
        distances, reached = {module: 0}, [module]
        for name in reached:
            for importer in sorted(self._importers[name]):
                # the package's own file imports all that is public, and tells nothing
                if importer not in distances and importer != self._package:
                    distances[importer] = distances[name] + 1
                    reached.append(importer)
        return distances

    def _exported(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield the public names of the package with their modules; imports for type checkers name them, too."""
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((alias.asname or alias.name, node.module) for alias in node.names)

    def _imported(self, tree: ast.AST) -> Iterator[str]:
        """Yield the modules that a file imports, and the modules of the public names that it uses."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                for alias in node.names:
                    yield f"{node.module}.{alias.name}"
                    if node.module == self._package and alias.name in self._public:
                        yield self._public[alias.name]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                public = self._public if node.value.id == self._package else {}
                yield from [public[node.attr]] if node.attr in public else []


def _words(text: str) -> set[str]:
    """Return the words within the names of a text, in lower case and in the singular."""
    return {word.lower().rstrip("s") for word in re.findall(r"[A-Z]?[a-z]{3,}", text)}


def _module(path: Path) -> str:
    """Return the name of a module; a package's is that of its folder."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
