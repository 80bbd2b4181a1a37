"""Modules that are imported when a test first uses them.

Each test process collects every file. A large library that a file imports at its top is then in all of them, and each
process that they fork maps it: Lightning and Ray are 190 MB.
"""

from __future__ import annotations

from typing import Any

import pytest


class Later:
    """Stands for a module; a test that uses it where it is not installed is skipped.

    >>> Later("decimal").Decimal("0.5")
    Decimal('0.5')
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks all that a file has whether it is a fixture
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self._name, exc_type=ImportError), attribute)
