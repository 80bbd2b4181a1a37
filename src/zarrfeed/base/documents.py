"""Documents in JSON that others wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parse_json(text: str | bytes, of_object: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Return the value of a document in JSON.

    Parameters
    ----------
    text
        Text of the JSON document.
    of_object
        A function that makes the value of an object from its members, in order. None: a dict.

    Raises
    ------
    ValueError
        If the text is no JSON, or nests deeper than Python can follow.
    """
    try:
        return json.loads(text, object_pairs_hook=of_object)
    except RecursionError as error:
        raise ValueError("nests too deep") from error
