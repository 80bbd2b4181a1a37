"""Documents in JSON that others wrote."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return what a document in JSON says.

    Raises
    ------
    ValueError
        If it is none, or nests deeper than Python can follow.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nests too deep") from error
