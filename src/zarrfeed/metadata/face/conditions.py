"""`Data.where`: the samples whose columns meet conditions, which are functions, or text as pandas takes it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.split_columns import chosen_values
from zarrfeed.metadata.group.sample_columns import DATE_PARTS, part_of_dates
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.values.missing import is_missing

#: Takes the values of the chosen samples, shape (samples,), and returns a mask of that shape.
Condition: TypeAlias = Callable[[npt.NDArray[Any]], Any]


def given_conditions(condition: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions of a call by their columns; text is known by the path of its table, "" for none.

    Raises
    ------
    ConfigError
        If an argument is no condition, or there is none.
    """
    given: dict[str, Any] = {}
    functions: dict[str, Any] = {}
    match condition:
        case ():
            pass
        case (str(text),):
            given[""] = text
        case (str(table), str(text)):
            given[table] = text
        case (Mapping() as mapping,):
            functions |= mapping
        case _:
            raise ConfigError(
                "where: takes text, a table and text, or a mapping of columns to functions; select() takes masks"
            )
    if twice := [name for name in named if name in given or name in functions]:
        raise ConfigError(f"where: {twice[0]!r} is named twice")
    functions |= named
    for name, one in functions.items():
        if not callable(one):
            raise ConfigError(
                f"where: {name} = {one!r}, must be a function of its values, such as lambda v: v > 0; sel({name}=...) "
                "takes labels"
            )
    given |= functions
    if not given:
        raise ConfigError("where: names nothing, must name a column, such as where(quality=lambda q: q > 0.5)")
    return given


def samples_that_meet(resolved: ResolvedData, conditions: Mapping[str, Any]) -> Int64:
    """Return the positions of the samples that meet all conditions, among those that are chosen.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As `Data.where` does.
    """
    resolved.check_choice("where")
    resolved.choice.check_rows_are_open("where")

    count = len(resolved.choice.listed())

    def names_of(name: str) -> Mapping[int, str] | None:
        with suppress(ConfigError):  # a column with a path, or a part of a date
            return resolved.coordinate(name).names
        return None

    meets = meeting("where", conditions, lambda name: chosen_values(resolved, "where", name)[1], count, names_of)
    if not meets.any():
        said = " and ".join(_shown(name, one) for name, one in conditions.items())
        raise ConfigError(f"where: no sample of {len(meets)} meets {said}")
    return np.flatnonzero(meets)


def meeting(
    method: str,
    conditions: Mapping[str, Any],
    read: Callable[[str], npt.NDArray[Any]],
    count: int,
    names_of: Callable[[str], Mapping[int, str] | None] = lambda _: None,
) -> npt.NDArray[np.bool_]:
    """Return which of `count` samples, or segments, meet all conditions; `read(column)` returns a value for each.

    `names_of` returns the names of the codes of a column, which text compares with names; None if it has none.

    Raises
    ------
    ConfigError
        If a condition gives no mask. And what `read` raises.
    """
    column = functools.cache(read)
    meets = np.ones(count, dtype=np.bool_)
    for name, one in conditions.items():
        if isinstance(one, str):
            mask = np.asarray(_evaluated(method, one, name, column, names_of))
        else:
            mask = np.asarray(_called(one, column(name), name))
        if mask.shape != meets.shape or mask.dtype.kind != "b":
            raise ConfigError(
                f"{method}: {_shown(name, one)} gives an array of shape {mask.shape} and dtype {mask.dtype}, must give "
                f"a mask (bool) of shape {meets.shape}"
            )
        meets &= mask
    return meets


def _called(condition: Condition, values: npt.NDArray[Any], name: str) -> Any:
    try:
        return condition(values)
    except Exception as error:
        kind = {"M": f"; parts of dates are for text: '{name}.month == 7'"}.get(values.dtype.kind, "")
        error.add_note(f"{name} is a NumPy array of shape {values.shape} and dtype {values.dtype}{kind}")
        raise


def _shown(name: str, condition: Any) -> str:
    return repr(condition) if isinstance(condition, str) else f"the condition on {name}"


def _evaluated(
    method: str,
    text: str,
    table: str,
    column: Callable[[str], npt.NDArray[Any]],
    names_of: Callable[[str], Mapping[int, str] | None],
) -> Any:
    """Evaluate a condition in text for each sample, by pandas; `table` is the path of its columns, or empty."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except SyntaxError as error:
        raise ConfigError(f"{method}: {text!r}: {error.msg}") from error
    functions = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in functions}
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f"{method}: {text!r} needs pandas: pip install pandas; or give a function of a column, such as "
            f"{method}(quality=lambda q: q > 0.5)"
        ) from error
    columns = {name: column(f"{table}/{name}" if table else name) for name in sorted(names)}
    if not columns:
        raise ConfigError(f"{method}: {text!r} names no column")
    evaluated = _replaced(text.strip(), _parts_of_dates(nodes, columns))
    for name in columns.keys() & _compared_with_text(nodes):
        named = names_of(f"{table}/{name}" if table else name)
        if named is not None:
            codes, number = np.unique(columns[name], return_inverse=True)
            columns[name] = np.array([named.get(code, "") for code in codes.tolist()], dtype=object)[number]
    texts = {name: values.astype(object) if values.dtype.kind == "T" else values for name, values in columns.items()}
    try:
        return pandas.DataFrame(texts).eval(evaluated, engine="python")
    except Exception as error:
        raise ConfigError(f"{method}: {text!r}: {error}") from error


def _parts_of_dates(nodes: Sequence[ast.AST], columns: dict[str, npt.NDArray[Any]]) -> list[tuple[ast.Attribute, str]]:
    """Return the parts of dates that pandas does not know by their names, and a name for each, which `columns` gets.

    These are `time.month` without `dt`, parts of dates of calendars that NumPy lacks, and xarray's seasons.
    """
    found = []
    for node in nodes:
        if not isinstance(node, ast.Attribute) or node.attr == "dt":
            continue
        inner = node.value.value if isinstance(node.value, ast.Attribute) and node.value.attr == "dt" else None
        base = inner or node.value
        if not isinstance(base, ast.Name) or base.id not in columns or not (inner or node.attr in DATE_PARTS):
            continue
        dates = columns[base.id]
        if dates.dtype.kind == "O" or (dates.dtype.kind == "M" and (not inner or node.attr == "season")):
            name = f"{base.id}_dt_{node.attr}_"
            columns[name] = _part_if_known(dates, f"{base.id}.{node.attr}", node.attr)
            found.append((node, name))
    return found


def _part_if_known(dates: npt.NDArray[Any], name: str, part: str) -> npt.NDArray[Any]:
    """Return a part of each date as `part_of_dates`; that of a missing one is equal to none."""
    present = ~is_missing(dates)
    parts = part_of_dates(dates[present], name, part)
    if present.all():
        return parts
    found = np.full(len(dates), np.nan if parts.dtype.kind == "i" else None, None if parts.dtype.kind == "i" else "O")
    found[present] = parts
    return found


def _replaced(text: str, names: Sequence[tuple[ast.Attribute, str]]) -> str:
    """Return the text with names at the places of some nodes."""
    encoded = text.encode()
    for node, name in sorted(names, key=lambda one: one[0].col_offset, reverse=True):
        encoded = encoded[: node.col_offset] + name.encode() + encoded[node.end_col_offset :]
    return encoded.decode()


def _compared_with_text(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are compared with text, or with a list of text."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Compare):
            inside = [one for operand in (node.left, *node.comparators) for one in ast.walk(operand)]
            if any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in inside):
                found |= {one.id for one in inside if isinstance(one, ast.Name)}
    return found
