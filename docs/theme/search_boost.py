"""A hook of MkDocs: the search ranks pages for users before pages on how zarrfeed works and is measured."""

from __future__ import annotations

from typing import Any

#: Folder or page -> factor of its scores in the search. Pages that are not named have 1.
BOOSTS = {
    "decisions/": 0.02,
    "design/": 0.03,
    "performance.md": 0.03,
    "scale.md": 0.1,
    "reliability.md": 0.1,
    "reference/": 0.3,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set the factor of a page before its text is indexed."""
    for name, boost in BOOSTS.items():
        if page.file.src_uri.startswith(name):
            page.meta["search"] = {"boost": boost}
    return markdown
