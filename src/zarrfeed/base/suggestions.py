"""Misspelt names: a message adds the name that was probably meant.

Nothing is corrected silently: a name that is not known is an error, and the error says which known name is similar.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

from zarrfeed.base.errors import UnknownOptionError

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Callable -> the names of its arguments, for those that `checks_option_names` decorates.
_TAKEN: dict[str, tuple[str, ...]] = {}


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Return text to put behind a message about an unknown name; "" where no known name is similar.

    >>> did_you_mean("shufle", ["seed", "shuffle"])
    "; did you mean 'shuffle'?"
    """
    similar = _most_similar(name, known)
    return "" if similar is None else f"; did you mean {similar!r}?"


def _most_similar(name: object, known: Iterable[object]) -> str | None:
    if not isinstance(name, str):
        return None
    by_lower_case = {one.lower(): one for one in known if isinstance(one, str)}
    similar = get_close_matches(name.lower(), by_lower_case, n=1)
    return by_lower_case[similar[0]] if similar else None


def checks_option_names(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let a function, or a class's `__init__`, refuse unknown keyword arguments with the name that was probably meant.

    The signature stays as it is, for type checkers and for `inspect.signature`.

    Raises
    ------
    UnknownOptionError
        By the decorated function, for a keyword argument that it does not have. It is a TypeError, as Python's own.
    """
    return _checking(function, function.__qualname__.removesuffix(".__init__"), {})


def knows_arguments_of_others(
    elsewhere: Mapping[str, str],
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return `checks_option_names` for a function that is often given arguments of other functions and libraries.

    Parameters
    ----------
    elsewhere
        Name of such an argument -> how to say it here, such as "mixing={'lanes': 8}".
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        return _checking(function, function.__qualname__.removesuffix(".__init__"), elsewhere)

    return decorate


def checks_option_names_of(
    owner: str, elsewhere: Mapping[str, str] | None = None
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return `checks_option_names` for a method that users know by a class which inherits it, such as "Data".

    Python's own errors about the call, such as an argument that is missing, name that class, too.

    Parameters
    ----------
    elsewhere
        As `knows_arguments_of_others` has it.
    """

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        name = f"{owner}.{function.__name__}"
        checked = _checking(function, name, elsewhere or {})
        function.__qualname__ = name  # behind it, as the checked one is pickled by the class that has it
        return checked

    return decorate


def _checking(
    function: Callable[_Parameters, _Result], owner: str, elsewhere: Mapping[str, str]
) -> Callable[_Parameters, _Result]:
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name != "self"]
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    _TAKEN[owner] = tuple(names)

    @functools.wraps(function)
    def checked(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        for name in kwargs:
            if name not in names and not takes_any:
                raise _unknown(owner, name, elsewhere)
        return function(*args, **kwargs)

    return checked


def _unknown(owner: str, name: str, elsewhere: Mapping[str, str]) -> UnknownOptionError:
    taken = _TAKEN[owner]
    others = [other for other, names in _TAKEN.items() if name in names]
    meant = name if name in elsewhere or others else _most_similar(name, [*taken, *elsewhere])
    if meant is not None and meant in elsewhere:
        is_other = "" if meant == name else f"; did you mean {meant!r}? It"
        return UnknownOptionError(f"{owner}() has no argument {name!r}{is_other or ': it'} is {elsewhere[meant]}")
    if others:  # rather than a name that is merely spelt alike
        advice = f"; it is an argument of {', '.join(others)}"
    elif meant is not None:
        advice = f"; did you mean {meant!r}?"
    else:
        advice = f"; it takes {', '.join(taken)}" if taken else "; it takes none"
    return UnknownOptionError(f"{owner}() has no argument {name!r}{advice}")
