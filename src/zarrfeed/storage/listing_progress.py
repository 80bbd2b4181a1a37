"""How far a listing is, on a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from zarrfeed.base.errors import one_line
from zarrfeed.base.validate import check_flags


@contextmanager
def listing_progress(name: str, progress: bool | None) -> Iterator[Callable[[int], None]]:
    """Show how many objects were listed, and yield what is told how many more there are.

    Parameters
    ----------
    name
        What is listed.
    progress
        True: on stderr, by rich if it is installed, else as a line at the end. None: only where stderr is a terminal
        and rich is installed. False: nothing is shown.
    """
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
        print(f"{one_line(name)}: {count} objects listed", file=sys.stderr)
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (
        bars.SpinnerColumn(),
        bars.TextColumn("{task.completed} objects listed"),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=progress is None) as bar:
        task = bar.add_task(escape(one_line(name)), total=None)
        yield lambda number: bar.advance(task, number)
