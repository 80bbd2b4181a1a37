"""`verify` on a terminal: a bar while it works (with rich, where somebody looks), and the report as JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.errors import one_line
from zarrfeed.base.units import format_bytes

if TYPE_CHECKING:
    from zarrfeed.tools.verify import Progress


@contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """Show a bar on stderr, if that is a terminal and rich is installed; yield the function that moves it."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda _: None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TextColumn("chunks, {task.fields[read]}{task.fields[found]}"),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, read="", found="")

        def show(now: Progress) -> None:
            found = "".join(f", {n} {what}" for n, what in ((now.bad, "bad"), (now.missing, "missing")) if n)
            bar.update(
                task,
                description=escape(one_line(now.array)),
                completed=now.done,
                total=now.total,
                read=format_bytes(now.stored_bytes),
                found=found,
            )

        yield show


def write_json(report: dict[str, Any], path: str) -> None:
    """Write a report to a file, as a whole or not at all; "-": to stdout.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    text = json.dumps(report, indent=2)
    if path == "-":
        print(text)
        return
    write_whole(Path(path), f"{text}\n".encode())
