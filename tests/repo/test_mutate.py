"""dev/mutate.py: the sites that it finds, and what becomes of mutants of a tiny package with tiny tests."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.stalls import again_after_a_stall

#: source -> what its mutants have in place of it
CHANGED = {
    "x = a < b": {"x = a <= b", "x = a >= b"},
    "x = (a) >= (b)": {"x = (a) > (b)", "x = (a) < (b)"},
    "x = a is None": {"x = a is not None"},
    "x = a not in b": {"x = a in b"},
    "x = a + b": {"x = a - b"},
    "x = (a) + (b - c)": {"x = (a) - (b - c)", "x = (a) + (b + c)"},
    "x = a // b": {"x = a * b"},
    "x = a and b or c": {"x = a or b or c", "x = a and b and c"},
    "x = not (a)": {"x = (a)"},
    "x = -a": {"x = a"},
    "x = 7": {"x = 8"},
    "x = True": {"x = False"},
    "x += y": {"pass", "x -= y"},
    "a.x = y": {"pass"},
    "a[b] = y": {"pass"},
    "f()": {"pass"},
    "raise Wrong(f'{x + 1} of {2}')": {"pass"},
    "def f(): return x": {"def f(): return None"},
    "if a: b": {"if True: b", "if False: b"},
    "while a: b": {"while False: b"},
    "while True: ...": {"while False: ..."},
    "x = a if b else c": {"x = a if True else c", "x = a if False else c"},
    "x = [a for a in b if a]": {"x = [a for a in b if True]", "x = [a for a in b if False]"},
    "x = min(a, b)": {"x = max(a, b)"},
    "x = np.maximum(a, b)": {"x = np.minimum(a, b)"},
    "x = a[b:c]": {"x = a[(b) + 1:c]", "x = a[b:(c) - 1]"},
    "x = f(a, b=c)": {"x = f(a)"},
    "x = f(b=(c), d=e)": {"x = f( d=e)", "x = f(b=(c))"},
    "x = 'é' < (  # <\n  a\n)": {"x = 'é' <= (  # <\n  a\n)", "x = 'é' >= (  # <\n  a\n)"},
    "def f(a: int = 3): ...": {"def f(a: int = 4): ..."},
    "match a:\n case 1 if b < c: d()": {
        "match a:\n case 1 if b <= c: d()",
        "match a:\n case 1 if b >= c: d()",
        "match a:\n case 1 if b < c: pass",
    },
}
UNCHANGED = (
    '"""Text of 1 < 2."""',
    "def f():\n    '''Return 1 + 2.'''",
    "def f(a: A[1]) -> B[2]: ...",
    "x: tuple[int, 3]",
    "X: TypeAlias = A[1]",
    "def __repr__(self): return a + b",
    "def __str__(self): return a + b",
    "if TYPE_CHECKING:\n    import a\n    x = 1",
    "__all__ = [*a, *b[1:]]",
    "print(a + 1, end=2)",
    "_log.debug('x', a + 1)",
    "x = f'{a + 1}'",
    "x = 'a' + b",
    "x = cast('int', a + 1)",
    "x = ValueError(a + 1)",
    "assert a < b, c + 1",
    "@dataclass(frozen=True)\nclass A(B[1]): ...",
    "def f(): return",
    "def f(): return None",
)
TINY = {
    "src/tiny/__init__.py": "",
    "src/tiny/steps.py": """
        from time import sleep

        def half(number):
            return number / 2

        def count_to(end):
            number = 0
            while number < end:
                sleep(0.01)
                number += 1
            return number

        def unused(number):
            return number * 5

        def cases():
            return range(1)
    """,
    "src/tiny/other.py": "from tiny.steps import half",
    "tests/__init__.py": "",
    "tests/unit/test_steps.py": """
        import subprocess
        import sys

        import pytest

        from tiny.steps import cases, count_to, half

        def test_fails_anyway():
            assert half(2) == 7

        def test_half_in_another_process():
            subprocess.run([sys.executable, "-c", "from tiny.steps import half; assert half(0) == 0"], check=True)

        def test_count():
            assert count_to(3) == 3

        @pytest.mark.parametrize("case", cases())
        def test_case(case):
            assert case == 0
    """,
    "tests/unit/test_other.py": "from tiny.other import half",
    "tests/unit/test_far.py": "",
    "tests/repo/test_text.py": "from tiny import steps",
}


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "dev")
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "dev" / "mutate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sites(mutate: ModuleType) -> ModuleType:  # noqa: ARG001 - it makes the module known
    return sys.modules["mutation.sites"]


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tests of the package begin sooner
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    for name, text in TINY.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "tiny"


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}


# --- sites -------------------------------------------------------------------------------------------------------


def test_a_mutant_differs_in_one_small_change(sites: ModuleType) -> None:
    for source, expected in CHANGED.items():
        found = {sites.mutated(source, site, new) for site in sites.find_sites(source) for new in site.variants}
        assert {text.rstrip() for text in found} == expected, source


def test_text_has_no_mutants(sites: ModuleType) -> None:
    for source in UNCHANGED:
        assert sites.find_sites(source) == [], source


def test_a_site_knows_its_line_and_the_functions_around_it(sites: ModuleType) -> None:
    (site,) = sites.find_sites("class A:\n    def f(self):\n        x = (a\n            < b)")
    assert (site.line, site.old, site.scope) == (4, "<", ("A", "f"))


def test_mutants_of_the_package_are_valid_and_drawn_again_by_the_same_seed(
    mutate: ModuleType, sites: ModuleType
) -> None:
    mutants = mutate.draw(ROOT / "src", mutate.FOLDERS, 7, 60)
    assert len(mutants) == 60
    assert {mutant.path.split("/")[1] for mutant in mutants} == {"plan", "storage", "torch"}
    few = [mutate.draw(ROOT / "src", ["zarrfeed/plan/shares"], seed, count) for seed, count in ((7, 9), (7, 5), (8, 5))]
    assert few[1] == few[0][:5] != few[2]
    for mutant in mutants:
        source = (ROOT / "src" / mutant.path).read_text()
        changed = sites.mutated(source, mutant.site, mutant.new)
        assert changed != source, mutant
        compile(changed, mutant.path, "exec", dont_inherit=True)


# --- outcomes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def trial(mutate: ModuleType, sites: ModuleType, tiny: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Try the mutant that has `new` in place of the first `old` of a function."""
    work = tmp_path / "work"
    work.mkdir()
    bench = mutate.Bench(tiny / "src", "tiny", tiny, work, 12)

    def try_one(function: str, old: str, new: str) -> Any:
        found = sites.find_sites((tiny / "src/tiny/steps.py").read_text())
        site = next(site for site in found if site.scope == (function,) and site.old == old)
        assert new in site.variants
        return bench.try_mutant(mutate.Mutant("tiny/steps.py", site, new))

    yield try_one
    assert [path.name for path in work.iterdir()] == ["sound"]


@again_after_a_stall
def test_mutants_are_killed_survive_hang_or_are_not_covered(
    trial: Callable[..., Any], tiny: Path, pytestconfig: pytest.Config
) -> None:
    """The usual run has the first three, whose tests run in other processes, pass, and do not end."""
    before = contents(tiny)
    tests = "tests/unit/test_steps.py::test_"
    for function, old, new, outcome, test, reached in (
        (
            "half",
            "number / 2",
            "None",
            "killed",
            "half_in_another_process",
            ("fails_anyway", "half_in_another_process"),
        ),
        ("half", "2", "3", "survived", None, ("half_in_another_process",)),
        ("count_to", "number += 1", "pass", "timed out", "count", ("count",)),
        ("unused", "5", "6", "not covered", None, ()),
        ("cases", "1", "2", "killed", "case[1]", ()),
    )[: None if pytestconfig.getoption("--large") else 3]:
        result = trial(function, old, new)
        assert (result.outcome, result.test) == (outcome, test and tests + test), (function, old, new)
        assert {tests + name for name in reached} == set(result.reached_by) - {"import"}, (function, old, new)
    assert contents(tiny) == before


def test_tests_that_import_another_copy_are_refused(trial: Callable[..., Any], tiny: Path) -> None:
    (tiny / "conftest.py").write_text(
        "import sys\n"
        "sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, '__name__', '') != 'Finder']\n"
        f"sys.path.insert(0, {str(tiny / 'src')!r})\n"
        "import tiny.steps\n"
    )
    with pytest.raises(RuntimeError, match=r"the tests import .*src/tiny/__init__.py and not the copy"):
        trial("half", "2", "3")


def test_tests_that_cannot_begin_are_an_error_and_no_kill(trial: Callable[..., Any], tiny: Path) -> None:
    (tiny / "conftest.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(RuntimeError, match="there_is_no_such_module"):
        trial("half", "2", "3")


def test_the_nearest_tests_come_first(mutate: ModuleType, tiny: Path) -> None:  # noqa: ARG001 - it makes modules known
    (tiny / "tests/repo/test_mirror.py").write_text("TESTED_IN = {'steps.py': ('unit/test_other.py',)}")
    nearness = sys.modules["mutation.near"].Nearness(tiny / "src", "tiny", tiny)
    assert nearness.ordered("steps.py", "half") == ["tests/unit/test_steps.py", "tests/unit/test_other.py"]
    assert nearness.mirrored("steps.py") == ["tests/unit/test_steps.py", "tests/unit/test_other.py"]
    assert nearness.ordered("other.py", "") == ["tests/unit/test_other.py"]


def test_own_tests_that_start_processes_come_after_the_nearest_others(mutate: ModuleType, tiny: Path) -> None:  # noqa: ARG001
    """They took all the time that a mutant has, and a cheap file that reaches it did not run."""
    (tiny / "tests/repo/test_mirror.py").write_text("TESTED_IN = {'steps.py': ('process/test_steps_life.py',)}")
    (tiny / "tests/process").mkdir()
    own = [tiny / "tests/unit/test_steps.py", tiny / "tests/process/test_steps_life.py"]
    others = [tiny / f"tests/unit/test_{number}.py" for number in range(8)]
    for path in (*own[1:], *others):
        path.write_text("import tiny.steps")
    rounds = sys.modules["mutation.near"].Nearness(tiny / "src", "tiny", tiny).rounds("steps.py", "half")
    named = [[Path(name).stem for name in names] for names in rounds]
    assert [len(names) for names in named] == [1, 6, 1, 3]
    assert named[0] + named[2] == ["test_steps", "test_steps_life"]
    assert sorted(named[1] + named[3]) == sorted(["test_other", *(path.stem for path in others)])


@pytest.mark.slow
def test_fewer_kills_than_before_fail(
    mutate: ModuleType, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="no mutant to try: 0 mutants were drawn from none in "):
        mutate.main(["--source", str(tiny), "--folder", "none"])
    earlier, now = tmp_path / "earlier.json", tmp_path / "build" / "now.json"
    (tiny / "src/tiny/steps.py").write_text("def half(number):\n    return number / 2\n")
    (tiny / "tests/unit/test_steps.py").write_text("from tiny.steps import half\ndef test_half(): assert half(0) == 0")
    options = ["--source", str(tiny), "--tests", str(tiny), "--folder", "tiny", "--count", "2", "--jobs", "2"]
    assert mutate.main([*options, "--json", str(earlier)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 killed, 0 timed out, 1 survived, 0 not covered"
    assert any("steps.py:2  number / 2 -> None  killed  tests/unit/test_steps.py::test_half" in line for line in lines)
    assert any("steps.py:2  2 -> 3  survived  1 tests reach it" in line for line in lines)
    (tiny / "tests/unit/test_steps.py").write_text("from tiny.steps import half\ndef test_half(): half(0)")
    assert mutate.main([*options, "--json", str(now), "--against", str(earlier)]) == 1
    printed = capsys.readouterr().out
    assert "src/tiny/steps.py:2  killed -> survived  tests/unit/test_steps.py::test_half\n" in printed
    assert "killed of 2 mutants that both runs have: 1 before, 0 now" in printed
    results = mutate.read_results(earlier)
    assert mutate.compare(results, mutate.read_results(now)) == (0, 1)
    mutate.write_results(earlier, mutate.parse([]), [replace(result, start=0) for result in results])
    with pytest.raises(SystemExit, match=r"earlier\.json has none of the mutants"):
        mutate.main([*options, "--json", str(now), "--against", str(earlier)])
