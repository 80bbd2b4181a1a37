"""Everything public has a docstring with an example, and every example does what it shows."""

from __future__ import annotations

import doctest
import inspect
import os

import pytest

import zarrfeed

#: Errors and warnings are raised, not called.
PUBLIC = [
    name
    for name in zarrfeed.__all__
    if name != "__version__" and not (inspect.isclass(of := getattr(zarrfeed, name)) and issubclass(of, BaseException))
]
#: Public name -> why it has no example.
WITHOUT_EXAMPLE = {"SkippedChunk": "only a damaged store gives one: docs/tasks/errors.md"}


def examples_of(name: str) -> list[doctest.DocTest]:
    """Return the examples of a public function, or of a class and its public methods."""
    found = doctest.DocTestFinder().find(getattr(zarrfeed, name), name, globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(WITHOUT_EXAMPLE)))
def test_the_examples_of_a_docstring_do_what_they_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = examples_of(name)
    assert any(test.name == name for test in tests), "its own docstring has an example"
    monkeypatch.setattr(os, "environ", os.environ.copy())  # examples set what a launcher would
    report: list[str] = []
    for test in tests:
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        runner.run(test, out=report.append)
    assert report == []


def test_names_without_an_example_are_public() -> None:
    assert set(WITHOUT_EXAMPLE) <= set(PUBLIC)
