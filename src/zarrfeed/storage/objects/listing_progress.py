"""The progress of a listing, or of the opening of many stores, on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zarrfeed.base.errors import one_line
from zarrfeed.base.redaction import without_secrets
from zarrfeed.base.validate import check_flags


@contextmanager
def counting_progress(
    what: str, name: str, progress: bool | None, total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Show a count, and yield a function that adds to it.

    Parameters
    ----------
    what
        The things that are counted, such as "objects listed".
    name
        The place that they are counted in, such as the URL.
    progress
        True: on stderr, by rich if it is installed, else as a line at the end. None: only where stderr is a terminal
        and rich is installed. False: nothing is shown.
    total
        The final count. None: it is unknown.
    """
    name = one_line(without_secrets(name))
    if progress is not None:
        check_flags(progress=progress)
    has_rich = importlib.util.find_spec("rich") is not None
    if progress is False or (progress is None and not (has_rich and sys.stderr.isatty())):
        yield lambda _: None
        return
    if not has_rich:
        count = 0

        def add(number: int) -> None:
            nonlocal count
            count += number

        yield add
        print(f"{name}: {count} {what}", file=sys.stderr)
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (
        bars.SpinnerColumn() if total is None else bars.BarColumn(),
        bars.TextColumn("{task.completed} " + ("" if total is None else "of {task.total} ") + what),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=progress is None) as bar:
        task = bar.add_task(escape(name), total=total)
        yield lambda number: bar.advance(task, number)
