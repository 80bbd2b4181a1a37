"""`tests.support.covering`: the usual run keeps each pair of values of a product, the same cases in each process."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import warm
from tests.support.covering import cover
from tests.support.paths import ROOT

_MODULE = """
import pytest
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize(("b", "c"), [(1, 2), (1, 3)])
def test_two_axes(a, b, c): pass
@pytest.mark.whole_product
@pytest.mark.parametrize("a", "xyz")
@pytest.mark.parametrize("b", "uv")
def test_a_promise_about_pairs(a, b): pass
@pytest.mark.parametrize("a", "xyz")
def test_one_axis(a): pass
"""
#: Lets pytest collect three times, as one process is enough.
_RUNS = """
import pytest, sys
path = sys.argv[1]
for arguments in ([path], [path, "--large"], [path + "::test_two_axes[1-3-y]"]):
    pytest.main([*arguments, "-p", "tests.conftest", "-p", "no:cacheprovider", "-n0", "--collect-only", "-q"])
"""


@pytest.mark.parametrize("sizes", [(2, 2, 2), (3, 4, 2), (2, 7, 2, 3), (5, 1, 4, 3)], ids=str)
def test_each_pair_of_values_of_three_axes_comes_in_few_cases(sizes: tuple[int, ...]) -> None:
    cases = list(itertools.product(*map(range, sizes)))
    kept = [cases[index] for index in cover(cases)]
    for one, other in itertools.combinations(range(len(sizes)), 2):
        pairs = {(case[one], case[other]) for case in kept}
        assert len(pairs) == sizes[one] * sizes[other], (one, other)
    largest = sorted(sizes)[-2:]
    assert len(kept) <= 1.5 * largest[0] * largest[1]


@pytest.mark.parametrize("sizes", [(2, 9), (4, 4), (6, 3)], ids=str)
def test_each_value_of_two_axes_comes_as_often_as_the_others(sizes: tuple[int, int]) -> None:
    cases = list(itertools.product(*map(range, sizes)))
    kept = [cases[index] for index in cover(cases)]
    assert len(kept) == max(sizes)
    for axis, size in enumerate(sizes):
        counts = [sum(case[axis] == value for case in kept) for value in range(size)]
        assert max(counts) - min(counts) <= 1, axis


def test_a_product_with_holes_has_all_pairs_that_it_has() -> None:
    cases = [case for case in itertools.product(range(4), range(3), range(2)) if sum(case) % 3]
    kept = [cases[index] for index in cover(cases)]
    for one, other in itertools.combinations(range(3), 2):
        assert {(case[one], case[other]) for case in kept} == {(case[one], case[other]) for case in cases}


def test_the_cases_do_not_depend_on_the_values() -> None:
    """Values are told apart by identity, which is another one in each process."""
    cases = list(itertools.product(range(4), range(3), range(2)))
    for step in (7, -11):
        assert cover([tuple(str(value * step) for value in case) for case in cases]) == cover(cases)


def test_lists_of_one_axis_stay_and_what_is_named_or_large_is_whole(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(_MODULE)
    command = [*warm.command(), "-c", _RUNS, str(tmp_path / "test_a.py")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    print(ran.stdout, ran.stderr)
    runs = [
        [line.partition("::")[2] for line in run.splitlines() if "::" in line]
        for run in re.split("collected.*in", ran.stdout)
    ]
    whole = [f"test_a_promise_about_pairs[{b}-{a}]" for b in "uv" for a in "xyz"]
    single = [f"test_one_axis[{a}]" for a in "xyz"]
    product = [f"test_two_axes[1-{c}-{a}]" for c in (2, 3) for a in "xyz"]
    assert sorted(runs[0]) == sorted([product[0], product[2], product[4], *whole, *single])
    assert sorted(runs[1]) == sorted([*product, *whole, *single])
    assert runs[2] == ["test_two_axes[1-3-y]"]
