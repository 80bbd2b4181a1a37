"""Pages of names and texts: as text in a terminal, and as a table in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

from zarrfeed.base.errors import one_line

#: A name and a text; a row without a name continues the one before.
Row = tuple[str, str]

#: Room for names, in characters.
_LEAST_WIDTH = 12

# Colours are the notebook's, so that dark themes are readable, too.
_TABLE = "border-collapse: collapse; color: inherit; background: transparent"
_CAPTION = "text-align: left; font-weight: bold; padding: 0.2em 0; color: inherit; caption-side: top"
_CELL = "text-align: left; vertical-align: top; padding: 0.15em 0.8em 0.15em 0; border: none; color: inherit"
_NAME = f"{_CELL}; font-weight: normal; opacity: 0.7; white-space: nowrap"


class Page:
    """Describes itself by rows: `str()` and `repr()` are a page for people, and notebooks show a table."""

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self.rows())

    def __repr__(self) -> str:
        return as_text(self.rows())

    def _repr_html_(self) -> str:
        return as_html(type(self).__name__, self.rows())


def as_text(rows: Sequence[Row]) -> str:
    """Return rows as lines, with the texts one below the other."""
    width = max(_LEAST_WIDTH, max(len(name) for name, _ in rows) + 2)
    return "\n".join(f"{name:<{width}}{text}" for name, text in rows)


def as_html(title: str, rows: Sequence[Row]) -> str:
    """Return rows as a table of HTML, which needs no style sheet and runs no script."""
    cells: list[tuple[str, list[str]]] = []
    for name, text in rows:
        if name or not cells:
            cells.append((name, []))
        cells[-1][1].append(html.escape(one_line(text)))
    body = "".join(
        f'<tr style="background: transparent"><th scope="row" style="{_NAME}">{html.escape(one_line(name))}</th>'
        f'<td style="{_CELL}">{"<br>".join(lines)}</td></tr>'
        for name, lines in cells
    )
    caption = f'<caption style="{_CAPTION}">{html.escape(one_line(title))}</caption>'
    return f'<table style="{_TABLE}">{caption}<tbody>{body}</tbody></table>'
