"""A bar on stderr while a command works, if somebody looks.

Imports nothing that takes long before it runs: completion in shells imports the modules of commands.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

#: Called with the amount done, the total, and the name of the present stage.
Show: TypeAlias = Callable[[int, int, str], None]


@contextmanager
def show_progress(unit: str = "") -> Iterator[Show]:
    """Show a bar on stderr, if that is a terminal and rich is installed; yield the function that moves it.

    Parameters
    ----------
    unit
        The things that are counted, such as "samples".
    """
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda _done, _total, _stage: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn(unit),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, stage: bar.update(task, description=stage, completed=done, total=total)
